"""Files that move to another cluster: owners by number, interruptions and changes, with the real rsync."""

from __future__ import annotations

import os
import random
from functools import partial
from pathlib import Path

import pytest

from tests.tools.migrate.moving import (
    NEEDS_RSYNC,
    LocalHead,
    entries,
    hard_links,
    local_head,
    tree,
    wait_for_lock,
)
from tools.migrate.trees import SCRIPT, Compared, compare_tree, copy_tree, script_arguments

pytestmark = NEEDS_RSYNC
NUM_OWNERS = 50
NUM_FILES = int(os.environ.get("MIGRATE_FILES", "300"))
"""docs/migrate.md has the figures of 100,000."""
IS_ROOT = os.geteuid() == 0
HOUR = 3_600 * 10**9
MODES = (0o600, 0o644, 0o755, 0o2750, 0o440)


def print_nothing(line: str) -> None:
    pass


def make_homes(folder: Path, num_files: int) -> None:
    """Write homes with small files; without root, all of them have this user as owner."""
    numbers = random.Random(60)
    for index in range(num_files):
        owner = 2000 + index % NUM_OWNERS
        place = folder / f"home-{owner}" / f"folder {index // NUM_OWNERS % 40}"
        place.mkdir(parents=True, exist_ok=True)
        path = place / (f"protéine-{index} β.txt" if index % 97 == 0 else f"file-{index}")
        path.write_bytes(numbers.randbytes(numbers.randrange(2000)))
        if IS_ROOT:
            os.chown(path, owner, 3000 + owner % 7)
            os.chown(place, owner, owner)
        path.chmod(numbers.choice(MODES))
        time = numbers.randrange(10**18, 17 * 10**17)
        os.utime(path, ns=(time, time))


@pytest.fixture
def homes(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    source.mkdir()
    return source


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    target = tmp_path / "target"
    target.mkdir()
    return target


@pytest.fixture
def head(tmp_path: Path, homes: Path) -> LocalHead:
    return local_head(tmp_path, homes)


def make_old(folder: Path) -> None:
    """Set times of an hour ago, because rsync compares whole seconds."""
    for path in [*folder.rglob("*"), folder]:
        state = path.lstat()
        times = (state.st_atime_ns - HOUR, state.st_mtime_ns - HOUR)
        os.utime(path, ns=times, follow_symlinks=False)


def has_entries(folder: Path, wanted: int) -> bool:
    """Whether a folder has so many entries; others may vanish meanwhile."""
    return sum(len(folders) + len(files) for _, folders, files in os.walk(folder)) >= wanted


def compared(head: LocalHead, copy: Path, *, contents: bool = False) -> Compared:
    return compare_tree(head, tree(copy), print_nothing, contents=contents)


def names(left: Compared) -> list[str]:
    return [line.split(" ", 1)[1] for line in left.differences]


@pytest.mark.long
@pytest.mark.skipif(not IS_ROOT, reason="only root gives files to other owners")
def test_two_interruptions_lose_and_change_nothing(
    head: LocalHead, homes: Path, copy: Path
) -> None:
    make_homes(homes, NUM_FILES)
    make_old(homes)
    arguments = script_arguments(tree(copy), "copy", "|m|")
    for _ in range(2):
        wait_for_lock(lambda: compared(head, copy))
        wanted = len(entries(copy)) + NUM_FILES // 5
        with head.slow_rsync():
            head.start_and_kill(
                SCRIPT.read_text(), arguments, once=partial(has_entries, copy, wanted)
            )
    left = wait_for_lock(lambda: compared(head, copy))
    assert isinstance(left, Compared)
    assert left.num_different > 0, "it was not interrupted"
    copy_tree(head, tree(copy), print_nothing)
    assert entries(copy) == entries(homes)
    assert len({state[0] for state in entries(copy).values()}) >= NUM_OWNERS
    whole = compared(head, copy, contents=True)
    assert (whole.num_different, whole.num_added) == (0, 0)
    assert whole.num_entries == len(entries(homes)) + 1
    assert copy_tree(head, tree(copy), print_nothing).startswith("0 files")


def test_links_holes_and_names_are_kept(head: LocalHead, homes: Path, copy: Path) -> None:
    (homes / "ada").mkdir()
    (homes / "ada" / "file").write_text("x")
    (homes / "ada" / "same").hardlink_to(homes / "ada" / "file")
    (homes / "ada" / "nowhere").symlink_to("../gone")
    (homes / "ada" / "line\nbreak \\ 'quote' ß").write_text("y")
    with (homes / "ada" / "holes").open("wb") as file:
        file.truncate(8 << 20)
    make_old(homes)
    copy_tree(head, tree(copy), print_nothing)
    assert entries(copy) == entries(homes)
    assert hard_links(copy) == [["ada/file", "ada/same"]]
    assert (copy / "ada" / "holes").stat().st_blocks < 64
    assert list(head.programs.joinpath("tmp").iterdir()) == [], "the mount stayed"


def test_changes_are_copied_again_and_work_at_the_target_stays(
    head: LocalHead, homes: Path, copy: Path
) -> None:
    for name in ("old", "changed", "ours"):
        (homes / name).write_text("first")
    make_old(homes)
    copy_tree(head, tree(copy), print_nothing)
    (homes / "changed").write_text("second, longer")
    (homes / "new").write_text("new")
    (copy / "ours").write_text("changed on the new cluster")
    (copy / "added").write_text("added on the new cluster")
    left = compared(head, copy)
    assert (left.num_added, left.num_entries) == (1, 5)
    assert names(left) == ["changed", "new"]
    assert copy_tree(head, tree(copy), print_nothing) == "2 files, 17 bytes"
    assert (copy / "changed").read_text() == "second, longer"
    assert (copy / "ours").read_text() == "changed on the new cluster"
    assert (copy / "added").exists()
    assert compared(head, copy).num_different == 0
    assert names(compared(head, copy, contents=True)) == ["ours"]


def test_a_change_that_keeps_size_and_time_is_found_by_its_content(
    head: LocalHead, homes: Path, copy: Path
) -> None:
    (homes / "file").write_text("abc")
    copy_tree(head, tree(copy), print_nothing)
    state = (homes / "file").stat()
    (copy / "file").write_text("abd")
    os.utime(copy / "file", ns=(state.st_atime_ns, state.st_mtime_ns))
    assert compared(head, copy).num_different == 0
    assert compared(head, copy, contents=True).num_different == 1


def test_linked_folders_are_left_out(head: LocalHead, homes: Path, copy: Path) -> None:
    for name in ("fsx/data/set", "fsx/runs/data", "other"):
        (homes / name).mkdir(parents=True)
    copy_tree(head, tree(copy, below="fsx", left_out=["/data"]), print_nothing)
    assert sorted(entries(copy)) == ["runs", "runs/data"]


def test_refusals_name_the_remedy(head: LocalHead, tmp_path: Path, copy: Path) -> None:
    with pytest.raises(ValueError, match=r"homes: error: .*/none is no folder of"):
        copy_tree(head, tree(tmp_path / "none"), print_nothing)
    with pytest.raises(ValueError, match="fs-0123:/fsx has no folder gone"):
        copy_tree(head, tree(copy, below="gone"), print_nothing)
    (head.programs / "mount").write_text("#!/bin/sh\nexit 32\n")
    with pytest.raises(ValueError, match=r"fs-0123:/fsx cannot be mounted .* security groups"):
        copy_tree(head, tree(copy), print_nothing)
    (head.programs / "flock").write_text("#!/bin/sh\nexit 1\n")
    (head.programs / "flock").chmod(0o755)
    with pytest.raises(ValueError, match=r"a copy into .* is running on"):
        copy_tree(head, tree(copy), print_nothing)
