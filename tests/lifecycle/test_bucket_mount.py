"""The data bucket is mounted by a service, if the cluster file has a path for it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from node_setup.failure import SetupError
from node_setup.node import Node
from node_setup.steps import bucket_mount
from tests.lifecycle.node import StandIns, node_of

BUCKET = "lab-proteins"
UNIT = "etc/systemd/system/data-bucket.service"


def node_with_bucket(folder: Path, path: str | None = "/data") -> Node:
    node = node_of(folder, bucket_mount_path=path)
    bucket = BUCKET if path else None
    node.deployment = dataclasses.replace(node.deployment, data_bucket=bucket)
    return node


@pytest.fixture
def commands(stand_ins: StandIns) -> StandIns:
    stand_ins.command("systemctl", '[[ "$1" != is-active ]] || exit 3')
    stand_ins.command("mount-s3")
    stand_ins.command("findmnt", "echo mountpoint-s3")
    return stand_ins


def test_the_bucket_is_mounted_and_unmounted(tmp_path: Path, commands: StandIns) -> None:
    node = node_with_bucket(tmp_path)
    bucket_mount.apply(node)
    program = commands.folder / "bin/mount-s3"
    text = (tmp_path / "root" / UNIT).read_text()
    assert f"ExecStart={program} {BUCKET} /data --region us-west-2 --allow-other" in text
    assert "@" not in text and "systemctl restart data-bucket.service" in commands.calls
    bucket_mount.apply(node_with_bucket(tmp_path, None))
    assert not (tmp_path / "root" / UNIT).exists()
    assert any("disable --now --quiet data-bucket" in call for call in commands.calls)


def test_a_mount_of_something_else_is_an_error(tmp_path: Path, commands: StandIns) -> None:
    commands.command("findmnt", "exit 1")
    with pytest.raises(SetupError, match="/data is no mount of the bucket lab-proteins"):
        bucket_mount.apply(node_with_bucket(tmp_path))


def test_an_image_without_the_program_is_an_error(
    tmp_path: Path, commands: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SetupError, match="this image has no mount-s3"):
        bucket_mount.apply(node_with_bucket(tmp_path))
