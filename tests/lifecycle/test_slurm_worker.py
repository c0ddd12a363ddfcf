"""A worker's Slurm before it takes jobs: registered, in its partition, with its devices and pyxis."""

from __future__ import annotations

from pathlib import Path

import pytest

from node_setup.failure import SetupError
from node_setup.node import Node
from node_setup.steps import slurm_worker
from tests.lifecycle.node import StandIns, node_of, settings_document
from tests.lifecycle.slurm_commands import PYXIS_HELP, SlurmCommands

PLUGIN = "usr/local/lib/slurm/spank_pyxis.so"


@pytest.fixture
def node(tmp_path: Path, slurm: SlurmCommands) -> Node:
    return node_of(tmp_path)


def fails(node: Node) -> str:
    with pytest.raises(SetupError) as caught:
        slurm_worker.verify(node)
    return str(caught.value)


def test_a_worker_as_it_should_be_passes(node: Node, slurm: SlurmCommands) -> None:
    slurm.state = "IDLE+DRAIN"
    slurm_worker.verify(node)
    assert node.changes == node.warnings == []


def test_slurmd_that_does_not_run_fails(node: Node, stand_ins: StandIns) -> None:
    stand_ins.command("systemctl", "echo failed; exit 3")
    assert "slurmd is failed. What to do: see `journalctl --unit=slurmd`" in fails(node)


@pytest.mark.parametrize("state", ["IDLE+NOT_RESPONDING", "UNKNOWN", "IDLE*+DRAIN"])
def test_a_node_that_has_not_registered_fails(node: Node, slurm: SlurmCommands, state: str) -> None:
    slurm.state = state
    assert "has not registered with Slurm's controller after 300 s" in fails(node)


def test_another_partition_fails(node: Node, tmp_path: Path) -> None:
    groups = settings_document()["instance_groups"]
    groups["workers"]["partition"] = "p5"
    message = fails(node_of(tmp_path, instance_groups=groups))
    assert "is in partition gpu, all, not in p5 of the cluster file" in message


def test_a_lost_gpu_fails_and_says_how_to_replace_the_node(node: Node, stand_ins: StandIns) -> None:
    stand_ins.command("nvidia-smi", "echo 'No devices were found'")
    message = fails(node)
    assert "ml.g5.8xlarge has 1 GPU, and the driver shows 0" in message
    assert (
        'sudo scontrol update nodename=ip-10-0-0-31 state=fail reason="Action:Replace"' in message
    )


def test_a_driver_that_fails_fails(node: Node, stand_ins: StandIns) -> None:
    stand_ins.command("nvidia-smi", "echo 'NVIDIA-SMI has failed because' >&2; exit 9")
    assert "nvidia-smi fails on ml.g5.8xlarge: NVIDIA-SMI has failed because" in fails(node)


@pytest.mark.parametrize(("gres", "number"), [("(null)", "0 GPUs"), ("gpu:8(S:0-1)", "8 GPUs")])
def test_gpus_that_slurm_does_not_know_of_fail(
    node: Node, slurm: SlurmCommands, gres: str, number: str
) -> None:
    slurm.answers("gres", gres)
    message = fails(node)
    assert f"gives ip-10-0-0-31 {number} (Gres={gres}), and it has 1" in message
    assert "sudo scontrol reconfigure" in message


def test_gpus_of_two_types_are_counted_together(
    node: Node, slurm: SlurmCommands, tmp_path: Path
) -> None:
    groups = settings_document()["instance_groups"]
    groups["workers"]["num_gpus"] = 2
    slurm.answers("gres", "gpu:a:1,shard:4,gpu:b:1")
    with pytest.raises(SetupError, match="the driver shows 1"):
        slurm_worker.verify(node_of(tmp_path, instance_groups=groups))


@pytest.mark.parametrize("state", ["IDLE", "UNKNOWN"])
def test_a_registration_that_slurm_refuses_fails(
    node: Node, slurm: SlurmCommands, state: str
) -> None:
    slurm.state = f"{state}+DRAIN+INVALID_REG"
    slurm.answers("reason", "node-setup: in progress")
    message = fails(node)
    assert "Slurm refuses ip-10-0-0-31 as it registered (" in message
    assert "INVALID_REG" in message
    assert "slurmd -G" in message


def test_neuron_devices_are_counted_in_dev(
    node: Node, tmp_path: Path, slurm: SlurmCommands
) -> None:
    groups = settings_document()["instance_groups"]
    groups["workers"].update(num_gpus=0, num_neuron_devices=2, instance_type="ml.trn1.32xlarge")
    slurm.answers("gres", "(null)")
    trainium = node_of(tmp_path, instance_groups=groups)
    devices = tmp_path / "root/dev"
    devices.mkdir()
    (devices / "neuron0").touch()
    assert "ml.trn1.32xlarge has 2 Neuron devices, and the driver shows 1" in fails(trainium)
    (devices / "neuron1").touch()
    slurm_worker.verify(trainium)


@pytest.fixture
def without_option(node: Node, tmp_path: Path, slurm: SlurmCommands, stand_ins: StandIns) -> Node:
    """The image has pyxis, and srun here does not know it until slurmd fetches the configuration."""
    slurm.answers("help", "  --usage\n")
    (tmp_path / "root" / PLUGIN).parent.mkdir(parents=True)
    (tmp_path / "root" / PLUGIN).touch()
    fetch = f'echo "{PYXIS_HELP}" >{slurm.folder}/help'
    stand_ins.command(
        "systemctl", f'[[ "$1" != is-active ]] || echo active; [[ "$1" != restart ]] || {fetch}'
    )
    return node


def test_a_worker_that_came_before_pyxis_fetches_again(
    without_option: Node, stand_ins: StandIns
) -> None:
    slurm_worker.verify(without_option)
    assert "systemctl restart slurmd" in stand_ins.calls
    assert without_option.changes == ["slurmd: restarted, to fetch plugstack.conf again"]


def test_slurmd_is_not_restarted_under_a_job(
    without_option: Node, slurm: SlurmCommands, stand_ins: StandIns
) -> None:
    slurm.answers("jobs", "17\n")
    assert "jobs run here, so that slurmd is not restarted. What to do: on the controller" in fails(
        without_option
    )
    assert "systemctl restart slurmd" not in stand_ins.calls


def test_the_job_that_applies_the_scripts_does_not_count(
    without_option: Node, slurm: SlurmCommands, stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job outlives slurmd's restart."""
    slurm.answers("jobs", "17\n")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    slurm_worker.verify(without_option)
    assert "systemctl restart slurmd" in stand_ins.calls


def test_pyxis_that_stays_away_fails(without_option: Node, stand_ins: StandIns) -> None:
    stand_ins.command("systemctl", "echo active")
    message = fails(without_option)
    assert "has no option --container-image, even with slurmd restarted" in message
    assert "sudo scontrol reconfigure" in message


def test_an_image_without_pyxis_is_a_warning(node: Node, slurm: SlurmCommands) -> None:
    slurm.answers("help", "  --usage\n")
    slurm_worker.verify(node)
    assert "this image has no pyxis" in node.warnings[0]
    assert node.changes == []


def test_a_copy_of_the_configuration_that_names_pyxis_means_that_it_should_be_there(
    without_option: Node, tmp_path: Path
) -> None:
    (tmp_path / "root" / PLUGIN).unlink()
    copies = tmp_path / "root/var/spool/slurmd/conf-cache"
    (copies / "plugstack.conf.d").mkdir(parents=True)
    (copies / "plugstack.conf").write_text("# plugins\ninclude plugstack.conf.d/*.conf\n")
    (copies / "plugstack.conf.d/pyxis.conf").write_text("required /opt/pyxis/spank_pyxis.so\n")
    slurm_worker.verify(without_option)
    assert without_option.changes != []


def test_a_login_node_is_looked_at_in_the_same_way(tmp_path: Path, slurm: SlurmCommands) -> None:
    login = node_of(tmp_path, "login")
    slurm_worker.verify_login_node(login)
    assert login.changes == login.warnings == []


def test_a_login_node_that_slurm_does_not_know_runs_no_jobs(
    without_option: Node, tmp_path: Path, stand_ins: StandIns
) -> None:
    stand_ins.command(
        "squeue", "echo 'slurm_load_node error: Invalid node name specified' >&2; exit 1"
    )
    login = node_of(tmp_path, "login")
    slurm_worker.verify_login_node(login)
    assert login.changes == ["slurmd: restarted, to fetch plugstack.conf again"]


def test_a_login_node_without_slurm_fails(
    tmp_path: Path, slurm: SlurmCommands, stand_ins: StandIns
) -> None:
    stand_ins.command("sinfo", "echo 'Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(SetupError, match="Unable to contact slurm controller"):
        slurm_worker.verify_login_node(node_of(tmp_path, "login"))
