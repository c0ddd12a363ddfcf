"""QOS, limits of accounts and options of partitions follow the cluster file, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node_setup import partition_options
from node_setup.failure import SetupError
from node_setup.steps import slurm_accounts, slurm_partitions, slurm_qos
from tests.lifecycle.node import StandIns, node_of
from tests.lifecycle.slurm_commands import SlurmCommands
from tests.lifecycle.slurm_settings import NO_LIMITS, account, partition, qos

LONG = qos("long", priority=10, max_time="7-00:00", per_user={**NO_LIMITS, "max_gpus": 8})
ESM2 = account("esm2", qos=["normal", "long"], default_qos="long", max_jobs=3, max_nodes=2)
GPU = partition("gpu", max_time="0-12:00", priority_tier=2, allow_qos=["long"], default=True)
SHOWN = """\
PartitionName=gpu AllowAccounts=ALL AllowQos=ALL Default=NO QoS=N/A DefaultTime=NONE MaxNodes=UNLIMITED \
MaxTime=UNLIMITED PriorityTier=1 State=UP
PartitionName=dev AllowAccounts=ALL AllowQos=ALL Default=YES QoS=N/A MaxTime=UNLIMITED PriorityTier=1
"""


@pytest.fixture
def folder(tmp_path: Path, slurm: SlurmCommands, stand_ins: StandIns) -> Path:
    """A controller whose slurm.conf includes a file for accounting; slurmctld reads both at its restart."""
    etc = tmp_path / "root/opt/slurm/etc"
    etc.mkdir(parents=True)
    (etc / "slurm.conf").write_text("ClusterName=hyperpod\nInclude accounting.conf")
    (etc / "accounting.conf").write_text("AccountingStorageEnforce=associations # ours\n")
    (etc / "accounting.conf").chmod(0o640)
    slurm.configure(
        AccountingStorageEnforce="associations",
        AccountingStorageTRES="cpu,mem,node",
        SLURM_CONF="/opt/slurm/etc/slurm.conf",
    )
    restart = f"""
[[ "$1" == restart && "$2" == slurmctld ]] || exit 0
cat {etc}/accounting.conf {etc}/slurm.conf | grep AccountingStorage | sed 's/ *#.*//; s/=/ = /' \
    >>{slurm.folder}/configuration
"""
    stand_ins.command("systemctl", restart)
    return tmp_path


def scheduling(
    *names: dict[str, Any], partitions: Any = (), enforce: bool = True
) -> dict[str, Any]:
    return {"enforce": enforce, "qos": list(names), "partitions": list(partitions)}


def apply(
    folder: Path, section: dict[str, Any] | None, *accounts: dict[str, Any]
) -> tuple[list[str], list[str]]:
    """Changes and warnings of the steps of QOS and accounts."""
    node = node_of(folder, "controller", accounts=list(accounts), scheduling=section)
    for step in (slurm_qos.apply, slurm_accounts.apply, slurm_qos.remove_old):
        step(node)
    return node.changes, node.warnings


def test_qos_and_limits_are_set_once(folder: Path, slurm: SlurmCommands) -> None:
    changes, warnings = apply(folder, scheduling(LONG), ESM2)
    assert slurm.database["qos"]["long"] == {
        "priority": "10",
        "maxwall": "7-00:00:00",
        "maxtresperuser": "gres/gpu=8",
    }
    assert slurm.database["limits"]["esm2"] == {
        "grpjobs": "3",
        "grptres": "node=2",
        "qos": "long,normal",
        "defaultqos": "long",
    }
    assert (len(changes), warnings) == (7, [])
    assert apply(folder, scheduling(LONG), ESM2) == ([], [])


def test_enforcement_changes_the_file_that_counts(folder: Path, slurm: SlurmCommands) -> None:
    apply(folder, scheduling(LONG))
    etc = folder / "root/opt/slurm/etc"
    accounting = etc / "accounting.conf"
    assert accounting.read_text() == "AccountingStorageEnforce=associations,limits,qos # ours\n"
    assert accounting.stat().st_mode & 0o777 == 0o640
    assert (etc / "slurm.conf").read_text().splitlines()[2:] == ["AccountingStorageTRES=gres/gpu"]


def test_enforcement_without_effect_is_an_error(
    folder: Path, slurm: SlurmCommands, stand_ins: StandIns
) -> None:
    stand_ins.command("systemctl")
    with pytest.raises(SetupError, match="runs without limits, qos in AccountingStorageEnforce"):
        apply(folder, scheduling())


def test_limits_that_are_not_enforced_are_a_warning(folder: Path, slurm: SlurmCommands) -> None:
    accounting = folder / "root/opt/slurm/etc/accounting.conf"
    before = accounting.read_text()
    _, warnings = apply(folder, scheduling(LONG, enforce=False))
    assert "lacks limits, qos" in warnings[0] and "lacks gres/gpu" in warnings[1]
    assert accounting.read_text() == before


def test_only_limits_that_the_file_had_are_removed(folder: Path, slurm: SlurmCommands) -> None:
    apply(folder, scheduling(LONG), ESM2)
    # Set by hand, on a resource and a column that the file does not name.
    database = slurm.database
    database["limits"]["esm2"] |= {"grpsubmitjobs": "9", "grptres": "gres/gpu=4,node=2"}
    slurm.database = database
    apply(folder, scheduling(LONG), account("esm2"))
    assert slurm.database["limits"]["esm2"] == {
        "grpjobs": "",
        "grpsubmitjobs": "9",
        "grptres": "gres/gpu=4",
        "qos": "",
        "defaultqos": "",
    }
    assert apply(folder, scheduling(LONG), account("esm2")) == ([], [])


def test_a_qos_that_the_file_no_longer_has_is_removed_when_its_jobs_have_ended(
    folder: Path, slurm: SlurmCommands
) -> None:
    by_hand = slurm.database | {"qos": {"normal": {}, "other": {"priority": "3"}}}
    slurm.database = by_hand
    apply(folder, scheduling(LONG, qos("normal", max_jobs=5)))
    slurm.answers("jobs", "17\n")
    changes, warnings = apply(folder, None)
    assert "QOS long is no longer in the cluster file" in warnings[0]
    assert changes == ["sacctmgr modify qos where name=normal set grpjobs=-1"]
    slurm.answers("jobs", "")
    assert apply(folder, None) == (["sacctmgr remove qos where name=long"], [])
    assert slurm.database["qos"] == {"normal": {"grpjobs": ""}, "other": {"priority": "3"}}


def partitions(
    folder: Path, stand_ins: StandIns, *options: dict[str, Any], shown: str = SHOWN
) -> tuple[list[str], list[str]]:
    """Changes of the step, and the calls of scontrol that change something."""
    (folder / "shown").write_text(shown)
    stand_ins.command("scontrol", f'[[ "$1" != --oneliner ]] || cat {folder}/shown; echo UP')
    stand_ins.forget_calls()
    node = node_of(folder, "controller", scheduling=scheduling(partitions=options))
    slurm_partitions.apply(node)
    calls = [
        call for call in stand_ins.calls if call.startswith(("scontrol update", "scontrol rec"))
    ]
    return node.changes, calls


def test_options_of_partitions_are_set_and_kept(folder: Path, stand_ins: StandIns) -> None:
    later = partition("cpu", max_nodes=4, allow_accounts=["esm2"])
    changes, calls = partitions(folder, stand_ins, GPU, later)
    assert calls == [
        "scontrol update PartitionName=gpu Default=YES MaxTime=12:00:00 PriorityTier=2 AllowQos=long"
    ]
    assert changes[-1].startswith("partition-options.service ")
    # As scontrol shows them afterwards, and with the partition that HyperPod adds later.
    shown = SHOWN.replace("AllowQos=ALL Default=NO", "AllowQos=long Default=YES", 1)
    shown = shown.replace("MaxTime=UNLIMITED PriorityTier=1", "MaxTime=12:00:00 PriorityTier=2", 1)
    shown += "PartitionName=cpu MaxNodes=UNLIMITED\n"
    changes, calls = partitions(folder, stand_ins, GPU, later, shown=shown)
    assert calls == ["scontrol update PartitionName=cpu MaxNodes=4 AllowAccounts=root,esm2"]


def test_the_service_sets_options_again(
    folder: Path,
    stand_ins: StandIns,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Once after each restart of slurmctld; one that does not answer is reported once, and waited for."""
    partitions(folder, stand_ins, GPU)
    capsys.readouterr()
    file = folder / "root/usr/local/lib/node-setup/partition_options.json"
    looks = 0

    def sleep(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            stand_ins.command("scontrol", "echo slurmctld is down >&2; exit 1")
        if looks == 3:
            raise KeyboardInterrupt

    # The module's own, because subprocess sleeps, too.
    monkeypatch.setattr(partition_options, "time", SimpleNamespace(sleep=sleep))
    weights = file.with_name("node_weights.json")
    monkeypatch.setattr("sys.argv", ["partition_options.py", str(file), str(weights)])
    with pytest.raises(KeyboardInterrupt):
        partition_options.main()
    output = capsys.readouterr()
    assert output.out.startswith("scontrol update PartitionName=gpu AllowQos=long Default=YES")
    assert output.err.count("slurmctld is down") == 1


def test_an_option_that_the_file_no_longer_has_goes_back(folder: Path, stand_ins: StandIns) -> None:
    partitions(folder, stand_ins, GPU)
    _, calls = partitions(folder, stand_ins, partition("gpu", priority_tier=2))
    assert calls[0] == "scontrol reconfigure"
    _, calls = partitions(folder, stand_ins)
    assert calls == ["scontrol reconfigure"]
    assert not (folder / "root/usr/local/lib/node-setup/partition_options.json").exists()
    assert partitions(folder, stand_ins) == ([], [])
