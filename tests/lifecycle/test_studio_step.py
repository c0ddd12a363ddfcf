"""The step that does what Studio needs of Slurm's controller."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from config.studio_people import SUBMIT
from node_setup.node import Node
from node_setup.settings import Deployment, read_section
from node_setup.steps import studio
from tests.lifecycle.node import StandIns, deployment_document, node_of
from tests.lifecycle.services import Services, services

__all__ = ["services"]
QUEUES = {
    "requests_url": "https://sqs/requests.fifo",
    "acknowledgements_url": "https://sqs/acknowledgements",
}
SECRET = "arn:aws:secretsmanager:us-west-2:123456789012:secret:login"


def controller(
    folder: Path, wanted: dict[str, Any] | None, deployed: dict[str, Any] | None
) -> Node:
    node = node_of(folder, "controller", studio=wanted)
    path = folder / "deployment.json"
    path.write_text(json.dumps(deployment_document(studio=deployed)))
    return Node(node.host, node.facts, node.settings, read_section(path, Deployment))


def per_profile(*, login: bool = False) -> dict[str, Any]:
    return {"partitions": "per_profile", "shared_uids": [2001], "login_spaces": login}


def test_requests_are_answered_by_a_service(tmp_path: Path, services: Services) -> None:
    node = controller(tmp_path, per_profile(), {**QUEUES, "login_secret": None})
    studio.apply(node)
    unit = node.host.path("/etc/systemd/system/studio-partitions.service").read_text()
    assert "@" not in unit.replace("@system", "") and "ReadWritePaths=/fsx/studio\n" in unit
    assert (
        "--requests https://sqs/requests.fifo --acknowledgements https://sqs/acknowledgements"
        in unit
    )
    assert services.restarts == ["studio-partitions.service"]
    assert node.host.path("/fsx/studio").is_dir()
    # Where sessions of this cluster's documents look for it, and no other's.
    submit = SUBMIT.format(cluster=node.settings.cluster_name)
    for program in ("studio_partitions.py", Path(submit).name):
        assert node.host.path(f"/usr/local/lib/node-setup/{program}").is_file()
    node.changes = []
    studio.apply(node)
    assert node.changes == [], "a second time"


def test_the_folder_that_all_share_is_made_at_once(
    tmp_path: Path, services: Services, stand_ins: StandIns
) -> None:
    stand_ins.command("python3")
    wanted = {"partitions": "shared", "shared_uids": [2001, 2002], "login_spaces": False}
    nothing = {"requests_url": None, "acknowledgements_url": None, "login_secret": None}
    studio.apply(controller(tmp_path, wanted, nothing))
    [call] = [call for call in stand_ins.calls if call.startswith("python3")]
    assert call.endswith(f"shared --root {tmp_path}/root/fsx/studio --uids 2001,2002")
    assert services.restarts == []


def test_slurm_is_published_for_login_spaces(
    tmp_path: Path, services: Services, stand_ins: StandIns
) -> None:
    node = controller(tmp_path, per_profile(login=True), {**QUEUES, "login_secret": SECRET})
    studio.apply(node)
    unit = node.host.path("/etc/systemd/system/studio-login.service").read_text()
    assert f"--secret {SECRET}" in unit and "--region us-west-2" in unit
    assert "studio-login.timer" in services.restarts
    assert "systemctl start studio-login.service" in stand_ins.calls
    assert node.warnings == []


def test_without_a_published_slurm_the_node_comes_all_the_same(
    tmp_path: Path, services: Services, stand_ins: StandIns
) -> None:
    node = controller(tmp_path, per_profile(login=True), {**QUEUES, "login_secret": SECRET})
    body = (
        (stand_ins.folder / "bin/systemctl")
        .read_text()
        .replace("restart)", "start) exit 1 ;;\n    restart)")
    )
    stand_ins.command("systemctl", body.split("\n", 2)[2])
    studio.apply(node)
    assert node.warnings == ["nothing is published for login spaces of Studio: the last line"]


def test_what_the_file_no_longer_has_is_taken_back(tmp_path: Path, services: Services) -> None:
    studio.apply(controller(tmp_path, per_profile(login=True), {**QUEUES, "login_secret": SECRET}))
    node = controller(tmp_path, None, None)
    studio.apply(node)
    assert [change for change in node.changes if change.endswith(": removed")] == [
        "studio-login.timer: removed",
        "studio-login.service: removed",
        "studio-partitions.service: removed",
    ]
    assert node.host.path("/fsx/studio").is_dir(), "people's files stay"


def test_a_second_controller_leaves_it_to_the_first(tmp_path: Path, services: Services) -> None:
    node = controller(tmp_path, per_profile(), {**QUEUES, "login_secret": None})
    facts = type(node.facts)(**{**vars(node.facts), "controller_addresses": ("10.0.0.99",)})
    studio.apply(Node(node.host, facts, node.settings, node.deployment))
    assert services.restarts == []
