"""Disks are recognized by their devices: a folder of the right name on the root volume is not a disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from node_setup.disks import is_on_root_volume, largest_local_disk, mount_of
from tests.lifecycle.container_node import EBS, NVME, ROOT, ContainerNode
from tests.lifecycle.node import StandIns


@pytest.fixture
def machine(tmp_path: Path, stand_ins: StandIns) -> ContainerNode:
    return ContainerNode(tmp_path, stand_ins)


def test_a_path_lies_on_the_mount_with_the_longest_matching_path(machine: ContainerNode) -> None:
    machine.mount({"/opt": EBS, "/opt/dlami/nvme": NVME})
    host = machine.node.host
    assert mount_of(host, "/opt/dlami/nvme/docker/not/yet/there").device == NVME
    assert mount_of(host, "/opt/dlami").device == EBS
    assert mount_of(host, "/opt/dlami/nvme2").device == EBS
    assert mount_of(host, "/optional").device == ROOT


def test_a_link_counts_for_where_it_leads(machine: ContainerNode) -> None:
    (machine.root / "var/lib").mkdir(parents=True)
    (machine.root / "var/lib/docker").symlink_to("../../opt/sagemaker/docker")
    assert not is_on_root_volume(machine.node.host, "/var/lib/docker")
    assert is_on_root_volume(machine.node.host, "/var/lib/containerd")


def test_a_mount_point_with_a_blank_is_found(machine: ContainerNode) -> None:
    machine.write(
        "/proc/self/mountinfo", f"1 0 {ROOT} / / rw - x x x\n2 1 {EBS} / /a\\040b rw - x x x\n"
    )
    assert mount_of(machine.node.host, "/a b/c").device == EBS


def test_the_largest_disk_is_taken(machine: ContainerNode, stand_ins: StandIns) -> None:
    assert largest_local_disk(machine.node) == "/opt/dlami/nvme"
    stand_ins.command("df", "[[ $3 == /opt/sagemaker ]] && echo 9000 || echo 600")
    assert largest_local_disk(machine.node) == "/opt/sagemaker"


@pytest.mark.parametrize("disks", [{}, {"/opt/dlami/nvme": ROOT, "/opt/sagemaker": ROOT}])
def test_folders_on_the_root_volume_are_no_disks(
    machine: ContainerNode, disks: dict[str, str]
) -> None:
    """A bind mount of the root volume has the root volume's device."""
    machine.mount(disks)
    assert largest_local_disk(machine.node) is None


def test_instance_store_that_comes_late_is_waited_for(
    machine: ContainerNode, stand_ins: StandIns
) -> None:
    machine.mount({})
    mountinfo = machine.root / "proc/self/mountinfo"
    line = f"30 22 {NVME} / /opt/dlami/nvme rw - xfs /dev/x rw"
    state = machine.folder / "state"
    stand_ins.command(
        "systemctl",
        f'printf "LoadState=loaded\\nActiveState=activating\\nExecMainExitTimestampMonotonic=0\\n";'
        f'echo >> "{state}"; [[ $(wc -l < "{state}") -lt 2 ]] || echo "{line}" >> "{mountinfo}"',
    )
    object.__setattr__(machine.node.host, "patience", 0.001)
    assert largest_local_disk(machine.node) == "/opt/dlami/nvme"
    assert machine.node.warnings == []


@pytest.mark.parametrize(
    ("active", "ended", "waits"),
    [
        ("active", "0", False),
        ("failed", "5", False),
        ("inactive", "5", False),
        ("inactive", "0", True),
    ],
)
def test_the_service_of_the_instance_store_is_done_or_not(
    machine: ContainerNode, stand_ins: StandIns, active: str, ended: str, waits: bool
) -> None:
    machine.mount({"/opt/sagemaker": EBS})
    stand_ins.command(
        "systemctl",
        f'printf "LoadState=loaded\\nActiveState={active}\\nExecMainExitTimestampMonotonic={ended}\\n"',
    )
    assert largest_local_disk(machine.node) == "/opt/sagemaker"
    assert bool(machine.node.warnings) == waits


def test_an_image_without_that_service_is_not_waited_for(
    machine: ContainerNode, stand_ins: StandIns
) -> None:
    machine.mount({"/opt/sagemaker": EBS})
    stand_ins.command("systemctl", 'printf "LoadState=not-found\\nActiveState=inactive\\n"')
    assert largest_local_disk(machine.node) == "/opt/sagemaker"
    assert machine.node.warnings == []
