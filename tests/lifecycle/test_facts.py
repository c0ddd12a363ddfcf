"""Facts about a node from the platform's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from node_setup.facts import NodeFacts, read_facts
from node_setup.failure import SetupError
from node_setup.host import Host
from node_setup.settings import Settings, read_section
from tests.lifecycle.node import ADDRESSES, StandIns, resource_config, settings_document

CONFIG = "opt/ml/config/resource_config.json"
PARAMETERS = "opt/ml/config/provisioning_parameters.json"


class Platform:
    def __init__(self, folder: Path, commands: StandIns) -> None:
        self.folder = folder
        self.commands = commands
        (folder / "root/opt/ml/config").mkdir(parents=True)
        (folder / "settings.json").write_text(json.dumps(settings_document()))
        self.write(resource_config())

    def write(self, document: Any, name: str = CONFIG) -> None:
        (self.folder / "root" / name).write_text(
            document if isinstance(document, str) else json.dumps(document)
        )

    def facts(self, address: str, patience: float = 0) -> NodeFacts:
        self.commands.command(
            "hostname", f'[[ "$1" == --short ]] && echo ip-x || echo "172.17.0.1 {address} "'
        )
        return read_facts(
            Host(self.folder / "root", patience=patience),
            read_section(self.folder / "settings.json", Settings),
        )

    def fails(self, address: str) -> str:
        with pytest.raises(SetupError) as caught:
            self.facts(address)
        return str(caught.value)


@pytest.fixture
def platform(tmp_path: Path, stand_ins: StandIns) -> Platform:
    return Platform(tmp_path, stand_ins)


@pytest.mark.parametrize(
    ("group", "role"), [("controller", "controller"), ("login", "login"), ("workers", "worker")]
)
def test_the_role_is_that_of_the_group_with_this_address(
    platform: Platform, group: str, role: str
) -> None:
    facts = platform.facts(ADDRESSES[group])
    assert (facts.group, facts.role, facts.address, facts.host_name) == (
        group,
        role,
        ADDRESSES[group],
        "ip-x",
    )
    assert facts.is_primary_controller == (role == "controller")
    assert facts.controller_addresses == ("10.0.0.10",)


def test_groups_without_instances_are_passed_over(platform: Platform) -> None:
    document = resource_config()
    document["InstanceGroups"][1]["Instances"] = None
    document["InstanceGroups"].append({"Name": "later", "InstanceType": "ml.p5.48xlarge"})
    platform.write(document)
    assert platform.facts(ADDRESSES["workers"]).group == "workers"


def test_of_several_controllers_one_is_primary(platform: Platform) -> None:
    document = resource_config()
    controllers = document["InstanceGroups"][0]["Instances"]
    controllers.append({**controllers[0], "CustomerIpAddress": "10.0.0.11"})
    document["SlurmConfig"] = {
        "PrimaryControllerIp": "10.0.0.11",
        "SecondaryControllerIps": ["10.0.0.10"],
    }
    platform.write(document)
    assert platform.facts("10.0.0.11").is_primary_controller
    assert not platform.facts("10.0.0.10").is_primary_controller
    assert platform.facts(ADDRESSES["workers"]).controller_addresses == ("10.0.0.11", "10.0.0.10")
    document["SlurmConfig"]["SecondaryControllerIps"] = "10.0.0.10,10.0.0.12"
    platform.write(document)
    assert platform.facts("10.0.0.10").controller_addresses == (
        "10.0.0.11",
        "10.0.0.10",
        "10.0.0.12",
    )


def test_without_slurms_part_the_controllers_are_those_of_the_group(platform: Platform) -> None:
    document = resource_config()
    del document["SlurmConfig"]
    platform.write(document)
    assert platform.facts("10.0.0.10").is_primary_controller


def test_a_workers_copy_may_name_no_controller(platform: Platform) -> None:
    document = resource_config()
    del document["SlurmConfig"]
    del document["InstanceGroups"][0]
    platform.write(document)
    facts = platform.facts(ADDRESSES["workers"])
    assert facts.controller_addresses == () and not facts.is_primary_controller


def test_a_stale_copy_without_this_node_fails_after_its_time(platform: Platform) -> None:
    message = platform.fails("10.0.0.99")
    assert "has none of this node's addresses 172.17.0.1, 10.0.0.99" in message
    assert "after 300 s" in message
    assert "the copy is stale" in message


def test_an_entry_that_comes_late_is_waited_for(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform.write('{"InstanceGroups": [{"Na')
    monkeypatch.setattr(Host, "sleep", lambda *_: platform.write(resource_config()))
    assert platform.facts(ADDRESSES["login"], patience=1).role == "login"


def test_of_two_instances_with_one_address_the_later_is_this_one(platform: Platform) -> None:
    document = resource_config()
    workers = document["InstanceGroups"][2]["Instances"]
    workers.append({**workers[0], "InstanceId": "i-new"})
    platform.write(document)
    assert platform.facts(ADDRESSES["workers"]).instance_id == "i-new"


def test_one_address_in_two_groups_fails(platform: Platform) -> None:
    document = resource_config()
    document["InstanceGroups"][1]["Instances"][0]["CustomerIpAddress"] = ADDRESSES["workers"]
    platform.write(document)
    assert "in several groups: login, workers" in platform.fails(ADDRESSES["workers"])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"InstanceGroups": [{"Na', "is truncated or not JSON"),
        ("", "is truncated or not JSON"),
        ("[]", "has a JSON list, expected an object"),
        (
            '{"InstanceGroups": [{"Instances": [{"InstanceId": "i-1"}]}]}',
            "has another shape than HyperPod's",
        ),
        ('{"InstanceGroups": ["workers"]}', "has another shape than HyperPod's"),
        ("{}", "has none of this node's addresses"),
    ],
)
def test_a_damaged_file_fails_after_its_time(platform: Platform, text: str, why: str) -> None:
    platform.write(text)
    assert why in platform.fails(ADDRESSES["workers"])


def test_a_missing_file_fails(platform: Platform) -> None:
    (platform.folder / "root" / CONFIG).unlink()
    assert "cannot be read: No such file or directory" in platform.fails(ADDRESSES["workers"])


def test_an_unknown_group_fails_with_those_there_are(platform: Platform) -> None:
    document = resource_config()
    document["InstanceGroups"][2]["Name"] = "p5"
    platform.write(document)
    message = platform.fails(ADDRESSES["workers"])
    assert (
        "group p5 of this node is unknown; the cluster file has controller, login, workers"
        in message
    )


@pytest.mark.parametrize(
    "parameters",
    [
        {"controller_group": "workers"},
        {"controller_group": "controller", "login_group": "workers"},
    ],
)
def test_a_role_that_the_platform_sees_otherwise_fails(
    platform: Platform, parameters: dict[str, Any]
) -> None:
    platform.write({"version": "1.0.0", "workload_manager": "slurm", **parameters}, PARAMETERS)
    assert (
        f"group workers is worker in the cluster file and {'login' if 'login_group' in parameters else 'co'}"
        in (platform.fails(ADDRESSES["workers"]))
    )


@pytest.mark.parametrize(
    "parameters",
    [
        {"controller_group": "controller", "worker_groups": [{"instance_group_name": "workers"}]},
        {"controller_group": "controller", "worker_groups": None},
        {},
    ],
)
def test_a_platform_that_agrees_or_does_not_say_passes(
    platform: Platform, parameters: dict[str, Any]
) -> None:
    platform.write(parameters, PARAMETERS)
    assert platform.facts(ADDRESSES["workers"]).role == "worker"


def test_a_cross_check_that_stays_damaged_fails(platform: Platform) -> None:
    platform.write("{", PARAMETERS)
    assert (
        "after 300 s: /opt/ml/config/provisioning_parameters.json is truncated"
        in platform.fails(ADDRESSES["workers"])
    )


def test_a_cross_check_that_is_half_written_is_waited_for(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform.write("{", PARAMETERS)
    monkeypatch.setattr(Host, "sleep", lambda *_: platform.write({}, PARAMETERS))
    assert platform.facts(ADDRESSES["login"], patience=1).role == "login"
