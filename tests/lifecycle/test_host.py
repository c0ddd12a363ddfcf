"""The machine as steps see it: files that are whole or not there, commands with an end, waiting."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from node_setup import host as host_module
from node_setup.failure import SetupError
from node_setup.host import Host


def test_a_text_is_written_once(tmp_path: Path) -> None:
    host = Host(tmp_path)
    assert host.write_text("/etc/a/b.conf", "text", mode=0o600)
    path = tmp_path / "etc/a/b.conf"
    assert path.stat().st_mode & 0o7777 == 0o600
    assert not host.write_text("/etc/a/b.conf", "text", mode=0o600)
    assert host.write_text("/etc/a/b.conf", "text", mode=0o644)
    assert host.write_text("/etc/a/b.conf", "other text")
    assert path.read_text() == "other text"
    assert list(path.parent.iterdir()) == [path]


def test_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    Host(tmp_path).write_text("/link", "text")
    assert (tmp_path / "precious").read_text() == "precious"
    assert not (tmp_path / "link").is_symlink()


def test_a_text_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(tmp_path)
    host.write_text("/a", "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        host.write_text("/a", "new")
    assert (tmp_path / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_command_gets_its_input_and_environment() -> None:
    host = Host()
    assert host.run("cat", stdin="text") == "text"
    assert host.run("sh", "-c", "echo $A", env={"A": "b"}) == "b\n"


def test_a_command_that_fails_says_so_with_the_remedy() -> None:
    with pytest.raises(SetupError) as caught:
        Host().run("sh", "-c", "echo out; echo because >&2; exit 3", remedy="do that")
    assert str(caught.value).endswith("ended with 3: because. What to do: do that")
    assert Host().try_run("sh", "-c", "exit 3").status == 3


def test_a_command_that_is_not_there_is_named() -> None:
    with pytest.raises(SetupError, match="there is no command no-such-command"):
        Host().try_run("no-such-command")


def test_a_command_that_does_not_end_is_killed_with_its_children(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = f'trap "" TERM; (trap "" TERM; while :; do date > "{mark}"; sleep 0.05; done) & wait'
    with pytest.raises(SetupError, match=r"did not end within 0\.5 s"):
        Host().try_run("sh", "-c", script, timeout_seconds=0.5)
    mark.unlink()
    time.sleep(0.3)
    assert not mark.exists()


def test_waiting_ends_with_what_is_found() -> None:
    found = iter([None, None, "it"])
    assert (
        Host(patience=0.001).wait_for(
            lambda: next(found),
            timeout_seconds=60_000,
            what="nothing",
            remedy="wait",
            every_seconds=1,
        )
        == "it"
    )


def test_waiting_without_success_tells_the_last_reason_and_its_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reasons = [SetupError("it is ill", "cure it"), SetupError("it is away", "")]
    # The time is over after the first look.
    clock = SimpleNamespace(
        monotonic=lambda: 0.0 if len(reasons) == 2 else 60.0, sleep=lambda _: None
    )
    monkeypatch.setattr("node_setup.host.time", clock)

    def look() -> None:
        raise reasons.pop(0)

    with pytest.raises(SetupError) as caught:
        Host().wait_for(look, timeout_seconds=60, what="no guest", remedy="call")
    assert str(caught.value) == "no guest after 60 s: it is away. What to do: call"


def test_nodes_that_begin_together_do_not_repeat_together(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(host_module, "time", SimpleNamespace(sleep=slept.append))
    for _ in range(200):
        Host().sleep(10)
    assert len(set(slept)) > 190
    assert 5 <= min(slept) < 7 and 13 < max(slept) <= 15
    assert 9 < sum(slept) / len(slept) < 11
