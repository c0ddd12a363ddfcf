"""Containers' data leave the root volume, once, and nothing that runs is disturbed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from node_setup.failure import SetupError
from node_setup.steps import container_storage
from tests.lifecycle.container_node import EBS, ContainerNode
from tests.lifecycle.node import StandIns

PLATFORMS_ENROOT = """\
#ENROOT_LIBRARY_PATH        /usr/lib/enroot
ENROOT_RUNTIME_PATH /opt/sagemaker/tmp/enroot/user-$(id -u)
ENROOT_CACHE_PATH   /opt/sagemaker/enroot
ENROOT_DATA_PATH    /opt/sagemaker/tmp/enroot/data/user-$(id -u)
ENROOT_TEMP_PATH    /opt/sagemaker/tmp
ENROOT_MOUNT_HOME   no
"""
CONTAINERD_IMAGES = '[["driver-type","io.containerd.snapshotter.v1"]]'


@pytest.fixture
def machine(tmp_path: Path, stand_ins: StandIns) -> ContainerNode:
    return ContainerNode(tmp_path, stand_ins)


def restarts(machine: ContainerNode) -> list[str]:
    return [
        call.split()[-1] for call in machine.commands.calls if call.startswith("systemctl restart")
    ]


def make_folders(machine: ContainerNode) -> None:
    """Create the unit's folders, so that `-w` finds them."""
    for name in ("runtime", "cache", "data"):
        (machine.root / f"opt/dlami/nvme/enroot/{name}/user-{os.getuid()}").mkdir(parents=True)
    (machine.root / "opt/dlami/nvme/enroot/tmp").mkdir()


def test_docker_moves_to_the_largest_disk_once(machine: ContainerNode) -> None:
    machine.write("/etc/docker/daemon.json", json.dumps({"runtimes": {"nvidia": {"path": "x"}}}))
    container_storage.place(machine.node)
    assert json.loads(machine.read("/etc/docker/daemon.json")) == {
        "runtimes": {"nvidia": {"path": "x"}},
        "data-root": "/opt/dlami/nvme/docker",
    }
    assert restarts(machine) == ["docker.service"]
    container_storage.place(machine.again())
    assert machine.node.changes == [] and restarts(machine) == []


def test_what_is_on_a_local_disk_stays_there(machine: ContainerNode) -> None:
    """Also on the smaller one: where images are is worth more than where they would go today."""
    machine.write("/etc/docker/daemon.json", '{"data-root": "/opt/sagemaker/docker"}')
    container_storage.place(machine.node)
    assert machine.node.changes == [] and restarts(machine) == []


def test_docker_with_running_containers_is_left_alone(
    machine: ContainerNode, stand_ins: StandIns
) -> None:
    stand_ins.command(
        "docker", '[[ $1 != info ]] || echo "\\"/var/lib/docker\\" []"; [[ $1 != ps ]] || echo db'
    )
    container_storage.place(machine.node)
    assert restarts(machine) == [] and machine.node.changes == []
    assert "while containers run: db. Stop them" in machine.node.warnings[0]


def test_a_container_of_ours_is_no_hindrance(machine: ContainerNode, stand_ins: StandIns) -> None:
    script = (machine.folder / "stand_ins/bin/docker").read_text().split("\n", 2)[2]
    stand_ins.command("docker", f"[[ $1 != ps ]] || echo gpu-exporter\n{script}")
    container_storage.place(machine.node)
    assert restarts(machine) == ["docker.service"] and machine.node.warnings == []


def test_reports_images_that_stay_behind(machine: ContainerNode, stand_ins: StandIns) -> None:
    script = (machine.folder / "stand_ins/bin/docker").read_text().split("\n", 2)[2]
    stand_ins.command("docker", f"[[ $1 != image ]] || printf 'aaa\\nbbb\\naaa\\n'\n{script}")
    container_storage.place(machine.node)
    assert "2 Docker images stay behind" in machine.node.warnings[0]
    assert restarts(machine) == ["docker.service"]


def test_a_data_root_on_dockers_command_line_is_left(
    machine: ContainerNode, stand_ins: StandIns
) -> None:
    """Docker does not start when a flag and its file say the same thing differently."""
    stand_ins.command(
        "systemctl",
        "[[ $1 == show ]] && echo 'argv[]=dockerd --data-root /var/lib/docker' || echo enabled",
    )
    container_storage.place(machine.node)
    assert not (machine.root / "etc/docker/daemon.json").exists()
    assert "on its command line" in machine.node.warnings[-1]


def test_a_node_without_docker_and_enroot_passes(
    machine: ContainerNode, stand_ins: StandIns
) -> None:
    stand_ins.command("systemctl", "[[ $1 != is-enabled ]] || { echo disabled; exit 1; }")
    container_storage.place(machine.node)
    assert machine.node.changes == []


def test_a_broken_daemon_json_is_not_overwritten(machine: ContainerNode) -> None:
    machine.write("/etc/docker/daemon.json", "{")
    with pytest.raises(SetupError, match=r"daemon.json is not JSON"):
        container_storage.place(machine.node)
    assert machine.read("/etc/docker/daemon.json") == "{"


def test_a_move_without_effect_fails(machine: ContainerNode, stand_ins: StandIns) -> None:
    stand_ins.command("docker", '[[ $1 != info ]] || echo "\\"/var/lib/docker\\" []"')
    with pytest.raises(
        SetupError, match="data root is still /var/lib/docker, not /opt/dlami/nvme/docker"
    ):
        container_storage.place(machine.node)


def test_images_in_containerd_move_too(machine: ContainerNode) -> None:
    machine.docker(CONTAINERD_IMAGES)
    config = 'version = 2\nroot = "/var/lib/containerd"\n[plugins]\n  root = "not this one"\n'
    machine.write("/etc/containerd/config.toml", config)
    container_storage.place(machine.node)
    assert machine.read("/etc/containerd/config.toml") == (
        'version = 2\nroot = "/opt/dlami/nvme/containerd"\n[plugins]\n  root = "not this one"\n'
    )
    assert restarts(machine) == ["containerd.service", "docker.service"]
    for service in ("containerd", "docker"):
        # Below the mount point, after a reboot, they would find nothing.
        order = machine.read(f"/etc/systemd/system/{service}.service.d/50-instance-store.conf")
        assert "After=dlami-nvme.service" in order
    container_storage.place(machine.again())
    assert machine.node.changes == []


def test_a_volume_that_is_mounted_early_needs_no_order(machine: ContainerNode) -> None:
    machine.mount({"/opt/sagemaker": EBS})
    container_storage.place(machine.node)
    assert machine.node.changes == ["/etc/docker/daemon.json"]


def test_containerd_without_a_configuration_gets_one(
    machine: ContainerNode, stand_ins: StandIns
) -> None:
    machine.docker(CONTAINERD_IMAGES)
    config = machine.root / "etc/containerd/config.toml"
    script = (machine.folder / "stand_ins/bin/containerd").read_text().split("\n", 2)[2]
    stand_ins.command("containerd", f'[[ -e "{config}" ]] || exit 1\n{script}')
    container_storage.place(machine.node)
    assert config.read_text() == 'version = 2\nroot = "/opt/dlami/nvme/containerd"\n'


def test_enroots_folders_of_the_root_volume_move(
    machine: ContainerNode, stand_ins: StandIns
) -> None:
    """An image that found no disk leaves them in /opt/sagemaker all the same, which then is a mere folder."""
    machine.mount({"/opt/dlami/nvme": "253:0"})
    machine.write("/etc/enroot/enroot.conf", PLATFORMS_ENROOT)
    make_folders(machine)
    container_storage.place(machine.node)
    config = machine.read("/etc/enroot/enroot.conf").splitlines()
    assert "ENROOT_DATA_PATH /opt/dlami/nvme/enroot/data/user-$(id -u)" in config
    assert "ENROOT_TEMP_PATH /opt/dlami/nvme/enroot/tmp" in config
    assert {"ENROOT_MOUNT_HOME   no", "#ENROOT_LIBRARY_PATH        /usr/lib/enroot"} <= set(config)
    assert len(config) == len(PLATFORMS_ENROOT.splitlines())
    unit = machine.read("/etc/systemd/system/container-folders.service")
    assert "--mode=0755 /opt/dlami/nvme/enroot\n" in unit
    assert "--mode=1777 /opt/dlami/nvme/enroot/runtime /opt/dlami/nvme/enroot/cache" in unit
    assert "@" not in unit
    container_storage.place(machine.again())
    assert machine.node.changes == []
    assert "container-folders.service" in restarts(machine), "parents that are gone come back"


def test_the_images_own_choice_of_a_disk_stays(machine: ContainerNode) -> None:
    machine.write("/etc/enroot/enroot.conf", PLATFORMS_ENROOT)
    user = f"user-{os.getuid()}"
    for name in (f"tmp/enroot/{user}", "enroot", f"tmp/enroot/data/{user}"):
        (machine.root / "opt/sagemaker" / name).mkdir(parents=True)
    container_storage.place(machine.node)
    assert machine.read("/etc/enroot/enroot.conf") == PLATFORMS_ENROOT
    assert not (machine.root / "etc/systemd/system/container-folders.service").exists()


def test_unset_paths_are_set_and_drop_ins_agree(machine: ContainerNode) -> None:
    """Unset they are below a user's home and /tmp; versions differ on whether a drop-in wins."""
    machine.write("/etc/enroot/enroot.conf", "#ENROOT_DATA_PATH x\n")
    machine.write(
        "/etc/enroot/enroot.conf.d/site.conf", "ENROOT_CACHE_PATH=${HOME}/.cache\nother\n"
    )
    make_folders(machine)
    container_storage.place(machine.node)
    text = machine.read("/etc/enroot/enroot.conf")
    assert [line.split()[0] for line in text.splitlines()[1:]] == [
        "ENROOT_RUNTIME_PATH",
        "ENROOT_DATA_PATH",
        "ENROOT_TEMP_PATH",
    ]
    site = machine.read("/etc/enroot/enroot.conf.d/site.conf")
    assert site == "ENROOT_CACHE_PATH /opt/dlami/nvme/enroot/cache/user-$(id -u)\nother\n"


def test_folders_that_users_cannot_write_to_are_given_up(machine: ContainerNode) -> None:
    """They would make pyxis fail in its epilog, and Slurm drain the node."""
    machine.write("/etc/enroot/enroot.conf", PLATFORMS_ENROOT)
    make_folders(machine)
    container_storage.place(machine.node)
    assert "ENROOT_CACHE_PATH /opt/dlami/nvme/enroot/cache" in machine.read(
        "/etc/enroot/enroot.conf"
    )


def test_enroot_that_users_cannot_use_at_all_fails(machine: ContainerNode) -> None:
    machine.write("/etc/enroot/enroot.conf", PLATFORMS_ENROOT)
    (machine.folder / "marks").mkdir()
    (machine.folder / "marks/refuse").touch()
    with pytest.raises(
        SetupError, match=r"nobody cannot use enroot: mkdir: .*Permission denied.*mode 1777"
    ):
        container_storage.place(machine.node)


def test_enroot_of_running_jobs_is_left_alone(machine: ContainerNode, stand_ins: StandIns) -> None:
    machine.mount({"/opt/dlami/nvme": "253:0"})
    machine.write("/etc/enroot/enroot.conf", PLATFORMS_ENROOT)
    stand_ins.command("squeue", "printf '7\\n8\\n'")
    container_storage.place(machine.node)
    assert machine.read("/etc/enroot/enroot.conf") == PLATFORMS_ENROOT
    assert "apply the scripts again when the node is idle" in machine.node.warnings[0]


def test_the_job_that_applies_the_scripts_is_no_hindrance(
    machine: ContainerNode, stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.mount({"/opt/dlami/nvme": "253:0"})
    machine.write("/etc/enroot/enroot.conf", PLATFORMS_ENROOT)
    make_folders(machine)
    stand_ins.command("squeue", "echo 7")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    container_storage.place(machine.node)
    assert machine.read("/etc/enroot/enroot.conf") != PLATFORMS_ENROOT
    assert "squeue --noheader --nodelist ip-10-0-0-31 --format=%A" in machine.commands.calls


@pytest.mark.parametrize(("group", "warned"), [("workers", True), ("controller", False)])
def test_a_node_without_a_disk_stays_as_it_is(
    tmp_path: Path, stand_ins: StandIns, group: str, warned: bool
) -> None:
    machine = ContainerNode(tmp_path, stand_ins, group)
    machine.mount({"/fsx": EBS})
    container_storage.place(machine.node)
    assert machine.node.changes == [] and restarts(machine) == []
    assert [("`ebs_gib`" in warning) for warning in machine.node.warnings] == (
        [True] if warned else []
    )
