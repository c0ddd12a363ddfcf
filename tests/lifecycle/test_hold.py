"""A worker gets no jobs until it is set up, and only the steps that drained it resume it."""

from __future__ import annotations

from pathlib import Path

import pytest

from node_setup.failure import SetupError
from node_setup.node import Node
from node_setup.steps import hold
from tests.lifecycle.node import StandIns, node_of
from tests.lifecycle.slurm_commands import SlurmCommands


@pytest.fixture
def node(tmp_path: Path, slurm: SlurmCommands) -> Node:
    return node_of(tmp_path)


def updates(stand_ins: StandIns) -> list[str]:
    return [call for call in stand_ins.calls if call.startswith("scontrol update")]


@pytest.mark.parametrize(
    "state",
    ["IDLE", "MIXED", "ALLOCATED", "IDLE+NOT_RESPONDING", "UNKNOWN+NOT_RESPONDING", "DOWN*"],
)
def test_a_node_in_service_or_on_its_way_is_drained(
    node: Node, slurm: SlurmCommands, state: str
) -> None:
    slurm.state = state
    hold.hold(node)
    assert (slurm.state, slurm.reason) == (f"{state}+DRAIN", hold.IN_PROGRESS)
    assert node.changes == []


def test_a_node_that_was_replaced_is_drained_before_slurm_brings_it_back(
    node: Node, slurm: SlurmCommands
) -> None:
    slurm.state = "DOWN+NOT_RESPONDING"
    slurm.answers("reason", "Not responding")
    hold.hold(node)
    assert slurm.reason == hold.IN_PROGRESS
    hold.release(node)
    assert (slurm.state, slurm.reason) == ("IDLE", "")


def test_devices_that_are_back_give_the_node_back(node: Node, slurm: SlurmCommands) -> None:
    """Slurm drains a node that registers with too few, and leaves it so."""
    slurm.state = "IDLE+DRAIN"
    slurm.answers("reason", "gres/gpu count reported lower than configured (1 < 2)")
    hold.hold(node)
    assert slurm.reason == hold.IN_PROGRESS
    hold.release(node)
    assert slurm.state == "IDLE"


def test_holding_twice_asks_for_nothing(node: Node, stand_ins: StandIns) -> None:
    hold.hold(node)
    hold.hold(node)
    assert len(updates(stand_ins)) == 1


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("IDLE+DRAIN", "disk looks odd"),
        ("DOWN", "kernel panic"),
        ("IDLE+FAIL", "Action:Replace"),
    ],
)
def test_what_another_took_out_of_service_stays_so(
    node: Node, slurm: SlurmCommands, stand_ins: StandIns, state: str, reason: str
) -> None:
    slurm.state = state
    slurm.answers("reason", reason)
    hold.hold(node)
    hold.keep_held(node, failed_step="users")
    hold.release(node)
    assert updates(stand_ins) == []
    assert reason in node.warnings[0]


def test_a_held_node_is_given_back(node: Node, slurm: SlurmCommands) -> None:
    hold.hold(node)
    hold.release(node)
    assert (slurm.state, node.changes, node.warnings) == ("IDLE", [], [])


def test_a_node_that_takes_no_jobs_afterwards_fails(node: Node, slurm: SlurmCommands) -> None:
    hold.hold(node)
    slurm.answers("after_resume", "IDLE+DRAIN+INVALID_REG")
    with pytest.raises(SetupError, match=r"takes no jobs .*IDLE\+DRAIN\+INVALID_REG"):
        hold.release(node)


def test_a_node_outside_the_topology_is_a_warning(node: Node, slurm: SlurmCommands) -> None:
    slurm.configure(TopologyPlugin="topology/tree")
    slurm.answers("topology", "SwitchName=s1 Level=0 LinkSpeed=1 Nodes=ip-10-0-0-[29,32-40]\n")
    slurm.answers("hostnames", "ip-10-0-0-29\nip-10-0-0-32\n")
    hold.release(node)
    assert "ip-10-0-0-31 is not in the topology that topology/tree needs" in node.warnings[0]


def test_a_topology_that_rejects_jobs_is_a_warning(
    node: Node, slurm: SlurmCommands, stand_ins: StandIns
) -> None:
    slurm.configure(TopologyPlugin="topology/tree")
    slurm.answers("topology", "SwitchName=s1 Level=0 LinkSpeed=1 Nodes=ip-10-0-0-[31-32]\n")
    slurm.answers("hostnames", "ip-10-0-0-31\nip-10-0-0-32\n")
    hold.release(node)
    assert node.warnings == []
    refusal = "allocation failure: Requested topology configuration is not available"
    stand_ins.command("sbatch", f"echo '{refusal}' >&2; exit 1")
    hold.release(node)
    assert f"jobs on this node are rejected: {refusal}" in node.warnings[0]


def test_other_refusals_are_no_fault_of_the_node(
    node: Node, slurm: SlurmCommands, stand_ins: StandIns
) -> None:
    slurm.configure(TopologyPlugin="topology/tree")
    slurm.answers("topology", "SwitchName=s1 Level=0 LinkSpeed=1 Nodes=ip-10-0-0-31\n")
    slurm.answers("hostnames", "ip-10-0-0-31\n")
    stand_ins.command("sbatch", "echo 'Requested node configuration is not available' >&2; exit 1")
    hold.release(node)
    assert node.warnings == []


def test_a_failed_step_is_named_in_the_reason(node: Node, slurm: SlurmCommands) -> None:
    hold.hold(node)
    hold.keep_held(node, failed_step="users")
    assert slurm.reason == "node-setup: step users failed; see /var/log/provision/provisioning.log"
    hold.hold(node)
    assert slurm.reason == hold.IN_PROGRESS


def test_keeping_a_node_held_never_raises(
    node: Node, slurm: SlurmCommands, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.state = ""
    hold.keep_held(node, failed_step="users")
    assert "could not be drained, and may get jobs" in capsys.readouterr().out


def test_only_workers_are_held(tmp_path: Path, slurm: SlurmCommands, stand_ins: StandIns) -> None:
    hold.keep_held(node_of(tmp_path, "controller"), failed_step="users")
    assert stand_ins.calls == []


def test_a_controller_that_never_answers_fails(node: Node, slurm: SlurmCommands) -> None:
    slurm.answers("ping", "Slurmctld(primary) at ip-10-0-0-10 is DOWN\n")
    with pytest.raises(
        SetupError, match=r"does not answer after 600 s: .*is DOWN.*systemctl status slurmctld"
    ):
        hold.hold(node)


def test_one_controller_of_several_is_enough(node: Node, slurm: SlurmCommands) -> None:
    slurm.answers("ping", "Slurmctld(primary) at a is DOWN\nSlurmctld(backup) at b is UP\n")
    hold.hold(node)
    assert slurm.reason == hold.IN_PROGRESS


def test_a_node_that_slurm_does_not_know_fails(node: Node, slurm: SlurmCommands) -> None:
    slurm.state = ""
    with pytest.raises(SetupError, match=r"does not know ip-10-0-0-31 .*slurm\.conf"):
        hold.hold(node)
