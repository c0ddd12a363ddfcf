"""make migrate: numbers of owners, lines for the new file, steps, and the record."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from config.reading.loader import load_cluster
from tests.tools.answering_aws import AnsweringAws, Parameters
from tests.tools.json_documents import RunJson
from tools.migrate import __main__ as command
from tools.migrate import bucket, steps, trees
from tools.migrate.record import open_record
from tools.migrate.storage import FileSystem, Link, Storage

SLURM = Path("clusters/slurm.yaml").absolute()
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f ada"
ADA = {"name": "ada", "uid": 2001, "account": "esm2", "ssh_keys": [KEY]}
BEN = {"name": "ben", "uid": 2002, "group": "lab"}
LAB = {"name": "lab", "gid": 3000}
ACCESS = {"groups": [LAB], "users": [ADA, BEN], "accounts": [{"name": "esm2", "fairshare": 3}]}


def cluster_file(folder: Path, name: str, **sections: Any) -> Path:
    document = yaml.safe_load(SLURM.read_text())
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**document, "name": name, **sections}))
    return path


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["migrate", *words])
    return command.main()


@pytest.mark.parametrize(
    ("access", "message"),
    [
        (
            {"users": [{**ADA, "account": None, "uid": 2001, "name": "eve"}]},
            "uid 2001 is the user ada in old and eve in new",
        ),
        (
            {"users": [{**ADA, "account": None, "uid": 2009}]},
            "the user ada has uid 2001 in old and 2009 in new",
        ),
        (
            {"groups": [{"name": "lab", "gid": 3001}]},
            "the group lab has gid 3000 in old and 3001 in new",
        ),
        # The own group of ada has the number 2001.
        (
            {"groups": [{"name": "all", "gid": 2001}]},
            "gid 2001 is the group ada in old and all in new",
        ),
    ],
)
def test_other_owners_stop_before_the_first_copy(
    access: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = cluster_file(tmp_path, "old", access=ACCESS)
    new = cluster_file(tmp_path, "new", access=access)
    with pytest.raises(ValueError, match=f"(?s){message}.*Nothing was copied"):
        run(monkeypatch, "--from", str(old), "--to", str(new), "--apply", "--yes")


def test_lines_that_the_new_file_lacks(
    tmp_path: Path, run_json: RunJson, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    qos = [{"name": "long", "max_time": "7-00:00", "priority": 5}]
    scheduling = {"enforce": True, "qos": qos}
    old = cluster_file(tmp_path, "old", access=ACCESS, scheduling=scheduling)
    changed = {**ACCESS, "users": [BEN], "accounts": [{"name": "esm2"}]}
    new = cluster_file(tmp_path, "new", access=changed)
    document = run_json(command.main, "--from", str(old), "--to", str(new), "--status")
    lines = document["result"]["lines_to_add"]
    assert document["exit_status"] == command.SOMETHING_LEFT
    headings = [line.strip() for line in lines if line[0] == " "]
    assert headings == [
        "access:",
        "users:",
        "access:",
        "accounts:",
        "scheduling:",
        "qos:",
        "scheduling:",
        "enforce:",
    ]
    values = [(line[0], yaml.safe_load(line[1:])) for line in lines if line[0] != " "]
    assert values == [
        ("+", [ADA]),
        ("-", [{"name": "esm2"}]),
        ("+", [{"name": "esm2", "fairshare": 3}]),
        ("+", qos),
        ("+", True),
    ]
    # With these lines, the new file has the same users, accounts and QOS.
    same = cluster_file(tmp_path, "new", access=ACCESS, scheduling=scheduling)
    document = run_json(command.main, "--from", str(old), "--to", str(same), "--status")
    assert document["result"]["lines_to_add"] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "FROM: name a cluster or its file"),
        (
            ("--from", "none"),
            "FROM: got none; the files in clusters have the names esm2-eks, .*esm2-slurm",
        ),
        (("--from", "esm2-slurm", "--to", "clusters/slurm.yaml"), "both are esm2-slurm"),
    ],
)
def test_two_clusters_are_needed(
    words: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=message):
        run(monkeypatch, *words)


LUSTRE = FileSystem("fs-00000001", "fs-00000001.fsx", "vpc-00000001", "abcd1234")
HOME = FileSystem("fs-00000002", "fs-00000002.fsx", "vpc-00000001", "")
OTHER = FileSystem("fs-00000003", "fs-00000003.fsx", "vpc-00000002", "efgh5678")
LINKED = (Link("/data", "old-data"),)


def storage(
    lustre: FileSystem | None, home: FileSystem | None = None, name: str = "old-data"
) -> Storage:
    return Storage("us-west-2", name, lustre, home, LINKED if lustre else ())


def test_homes_go_where_the_new_cluster_has_them(tmp_path: Path) -> None:
    on_lustre = load_cluster(cluster_file(tmp_path, "old"))
    home = {"lustre": {"capacity_gib": 1200}, "home": {"capacity_gib": 64}}
    with_home = load_cluster(cluster_file(tmp_path, "new", storage=home))

    both = trees.trees_of(on_lustre, with_home, storage(LUSTRE), storage(OTHER, HOME, "new-data"))
    assert [(tree.device, tree.below, tree.target, tree.left_out) for tree in both] == [
        ("fs-00000001.fsx@tcp:/abcd1234", "home", "/home", ()),
        ("fs-00000001.fsx@tcp:/abcd1234", "", "/fsx", ("/data", "/home")),
    ]
    back = trees.trees_of(
        with_home, on_lustre, storage(LUSTRE, HOME), storage(OTHER, None, "new-data")
    )
    assert [(tree.kind, tree.device, tree.target) for tree in back] == [
        ("lustre", "fs-00000001.fsx@tcp:/abcd1234", "/fsx"),
        ("nfs", "fs-00000002.fsx:/fsx", "/fsx/home"),
    ]
    # A file system that the new file names as existing needs no copy.
    assert trees.trees_of(on_lustre, with_home, storage(LUSTRE), storage(LUSTRE, HOME)) == []
    eks = load_cluster(Path("clusters/eks.yaml"))
    assert trees.trees_of(on_lustre, eks, storage(LUSTRE), storage(OTHER)) == []


class Account:
    """Two clusters in one account: their stacks, file systems, links and buckets."""

    def __init__(self) -> None:
        self.aws = AnsweringAws("us-west-2")
        self.objects = {
            "old-data": {"a": 1, "b/ß": 2, "c": 3},
            "new-data": {"a": 1, "c": 4, "z": 9},
        }
        self.tasks: dict[str, dict[str, Any]] = {}
        self.ends = ["EXECUTING", "SUCCEEDED"]
        self.failed = 0
        answer = self.aws.answer
        answer("cloudformation", "DescribeStacks", self._stack)
        answer("fsx", "DescribeFileSystems", self._file_system)
        answer("fsx", "DescribeDataRepositoryAssociations", self._links)
        answer("fsx", "CreateDataRepositoryTask", self._create)
        answer("fsx", "DescribeDataRepositoryTasks", self._task)
        answer("s3", "ListObjectsV2", self._list)

    def _stack(self, parameters: Parameters) -> dict[str, Any]:
        name = parameters["StackName"].partition("-")[0]
        outputs = {"DataBucketName": f"{name}-data", "LustreFileSystemId": f"fs-0000000{name}"}
        listed = [{"OutputKey": key, "OutputValue": value} for key, value in outputs.items()]
        stack = {"StackName": parameters["StackName"], "StackStatus": "CREATE_COMPLETE"}
        return {
            "Stacks": [
                {**stack, "CreationTime": datetime(2026, 11, 1, tzinfo=UTC), "Outputs": listed}
            ]
        }

    def _file_system(self, parameters: Parameters) -> dict[str, Any]:
        (id_,) = parameters["FileSystemIds"]
        lustre = {"MountName": "abcd1234"}
        return {
            "FileSystems": [
                {
                    "FileSystemId": id_,
                    "DNSName": f"{id_}.fsx",
                    "VpcId": "vpc-00000001",
                    "LustreConfiguration": lustre,
                }
            ]
        }

    def _links(self, parameters: Parameters) -> dict[str, Any]:
        (id_,) = parameters["Filters"][0]["Values"]
        name = id_.removeprefix("fs-0000000")
        return {
            "Associations": [{"FileSystemPath": "/data", "DataRepositoryPath": f"s3://{name}-data"}]
        }

    def _create(self, parameters: Parameters) -> dict[str, Any]:
        id_ = f"task-0123456789abcde{len(self.tasks)}"
        self.tasks[id_] = {"looks": 0, **parameters}
        return {"DataRepositoryTask": self._described(id_)}

    def _task(self, parameters: Parameters) -> dict[str, Any]:
        (id_,) = parameters["TaskIds"]
        self.tasks[id_]["looks"] += 1
        return {"DataRepositoryTasks": [self._described(id_)]}

    def _described(self, id_: str) -> dict[str, Any]:
        task = self.tasks[id_]
        state = self.ends[min(max(task["looks"] - 1, 0), len(self.ends) - 1)]
        counts = {"TotalCount": 12, "SucceededCount": 12 - self.failed, "FailedCount": self.failed}
        return {
            "TaskId": id_,
            "Lifecycle": state,
            "Type": task["Type"],
            "CreationTime": datetime(2026, 11, 1, tzinfo=UTC),
            "Status": counts,
        }

    def _list(self, parameters: Parameters) -> dict[str, Any]:
        objects = self.objects[parameters["Bucket"]]
        return {"Contents": [{"Key": key, "Size": objects[key]} for key in sorted(objects)]}


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Account:
    """Two clusters with one linked Lustre each, between which only data moves."""
    found = Account()
    monkeypatch.setattr(steps, "open_session", lambda region, profile: found.aws.session)
    monkeypatch.setattr(trees, "trees_of", lambda *_: [])
    monkeypatch.setattr(steps, "_accounting_step", lambda *_: _nothing())
    monkeypatch.setattr(command, "check_programs", lambda: None)
    monkeypatch.setattr(bucket, "POLL_SECONDS", 0.0)

    def sync(source: Storage, target: Storage, *, profile: str | None) -> None:
        found.objects[target.bucket] |= found.objects[source.bucket]

    monkeypatch.setattr(bucket, "copy_objects", sync)
    monkeypatch.chdir(tmp_path)
    return found


def _nothing() -> steps.Step:
    return steps.Step("accounting", "", steps.Found, lambda: "nothing is missing")


def words(tmp_path: Path, *more: str) -> list[str]:
    old, new = (str(cluster_file(tmp_path, name)) for name in ("old", "new"))
    return ["--from", old, "--to", new, *more]


def test_a_plan_changes_nothing_and_an_interrupted_copy_continues(
    account: Account, tmp_path: Path, run_json: RunJson
) -> None:
    planned = run_json(command.main, *words(tmp_path))
    assert planned["exit_status"] == command.SOMETHING_LEFT, planned
    left = {step["name"]: step["left"] for step in planned["result"]["steps"]}
    assert left["export"] == ["export has not run"]
    assert left["objects"] == ["2 of 3 objects are missing or differ: 'b/ß', 'c'"]
    assert account.tasks == {}
    assert not Path("migrations").exists()

    account.failed = 1
    failed = run_json(command.main, *words(tmp_path, "--apply", "--yes"))
    assert (
        "export: task task-0123456789abcde0 of FSx is SUCCEEDED, and 1 files failed"
        in failed["error"]
    )

    account.failed = 0
    account.ends = ["EXECUTING", "EXECUTING", "SUCCEEDED"]
    done = run_json(command.main, *words(tmp_path, "--apply", "--yes"))
    assert done["exit_status"] == 0, done
    assert [
        (task["Type"], task["FileSystemId"], task["Paths"]) for task in account.tasks.values()
    ] == [
        (bucket.EXPORT, "fs-0000000old", ["/data"]),
        (bucket.EXPORT, "fs-0000000old", ["/data"]),
        (bucket.IMPORT, "fs-0000000new", ["/data"]),
    ]
    assert [step["left"] for step in done["result"]["steps"]] == [[], [], [], []]
    assert any("make teardown" in text for text in done["result"]["by_hand"])
    refused = run_json(command.main, *words(tmp_path, "--status", "--apply"))
    assert refused["exit_status"] == 2 and "--status, --apply: the record" in refused["error"]
    status = run_json(command.main, *words(tmp_path, "--status"))
    assert status["result"]["applied"] is False
    assert {step["name"]: step["result"] for step in status["result"]["steps"]} == {
        "export": "12 files",
        "objects": "all objects are there, with equal sizes",
        "import": "12 files",
        "accounting": "nothing is missing",
    }


def test_a_task_of_an_earlier_call_is_waited_for(account: Account, tmp_path: Path) -> None:
    record = open_record(tmp_path / "record.json", "old", "new")
    fsx = account.aws.session.client("fsx")
    old = storage(LUSTRE)
    account.tasks["task-0123456789abcde9"] = {"looks": 0, "Type": bucket.EXPORT}
    record.start_task("export", "task-0123456789abcde9")
    again = open_record(tmp_path / "record.json", "old", "new")
    assert bucket.run_task(fsx, again, "export", bucket.EXPORT, old) == "12 files"
    assert list(account.tasks) == ["task-0123456789abcde9"]
    with pytest.raises(ValueError, match="is that of 'old' to 'new'"):
        open_record(tmp_path / "record.json", "old", "third")
    (tmp_path / "record.json").write_text(json.dumps({"begun": True}))
    with pytest.raises(ValueError, match="no record of a migration"):
        open_record(tmp_path / "record.json", "old", "new")


def test_copies_stay_within_s3() -> None:
    typed = bucket.sync_command(storage(LUSTRE), storage(OTHER, None, "new-data"), profile="lab")
    assert typed[:5] == ["aws", "s3", "sync", "s3://old-data", "s3://new-data"]
    assert typed[-2:] == ["--profile", "lab"]
