"""A controller whose Slurm answers passes; otherwise its log gives the cause."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from node_setup.failure import SetupError
from node_setup.node import Node
from node_setup.steps import accounting, slurm_controller
from tests.lifecycle.node import StandIns, node_of, settings_document
from tests.lifecycle.slurm_commands import SlurmCommands

# As slurmctld of 22.05 to 24.11 writes it.
MISMATCH = """[2026-11-21T15:00:00.000] slurmctld version 24.11.5 started on cluster hyperpod
[2026-11-21T15:00:00.100] fatal: CLUSTER ID MISMATCH.
slurmctld has been started with "ClusterID=4018"  from the state files in StateSaveLocation, but the DBD
thinks it should be "3073".
Running multiple clusters from a shared StateSaveLocation WILL CAUSE CORRUPTION.
Remove /var/spool/slurm/clustername to override this safety check if this is intentional.
"""


@pytest.fixture
def node(tmp_path: Path, slurm: SlurmCommands) -> Node:
    return node_of(tmp_path, "controller")


def write(node: Node, path: str, text: str) -> None:
    node.host.path(path).parent.mkdir(parents=True, exist_ok=True)
    node.host.path(path).write_text(text)


def down(node: Node, slurm: SlurmCommands, log: str, partition: str = "") -> str:
    slurm.answers("ping", "Slurmctld(primary) at ip-10-0-0-10 is DOWN\n")
    write(
        node,
        "/opt/slurm/etc/slurm.conf",
        "ClusterName=hyperpod # the service's\nSlurmctldLogFile=/var/log/slurm/ctld.log\n"
        f"StateSaveLocation=/var/spool/slurm\nNodeName=a CPUs=4\n{partition}",
    )
    write(node, "/var/log/slurm/ctld.log", log)
    with pytest.raises(SetupError) as caught:
        slurm_controller.verify(node)
    return str(caught.value)


def test_a_controller_as_it_should_be_passes(node: Node) -> None:
    slurm_controller.verify(node)
    assert node.changes == node.warnings == []


def test_a_partition_that_is_missing_is_a_warning(node: Node, tmp_path: Path) -> None:
    groups = settings_document()["instance_groups"]
    groups["workers"]["partition"] = "p5"
    other = node_of(tmp_path, "controller", instance_groups=groups)
    slurm_controller.verify(other)
    assert "Slurm has no partition p5, only all, gpu" in other.warnings[0]


def test_no_pyxis_at_all_is_one_warning(node: Node, slurm: SlurmCommands) -> None:
    slurm.answers("help", "  --usage\n")
    slurm_controller.verify(node)
    (warning,) = node.warnings
    assert "has no pyxis" in warning


def test_pyxis_that_is_named_and_does_not_load_fails(node: Node, slurm: SlurmCommands) -> None:
    slurm.answers("help", "  --usage\n")
    write(node, "/opt/slurm/etc/plugstack.conf", "include /opt/slurm/etc/plugstack.conf.d/*\n")
    write(
        node,
        "/opt/slurm/etc/plugstack.conf.d/pyxis.conf",
        "required /usr/lib/slurm/spank_pyxis.so\n",
    )
    with pytest.raises(SetupError, match="names pyxis, and srun has no option --container-image"):
        slurm_controller.verify(node)


def test_pyxis_that_came_after_slurmctlds_start_is_handed_out_once(
    node: Node, slurm: SlurmCommands, stand_ins: StandIns
) -> None:
    write(node, "/opt/slurm/etc/plugstack.conf", "include /opt/slurm/etc/plugstack.conf.d/*\n")
    write(node, "/opt/slurm/etc/plugstack.conf.d/pyxis.conf", "required spank_pyxis.so\n")
    slurm.configure(BOOT_TIME="2020-01-01T00:00:00")
    slurm_controller.verify(node)
    slurm_controller.verify(node)
    assert stand_ins.calls.count("scontrol reconfigure") == 1
    assert node.changes == ["slurmctld: has read plugstack.conf again, and handed it out"]
    write(node, "/opt/slurm/etc/plugstack.conf.d/other.conf", "optional other.so\n")
    os.utime(node.host.path("/opt/slurm/etc/plugstack.conf.d/other.conf"), (2**32, 2**32))
    slurm_controller.verify(node)
    assert stand_ins.calls.count("scontrol reconfigure") == 2


def test_pyxis_that_slurmctld_has_read_is_not_handed_out(
    node: Node, slurm: SlurmCommands, stand_ins: StandIns
) -> None:
    write(node, "/opt/slurm/etc/plugstack.conf", "required spank_pyxis.so\n")
    slurm.configure(BOOT_TIME="2099-01-01T00:00:00")
    slurm_controller.verify(node)
    assert "scontrol reconfigure" not in stand_ins.calls


@pytest.mark.parametrize(
    ("shown", "warned"), [("", True), ("SwitchName=s1 Level=0 Nodes=a\n", False)]
)
def test_a_plugin_without_a_topology_is_a_warning(
    node: Node, slurm: SlurmCommands, shown: str, warned: bool
) -> None:
    slurm.configure(TopologyPlugin="topology/tree")
    slurm.answers("topology", shown)
    slurm_controller.verify(node)
    assert [("topology/tree and no topology" in text) for text in node.warnings] == [True] * warned


def test_a_cluster_id_mismatch_says_which_file_to_move(node: Node, slurm: SlurmCommands) -> None:
    message = down(node, slurm, MISMATCH)
    assert (
        "slurmctld ends with CLUSTER ID MISMATCH: /var/spool/slurm and the accounting database"
        in message
    )
    assert "`sudo mv /var/spool/slurm/clustername /var/spool/slurm/clustername.old`" in message


def test_a_mismatch_before_the_last_start_is_over(node: Node, slurm: SlurmCommands) -> None:
    later = "[2026-11-21T15:01:00] slurmctld version 24.11.5 started on cluster hyperpod\n"
    message = down(node, slurm, MISMATCH + later)
    assert "does not answer after 600 s" in message


def test_reports_a_missing_topology_file(node: Node, slurm: SlurmCommands) -> None:
    log = "error: s_p_parse_file: cannot stat file /opt/slurm/etc/topology.conf: No such file, retrying\n"
    assert "waits for a topology file" in down(node, slurm, log)


def test_any_other_end_is_quoted(node: Node, slurm: SlurmCommands) -> None:
    log = "[15:00] fatal: CLUSTER NAME MISMATCH.\nslurmctld has been started\n[15:01] error: mpi: no\n"
    message = down(node, slurm, log)
    assert (
        "slurmctld ends with: CLUSTER NAME MISMATCH. slurmctld has been started. What to do"
        in message
    )


CRASHES = "LoadState=loaded\\nResult=core-dump\\nNRestarts=38\\nExecMainStatus=11\\n"
STARTS = "[2026-07-09T10:00:00.000] slurmctld version 25.11.1 started on cluster hyperpod(1)\n"


def test_a_crash_without_a_line_in_the_log_is_found_in_its_service(
    node: Node, slurm: SlurmCommands, stand_ins: StandIns
) -> None:
    stand_ins.command("systemctl", f"[[ $1 != show ]] || printf '{CRASHES}'")
    message = down(node, slurm, STARTS)
    assert "slurmctld does not stay up: signal 11, 38 restarts by systemd" in message
    assert "coredumpctl info slurmctld" in message and "security group" not in message


def test_a_crash_by_an_empty_topology_names_the_files(
    node: Node, slurm: SlurmCommands, stand_ins: StandIns
) -> None:
    stand_ins.command("systemctl", f"[[ $1 != show ]] || printf '{CRASHES}'")
    write(node, "/opt/slurm/etc/topology.yaml", "[]\n")
    write(node, "/opt/slurm/etc/topology.conf", "")
    partition = "PartitionName=gpu Nodes=a Default=YES Topology=tree State=UP\n"
    message = down(node, slurm, STARTS, partition)
    assert (
        "Partition gpu names the topology tree, and topology.yaml and topology.conf are empty"
        in message
    )
    assert "remove the empty topology files" in message


@pytest.mark.parametrize(
    "shown", ["LoadState=not-found\\nResult=success\\n", "LoadState=loaded\\nNRestarts=0\\n", ""]
)
def test_a_service_without_crashes_explains_nothing(
    node: Node, slurm: SlurmCommands, stand_ins: StandIns, shown: str
) -> None:
    stand_ins.command("systemctl", f"[[ $1 != show ]] || printf '{shown}'")
    assert "does not answer after 600 s" in down(node, slurm, STARTS)


def test_accounting_as_it_should_be_passes(node: Node) -> None:
    accounting.verify(node)
    assert node.changes == node.warnings == []


def test_jobs_that_are_not_recorded_fail(node: Node, slurm: SlurmCommands) -> None:
    slurm.configure(AccountingStorageType="accounting_storage/none")
    with pytest.raises(
        SetupError, match="AccountingStorageType is accounting_storage/none, expected"
    ):
        accounting.verify(node)


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        ("other|10.0.0.9", "registered clusters: other"),
        ("hyperpod|", "slurmctld has not connected to slurmdbd"),
        ("", "registered clusters: none"),
    ],
)
def test_a_cluster_that_is_not_registered_fails(
    node: Node, stand_ins: StandIns, shown: str, why: str
) -> None:
    stand_ins.command("sacctmgr", f"echo '{shown}'")
    with pytest.raises(
        SetupError, match=rf"cluster HyperPod is not registered .*: {why}.*slurmdbd"
    ):
        accounting.verify(node)


def test_slurmdbd_that_does_not_answer_fails(node: Node, stand_ins: StandIns) -> None:
    stand_ins.command("sacctmgr", "echo 'sacctmgr: error: Sending PersistInit msg' >&2; exit 1")
    with pytest.raises(
        SetupError, match=r"PersistInit msg.*`systemctl status slurmdbd`.* security group lets"
    ):
        accounting.verify(node)


def test_accounting_on_rds_must_not_be_on_the_controller(
    tmp_path: Path, slurm: SlurmCommands
) -> None:
    node = node_of(tmp_path, "controller", external_accounting=True)
    with pytest.raises(SetupError, match="on RDS, but slurmdbd keeps it on localhost"):
        accounting.verify(node)


def test_warns_of_an_external_database_that_is_not_configured(
    node: Node, stand_ins: StandIns
) -> None:
    place = 'echo "StorageHost  = db.rds"'
    stand_ins.command(
        "sacctmgr", f'[[ "$*" != *configuration ]] && echo "hyperpod|10.0.0.10" || {place}'
    )
    accounting.verify(node)
    assert "keeps the accounting on db.rds" in node.warnings[0]


REGISTERED_ELSEWHERE = "hyperpod|127.0.0.2|{port}|"


def mismatched(node: Node, stand_ins: StandIns, slurm: SlurmCommands, database: str) -> Path:
    """Return the state's file of a controller with a mismatch, which ends with the file.

    slurmctld adopts the database's number if it starts without the file, and answers.
    """
    write(
        node,
        "/opt/slurm/etc/slurm.conf",
        "ClusterName=hyperpod\nStateSaveLocation=/var/spool/slurm\n",
    )
    write(node, "/var/log/slurmctld.log", MISMATCH)
    write(node, "/var/spool/slurm/clustername", "hyperpod\n4018")
    record = node.host.path("/var/spool/slurm/clustername")
    slurm.answers("ping", "Slurmctld(primary) at ip-10-0-0-10 is DOWN\n")
    up = f"echo 'Slurmctld(primary) at ip-10-0-0-10 is UP' >{slurm.folder}/ping"
    stand_ins.command("systemctl", f"[[ $1 != start || -e {record} ]] || {up}")
    stand_ins.command("sacctmgr", f"echo '{database}'")
    return record


def test_a_cluster_id_mismatch_is_repaired_once(
    node: Node, slurm: SlurmCommands, stand_ins: StandIns
) -> None:
    record = mismatched(node, stand_ins, slurm, REGISTERED_ELSEWHERE.format(port=1))
    slurm_controller.verify(node)
    assert record.with_name("clustername.old").read_text() == "hyperpod\n4018"
    assert not record.exists()
    (change,) = node.changes
    assert "adopts the accounting database's number" in change
    stand_ins.forget_calls()
    slurm_controller.verify(node)
    assert not any(call.startswith("systemctl") for call in stand_ins.calls)


def test_another_controller_of_the_schema_keeps_its_number(
    node: Node, slurm: SlurmCommands, stand_ins: StandIns
) -> None:
    with socket.create_server(("127.0.0.2", 0)) as other:
        database = REGISTERED_ELSEWHERE.format(port=other.getsockname()[1])
        record = mismatched(node, stand_ins, slurm, database)
        with pytest.raises(SetupError, match=r"127\.0\.0\.2 for cluster hyperpod, and it answers"):
            slurm_controller.verify(node)
    assert record.exists() and node.changes == []


def test_state_on_a_shared_file_system_is_not_changed(
    node: Node, slurm: SlurmCommands, stand_ins: StandIns
) -> None:
    mismatched(node, stand_ins, slurm, "")
    shared = "/fsx/state"
    write(node, f"{shared}/clustername", "hyperpod\n4018")
    write(node, "/opt/slurm/etc/slurm.conf", f"ClusterName=hyperpod\nStateSaveLocation={shared}\n")
    with pytest.raises(SetupError, match="CLUSTER ID MISMATCH: /fsx/state"):
        slurm_controller.verify(node)
    assert node.host.path(f"{shared}/clustername").exists()
