"""Files that a space of Studio refuses, with its messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import slurm_login
import slurm_session
from space import Space, SpaceError
from tests.lifecycle.node import StandIns

PERSON = {"user": "ada", "uid": 2001, "gid": 3000, "home": "/home/ada", "login_secret": "arn:login"}
SECRET = {
    "version": "slurm 25.11.1",
    "client": "s3://bucket/studio-login/1.tar.gz",
    "client_sha256": "0" * 64,
    "munge_key": "",
    "hosts": {},
    "configuration": {},
}


@pytest.fixture
def space(tmp_path: Path) -> Space:
    settings = {
        "region": "us-west-2",
        "cluster_name": "esm2-slurm",
        "controller_group": "controller",
    }
    return Space(
        {**settings, "document": "esm2-slurm-studio-ada"}, root=tmp_path / "root", home=tmp_path
    )


def published(stand_ins: StandIns, secret: str) -> None:
    archive = '[[ $1 != s3 ]] || echo "something else" > "$5"'
    stand_ins.command("aws", f"[[ $1 != secretsmanager ]] || echo '{secret}'\n{archive}")


def test_programs_of_another_checksum_are_not_unpacked(space: Space, stand_ins: StandIns) -> None:
    published(stand_ins, json.dumps(SECRET))
    with pytest.raises(SpaceError, match=f"has SHA-256 [0-9a-f]+, not {'0' * 64}"):
        slurm_login.set_up(space, PERSON, "/fsx/studio/users/ada")
    assert not space.root.exists()


def test_what_the_controller_has_not_published_is_waited_for(
    space: Space, stand_ins: StandIns
) -> None:
    published(stand_ins, "what Secrets Manager makes up")
    with pytest.raises(SpaceError, match="the controller has published nothing yet"):
        slurm_login.set_up(space, PERSON, "/fsx/studio/users/ada")


def test_reports_another_version_of_slurm(
    space: Space, stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(stand_ins, json.dumps(SECRET))
    for step in ("_unpack_client", "_configure", "_add_user", "_start_munge"):
        monkeypatch.setattr(slurm_login, step, lambda *arguments: None)
    run = space.run
    found = "slurm 22.05.8\n"
    monkeypatch.setattr(space, "run", lambda *c: found if c[0].endswith("/sinfo") else run(*c))
    with pytest.raises(
        SpaceError, match=r"Slurm is slurm 22\.05\.8 here and slurm 25\.11\.1 on the contr"
    ):
        slurm_login.set_up(space, PERSON, "/fsx/studio/users/ada")


@pytest.mark.parametrize(
    ("status", "runs"), [("Running", True), ("Pending", False), ("Failure", False)]
)
def test_jobs_go_to_a_controller_that_runs(
    status: str, runs: bool, space: Space, stand_ins: StandIns
) -> None:
    node = {
        "InstanceId": "i-0",
        "InstanceGroupName": "controller",
        "InstanceStatus": {"Status": status},
    }
    cluster = json.dumps({"ClusterArn": "arn:aws:sagemaker:us-west-2:1:cluster/abc"})
    nodes = json.dumps({"ClusterNodeSummaries": [node]})
    stand_ins.command("aws", f"[[ $2 == describe-cluster ]] && echo '{cluster}' || echo '{nodes}'")
    if runs:
        assert "sagemaker-cluster:abc_controller-i-0" in slurm_session.start_session(space, "e30=")
    else:
        with pytest.raises(SpaceError, match=r"controller \(group controller\) is not running"):
            slurm_session.start_session(space, "e30=")
