"""Folder of a namespace in the memory of nodes: its objects, and the program that deletes leftovers."""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from pathlib import Path

import kubernetes_validate
import pytest

from config.resource_names import TRAINING_UID
from manifests.node_memory import (
    IN_MEMORY,
    LEFTOVER_MINUTES,
    deletion,
    memory_claim,
    memory_keeper,
    memory_volume,
)

NAMESPACES = ("hyperpod-ns-proteins", "hyperpod-ns-structure")


def test_kubernetes_knows_every_field_of_the_folders() -> None:
    objects = [memory_keeper(NAMESPACES)]
    objects += [make(name) for name in NAMESPACES for make in (memory_volume, memory_claim)]
    for made in objects:
        kubernetes_validate.validate(made, "1.34", strict=True)


def test_each_namespace_has_a_folder_of_its_own() -> None:
    paths = set()
    for namespace in NAMESPACES:
        volume = memory_volume(namespace)
        claim = memory_claim(namespace)
        assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
        owner = volume["spec"]["claimRef"]
        assert (owner["namespace"], owner["name"]) == (namespace, claim["metadata"]["name"])
        paths.add(volume["spec"]["hostPath"]["path"])
    assert paths == {f"{IN_MEMORY}/seqlm-{namespace}" for namespace in NAMESPACES}


def test_only_the_first_container_is_root() -> None:
    pod = memory_keeper(NAMESPACES)["spec"]["template"]["spec"]
    [create] = pod["initContainers"]
    [delete] = pod["containers"]
    assert create["securityContext"]["capabilities"]["add"] == ["CHOWN", "FOWNER"]
    assert delete["securityContext"]["runAsUser"] == TRAINING_UID
    assert delete["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    owned = f"chmod 0700 /node/seqlm-{NAMESPACES[0]} /node/seqlm-{NAMESPACES[1]} && chown 10001"
    assert owned in create["args"][0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder of a namespace with one of each kind; all but one are older than the limit."""
    for name in ("ended", "held", "recent", "never-locked"):
        (tmp_path / "space" / name / "step-00000005").mkdir(parents=True)
        if name != "never-locked":
            (tmp_path / "space" / name / "lock").touch()
    (tmp_path / "other/kept").mkdir(parents=True)
    (tmp_path / "space/link").symlink_to(tmp_path / "other/kept")
    long_ago = time.time() - 60 * (LEFTOVER_MINUTES + 2)
    for name in ("ended", "held", "never-locked"):
        os.utime(tmp_path / "space" / name, (long_ago, long_ago))
    os.utime(tmp_path / "space/link", (long_ago, long_ago), follow_symlinks=False)
    os.utime(tmp_path / "other/kept", (long_ago, long_ago))
    return tmp_path / "space"


def test_what_ended_jobs_have_left_is_deleted(folder: Path) -> None:
    """With the shell of this machine; busybox has the same programs."""
    with (folder / "held/lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        keeper = subprocess.Popen(["sh", "-uc", deletion(str(folder))])
        try:
            deadline = time.monotonic() + 60
            while (folder / "ended").exists() or (folder / "never-locked").exists():
                assert time.monotonic() < deadline and keeper.poll() is None
                time.sleep(0.02)
        finally:
            keeper.kill()
            keeper.wait()
    assert {path.name for path in folder.iterdir()} == {"held", "recent", "link"}
    assert (folder.parent / "other/kept").is_dir(), "links are not followed"
