"""Training code on the shared file system: whole, verified, and never taken from under a job."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from node_setup.failure import SetupError
from node_setup.node import Node
from node_setup.steps import workload_code
from node_setup.steps.workload_code import content_hash
from tests.lifecycle.node import StandIns, node_of

FILES = {
    "esm2/train.py": "print()\n",
    "esm2/launch/run.sh": "#!/bin/bash\n",
    "esm2/configs/8m.yaml": "a: 1\n",
}


class Deployed:
    """A bucket whose contents ``aws s3 cp`` brings."""

    def __init__(self, folder: Path, stand_ins: StandIns) -> None:
        self.stand_ins = stand_ins
        self.bucket = folder / "bucket"
        self.fsx = folder / "root/fsx"
        self.fsx.mkdir(parents=True)
        self.node = node_of(folder, "controller", workload_code=True)
        self.version = self.deploy(FILES)
        self.aws('cp --recursive "$BUCKET/." "${@: -1}"')

    def deploy(self, files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = self.bucket / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        version = content_hash(self.bucket)
        uri = f"s3://sagemaker-esm2/workloads/{version}"
        self.node.deployment = replace(self.node.deployment, workload_s3_uri=uri)
        return self.fsx / "workloads" / version

    def aws(self, body: str) -> None:
        self.stand_ins.command("aws", f'BUCKET="{self.bucket}"\n{body}')

    @property
    def current(self) -> str:
        return os.readlink(self.fsx / "workloads/current")

    def age(self, name: str, days: float) -> Path:
        path = self.fsx / "workloads" / name
        path.mkdir(parents=True, exist_ok=True)
        then = time.time() - days * 24 * 3600
        os.utime(path, (then, then))
        return path


@pytest.fixture
def deployed(tmp_path: Path, stand_ins: StandIns) -> Deployed:
    return Deployed(tmp_path, stand_ins)


def again(node: Node) -> Node:
    node.changes = []
    node.warnings = []
    return node


@pytest.mark.parametrize("planted", ["link", "writable"])
def test_a_folder_that_users_have_a_hand_in_is_not_used(
    deployed: Deployed, tmp_path: Path, planted: str
) -> None:
    """Root would write where their links lead."""
    folder = deployed.fsx / "workloads"
    if planted == "link":
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.mkdir()
        folder.chmod(0o777)
    with pytest.raises(SetupError, match="/fsx/workloads must be a folder of root's"):
        workload_code.sync(deployed.node)
    assert list(folder.iterdir()) == []


def test_code_is_brought_once(deployed: Deployed) -> None:
    workload_code.sync(deployed.node)
    assert {
        p.relative_to(deployed.version).as_posix()
        for p in deployed.version.rglob("*")
        if p.is_file()
    } == set(FILES)
    assert deployed.current == deployed.version.name
    assert len(deployed.node.changes) == 2
    workload_code.sync(again(deployed.node))
    assert deployed.node.changes == []
    assert len(deployed.stand_ins.calls) == 1


def test_all_may_read_it_and_scripts_run(deployed: Deployed) -> None:
    old = os.umask(0o077)
    try:
        workload_code.sync(deployed.node)
    finally:
        os.umask(old)
    modes = {
        p.name: p.stat().st_mode & 0o777 for p in (deployed.version, *deployed.version.rglob("*"))
    }
    assert modes.pop("run.sh") == 0o755
    assert modes.pop("train.py") == modes.pop("8m.yaml") == 0o644
    assert set(modes.values()) == {0o755}


def test_a_new_version_leaves_the_one_that_jobs_use(deployed: Deployed) -> None:
    workload_code.sync(deployed.node)
    first = deployed.version
    deployed.age(first.name, 400)
    second = deployed.deploy({"esm2/train.py": "print(2)\n"})
    workload_code.sync(deployed.node)
    assert deployed.current == second.name
    assert (first / "esm2/train.py").read_text() == "print()\n"
    assert time.time() - first.stat().st_mtime < 3600, "its days begin when it is replaced"


@pytest.mark.parametrize(
    "fault",
    [
        'cp --recursive "$BUCKET/." "${@: -1}"; rm "${@: -1}/esm2/train.py"',
        'cp --recursive "$BUCKET/." "${@: -1}"; echo >> "${@: -1}/esm2/train.py"',
    ],
)
def test_what_is_not_whole_never_gets_its_name(deployed: Deployed, fault: str) -> None:
    deployed.aws(fault)
    with pytest.raises(
        SetupError,
        match=r"the downloaded files have the hash [0-9a-f]{16}\. What to do: files are missing",
    ):
        workload_code.sync(deployed.node)
    assert list((deployed.fsx / "workloads").iterdir()) == []


def test_an_empty_prefix_fails(deployed: Deployed) -> None:
    deployed.aws("exit 0")
    with pytest.raises(
        SetupError,
        match=r"cannot be downloaded from s3://.* after 300 s: nothing is there.*make deploy",
    ):
        workload_code.sync(deployed.node)


def test_a_download_that_fails_is_tried_again(deployed: Deployed, tmp_path: Path) -> None:
    object.__setattr__(deployed.node.host, "patience", 0.001)
    deployed.aws(
        f'mark="{tmp_path}/first"; [[ -e $mark ]] || {{ touch "$mark" "${{@: -1}}/half"; '
        'echo "fatal error: Could not connect" >&2; exit 1; }; cp --recursive "$BUCKET/." "${@: -1}"'
    )
    workload_code.sync(deployed.node)
    assert not (deployed.version / "half").exists()


def test_a_download_that_keeps_failing_says_why(deployed: Deployed) -> None:
    deployed.aws('echo "An error occurred (AccessDenied)" >&2; exit 1')
    with pytest.raises(SetupError, match="AccessDenied"):
        workload_code.sync(deployed.node)


def test_code_that_was_changed_by_hand_is_put_aside(deployed: Deployed) -> None:
    workload_code.sync(deployed.node)
    (deployed.version / "esm2/train.py").write_text("print('mine')\n")
    workload_code.sync(again(deployed.node))
    assert (deployed.version / "esm2/train.py").read_text() == "print()\n"
    (aside,) = (deployed.fsx / "workloads").glob("*.changed-*")
    assert (aside / "esm2/train.py").read_text() == "print('mine')\n"
    assert aside.name in deployed.node.warnings[0]


def test_code_that_a_submission_brings_meanwhile_is_kept(deployed: Deployed) -> None:
    deployed.aws(f'cp --recursive "$BUCKET/." "${{@: -1}}"\ncp -r "$BUCKET" "{deployed.version}"')
    workload_code.sync(deployed.node)
    assert deployed.node.warnings == []
    names = {path.name for path in (deployed.fsx / "workloads").iterdir()}
    assert names == {"current", deployed.version.name}


def test_compiled_files_are_no_change(deployed: Deployed) -> None:
    workload_code.sync(deployed.node)
    (deployed.version / "esm2/__pycache__").mkdir()
    (deployed.version / "esm2/__pycache__/train.cpython-310.pyc").write_text("x")
    workload_code.sync(again(deployed.node))
    assert deployed.node.changes == deployed.node.warnings == []


def test_old_versions_go_when_there_are_many_and_they_are_old(deployed: Deployed) -> None:
    workload_code.sync(deployed.node)
    old = [deployed.age(f"{number:016x}", 100 + number) for number in range(12)]
    young = [deployed.age(f"{number:016x}", 5) for number in range(20, 24)]
    others = [deployed.age("mine", 900), deployed.age("0123456789abcdef.changed-1", 900)]
    half = deployed.age(".0123456789abcdef.partial-7", 40)
    workload_code.sync(deployed.node)
    # With the current one ten are kept: the four young ones and the five youngest of the old.
    assert [path.exists() for path in old] == [True] * 5 + [False] * 7
    assert all(path.exists() for path in (*young, *others))
    assert not half.exists()


def test_many_young_versions_all_stay(deployed: Deployed) -> None:
    workload_code.sync(deployed.node)
    young = [deployed.age(f"{number:016x}", 29) for number in range(30)]
    workload_code.sync(deployed.node)
    assert all(path.exists() for path in young)


def test_a_folder_of_somebodys_in_the_links_place_is_not_removed(deployed: Deployed) -> None:
    mine = deployed.age("current", 1)
    (mine / "file").touch()
    with pytest.raises(
        SetupError, match=r"current cannot be made to lead to .* move .*current away"
    ):
        workload_code.sync(deployed.node)
    assert (mine / "file").exists()
    assert not list((deployed.fsx / "workloads").glob(".current*"))


def test_a_second_controller_leaves_it_to_the_first(deployed: Deployed) -> None:
    deployed.node.facts = replace(
        deployed.node.facts, controller_addresses=("10.0.0.9", "10.0.0.10")
    )
    workload_code.sync(deployed.node)
    assert list(deployed.fsx.iterdir()) == [] and deployed.stand_ins.calls == []


def test_the_hash_is_the_one_of_the_upload() -> None:
    """Nodes import nothing of the infrastructure, so both have it; here they meet on the real code."""
    from constructs.storage.hashed_upload import content_hash as hash_of_upload

    workloads = Path(__file__).parents[2] / "workloads"
    assert content_hash(workloads) == hash_of_upload(workloads, {})
