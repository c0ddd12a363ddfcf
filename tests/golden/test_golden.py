"""Templates are those that were read and approved."""

from __future__ import annotations

import difflib
from itertools import islice
from pathlib import Path

import pytest

from config.resource_names import construct_ids, wanted_stacks
from tests.golden.normalised import GOLDEN, golden_files, normalised, studio_golden_file
from tests.stacks.endpoints import ENDPOINT_FILES
from tests.stacks.studios import STUDIOS
from tests.stacks.synthesized import ALL_FILES, load

LINES_SHOWN = 80
# By their names, so that to list the tests takes no synthesis.
PATHS = [
    GOLDEN / Path(file).stem / f"{stack}.json"
    for file in ALL_FILES
    for cluster in [load(file)]
    for stack in wanted_stacks(cluster, construct_ids(cluster))
]
PATHS += [GOLDEN / f"endpoint-{Path(file).stem}" / "EndpointStack.json" for file in ENDPOINT_FILES]


def difference(path: Path, wanted: str) -> str:
    """The first lines of a unified diff, empty if there is none."""
    approved = path.read_text() if path.exists() else ""
    lines = difflib.unified_diff(
        approved.splitlines(),
        wanted.splitlines(),
        f"approved {path.name}",
        "synthesized",
        lineterm="",
        n=2,
    )
    return "\n".join(islice(lines, LINES_SHOWN))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_template_is_the_approved_one(path: Path) -> None:
    found = difference(path, golden_files()[path])
    assert not found, f"{found}\n\nif this is what you want: make golden, and commit the difference"


def test_no_golden_file_is_left_behind() -> None:
    # Studio's are compared beside the other tests of its stacks.
    elsewhere = {studio_golden_file(name) for name in STUDIOS}
    assert set(GOLDEN.glob("*/*.json")) == set(golden_files()) | elsewhere == set(PATHS) | elsewhere


def test_uploads_do_not_change_a_golden_template() -> None:
    one = {"a": f"{'0' * 64}.zip", "b": f"{'1' * 64}.zip", "p": f"lifecycle/{'2' * 16}/"}
    other = {"a": f"{'a' * 64}.zip", "b": f"{'b' * 64}.zip", "p": f"lifecycle/{'c' * 16}/"}
    assert normalised(one) == normalised(other)
    # Which asset goes where still counts.
    assert normalised(one) != normalised(one | {"b": one["a"]})


def test_difference_is_readable(tmp_path: Path) -> None:
    golden = tmp_path / "Stack.json"
    golden.write_text(normalised({"Type": "A", "Size": 1}))
    assert "-Size" not in difference(golden, normalised({"Type": "A", "Size": 1}))
    shown = difference(golden, normalised({"Type": "A", "Size": 2}))
    assert '- "Size": 1,' in shown and '+ "Size": 2,' in shown
