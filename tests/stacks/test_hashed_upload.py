"""The prefix of an upload: the contents decide it, and nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from constructs.hashed_upload import content_hash
from tests.stacks.synthesized import (
    CLUSTER_FILES,
    REPOSITORY,
    assembly,
    load,
    read_templates,
    resources,
    synthesize,
    templates,
)


def folder_with(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


FILES = {"run.sh": b"echo\n", "lib/a.py": b"a\n", "lib/b.py": b"b\n"}


def test_order_modes_times_and_place_do_not_count(tmp_path: Path) -> None:
    one = folder_with(tmp_path / "one", FILES)
    other = folder_with(tmp_path / "other", dict(reversed(FILES.items())))
    (other / "run.sh").chmod(0o700)
    os.utime(other / "lib/a.py", (0, 0))
    folder_with(other, {"__pycache__/a.pyc": b"x", "lib/__pycache__/b.pyc": b"y"})
    assert content_hash(one, {}) == content_hash(other, {})


def test_hash_is_the_same_on_every_machine(tmp_path: Path) -> None:
    assert content_hash(folder_with(tmp_path, FILES), {"settings.env": "A=1\n"}) == "6e63185b6a4dfebc"


@pytest.mark.parametrize(
    "files",
    [
        FILES | {"run.sh": b"echo \n"},
        FILES | {"run.sh": b"echo\r\n"},
        {"start.sh": FILES["run.sh"]} | {name: FILES[name] for name in ("lib/a.py", "lib/b.py")},
        {"run.sh": FILES["run.sh"], "lib/a.py": b"b\n", "lib/b.py": b"a\n"},
        FILES | {"empty": b""},
    ],
    ids=["content", "line ends", "name", "contents exchanged", "one more"],
)
def test_contents_and_names_count(tmp_path: Path, files: dict[str, bytes]) -> None:
    one, other = folder_with(tmp_path / "one", FILES), folder_with(tmp_path / "other", files)
    assert content_hash(one, {}) != content_hash(other, {})


def test_extra_files_count_like_the_folder_s(tmp_path: Path) -> None:
    whole = folder_with(tmp_path / "whole", FILES)
    rest = folder_with(tmp_path / "rest", {name: FILES[name] for name in ("run.sh", "lib/a.py")})
    assert content_hash(whole, {}) == content_hash(rest, {"lib/b.py": "b\n"})


@pytest.mark.parametrize("file", CLUSTER_FILES)
def test_settings_hold_no_value_of_the_deployment(file: str) -> None:
    """Markers would be filled in at deployment, when the hash is long written."""
    for upload in resources(templates(file)["SlurmHyperPodStack"], "Custom::CDKBucketDeployment").values():
        assert all(markers == {} for markers in upload["Properties"].get("SourceMarkers", []))


@pytest.mark.parametrize("file", CLUSTER_FILES)
def test_settings_and_scripts_are_what_is_uploaded(file: str) -> None:
    folder = assembly(file)
    assets = json.loads((folder / "SlurmHyperPodStack.assets.json").read_text())["files"]
    uploaded = {
        path.relative_to(folder / asset["source"]["path"]).as_posix(): path
        for asset in assets.values()
        if asset["source"]["packaging"] == "zip" and (folder / asset["source"]["path"]).is_dir()
        for path in (folder / asset["source"]["path"]).rglob("*")
        if path.is_file()
    }
    cluster = load(file)
    assert uploaded["settings.env"].read_text() == (
        f"LUSTRE_MOUNT_PATH={cluster.storage.lustre.mount_path}\n"
        f"HOME_MOUNT_PATH={'/home' if cluster.storage.home else ''}\n"
    )
    for script in (REPOSITORY / "lifecycle" / "slurm").iterdir():
        assert uploaded[script.name].read_bytes() == script.read_bytes()
    assert "esm2/train.py" in uploaded
    assert not [name for name in uploaded if "__pycache__" in name]


def test_a_setting_of_the_file_changes_the_scripts_prefix_alone() -> None:
    def prefixes(stacks: dict[str, dict]) -> list[str]:  # type: ignore[type-arg]
        uploads = resources(stacks["SlurmHyperPodStack"], "Custom::CDKBucketDeployment").values()
        return sorted(upload["Properties"]["DestinationBucketKeyPrefix"] for upload in uploads)

    cluster = load("clusters/slurm.yaml", storage={"lustre": {"mount_path": "/lustre"}})
    other = prefixes(read_templates(synthesize(cluster)))
    usual = prefixes(templates("clusters/slurm.yaml"))
    assert other[0] != usual[0] and other[0].startswith("lifecycle/")
    assert other[1] == usual[1]


def test_scripts_have_unix_line_ends() -> None:
    """A carriage return in the first line makes a script that no node can run."""
    for script in (REPOSITORY / "lifecycle").rglob("*"):
        if script.is_file():
            assert b"\r" not in script.read_bytes(), script
