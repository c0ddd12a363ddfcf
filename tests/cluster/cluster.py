"""A whole cluster: machines in their places, and what HyperPod does to them."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from tests.cluster.artifact_bucket import AWS_PROGRAM, ENDPOINT
from tests.cluster.bundle import REPOSITORY
from tests.cluster.hyperpod import agent
from tests.cluster.hyperpod.image import build_image
from tests.cluster.hyperpod.platform_files import Member, provisioning_parameters, resource_config
from tests.cluster.hyperpod.slurm_files import SlurmNode
from tests.cluster.island import Island
from tests.cluster.machine import Machine
from tests.cluster.patience import wait_until

CONTROLLER_NUMBER = 10
LOGIN_NUMBER = 15
FIRST_WORKER_NUMBER = 20
RESOURCE_CONFIG = "/opt/ml/config/resource_config.json"
_PARAMETERS = "/opt/ml/config/provisioning_parameters.json"
Answer = TypeVar("Answer")


def at_once(work: Callable[[Machine], Answer], machines: Iterable[Machine]) -> list[Answer]:
    """Do the same on several machines at a time."""
    with ThreadPoolExecutor(max_workers=8) as pool:
        return list(pool.map(work, machines))


class Cluster:
    """``members`` are in the order in which they joined."""

    def __init__(self, island: Island, settings: dict[str, Any], folder: Path) -> None:
        self.island = island
        self.members: list[Member] = []
        self.before_slurm: list[Callable[[Machine], None]] = []
        """Function that tests apply to a replacement machine before it gets jobs."""
        self._settings = settings
        self._folder = folder
        self._numbers = itertools.count(FIRST_WORKER_NUMBER)
        self._all: list[Machine] = []

    def start(self, *, num_workers: int) -> None:
        """Boot controller, login node and workers, and have Slurm running on all of them."""
        build_image(self.island.folder / "image", endpoint=ENDPOINT, aws_program=AWS_PROGRAM)
        (self.island.folder / "fsx").mkdir()
        (self.island.folder / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
        self._add("controller", CONTROLLER_NUMBER)
        self._add("login", LOGIN_NUMBER)
        for _ in range(num_workers):
            self._add("workers", next(self._numbers))
        at_once(Machine.wait_until_up, self.machines)
        self._write_platform_files()
        agent.start_controller(self.controller, self._settings["cluster_name"], self.slurm_nodes)
        at_once(self._start_slurmd, [self.login, *self.workers])

    def save_logs(self) -> None:
        """Keep the machines' logs, and print their folder."""
        for machine in self.machines:
            journal = machine.run(["journalctl", "--boot", "--no-pager"], check=False).output
            (self._folder / f"{machine.hostname}-journal.log").write_text(journal)
            logs = machine.run(
                ["bash", "-c", "tail -n +1 /var/log/{slurm,provision}/*.log"], check=False
            )
            (self._folder / f"{machine.hostname}-files.log").write_text(logs.output)
        print(f"\nlogs of the machines: {self._folder}", file=sys.stderr)

    def stop(self) -> None:
        """End all machines, those that are no members any more included."""
        for machine in self._all:
            machine.kill()

    @property
    def machines(self) -> list[Machine]:
        return [member.machine for member in self.members]

    @property
    def controller(self) -> Machine:
        return self._of("controller")[0]

    @property
    def login(self) -> Machine:
        return self._of("login")[0]

    @property
    def workers(self) -> list[Machine]:
        return self._of("workers")

    @property
    def slurm_nodes(self) -> list[SlurmNode]:
        """All but the controller run jobs: login nodes are in Slurm's default partition."""
        nodes = []
        for member in self.members:
            group = self._settings["instance_groups"][member.group]
            if group["role"] != "controller":
                machine = member.machine
                nodes.append(
                    SlurmNode(
                        machine.hostname, machine.address, group["partition"], group["num_gpus"]
                    )
                )
        return nodes

    def kill(self, machine: Machine) -> None:
        """End a machine as if its hardware failed; it stays a member until the service replaces it."""
        machine.kill()

    def bring_back(self, machine: Machine) -> None:
        """Boot a machine again, as the service does after an update of its software."""
        machine.boot()
        machine.wait_until_up()
        for prepare in self.before_slurm:
            prepare(machine)
        self._start_slurmd(machine)

    def replace(self, machine: Machine) -> Machine:
        """Replace a failed node as the service does: another machine and address, the same group."""
        old = next(member for member in self.members if member.machine is machine)
        self.members.remove(old)
        new = self._add(old.group, next(self._numbers))
        new.wait_until_up()
        for prepare in self.before_slurm:
            prepare(new)
        self._write_platform_files()
        agent.write_slurm_files(self.controller, self._settings["cluster_name"], self.slurm_nodes)
        agent.restart_slurmctld(self.controller)
        self._start_slurmd(new)
        return new

    def wait_for_slurm(self, states: tuple[str, ...] = ("idle",)) -> None:
        """Wait until every node is in one of the states, as sinfo calls them."""
        names = {node.name for node in self.slurm_nodes}

        def are_so() -> bool:
            listed = self.controller.run(
                ["sinfo", "--noheader", "--Node", "--format=%N %t"], check=False
            )
            found = dict(
                line.split() for line in listed.output.splitlines() if len(line.split()) == 2
            )
            return set(found) == names and set(found.values()) <= set(states)

        wait_until(are_so, f"all nodes to be {' or '.join(states)} in Slurm", seconds=240)

    def start_slurmctld(self) -> None:
        self.controller.run(["systemctl", "start", "slurmctld.service"])
        agent.wait_for_slurmctld(self.controller)

    @property
    def shared(self) -> Path:
        """Folder that all nodes see at /fsx."""
        return self.island.folder / "fsx"

    def _of(self, group: str) -> list[Machine]:
        return [member.machine for member in self.members if member.group == group]

    def _add(self, group: str, number: int) -> Machine:
        console = self._folder / f"{group}-{number}.log"
        machine = Machine(self.island, number, image=Path("image"), console=console)
        inside = self.island.inner_folder
        hosts = self.island.folder / "hosts"
        hosts.write_text(f"{hosts.read_text()}{machine.address} {machine.hostname}\n")
        machine.bind(inside / "hosts", "/etc/hosts")
        machine.bind(inside / "fsx", "/fsx")
        machine.local_disk("/opt/sagemaker", size_mib=64)
        machine.local_disk("/opt/dlami/nvme", size_mib=128)
        # A machine has a /tmp of its own, which hides a checkout there; elsewhere it sees a copy on write.
        if REPOSITORY.is_relative_to("/tmp"):
            machine.bind(REPOSITORY, str(REPOSITORY))
        for environment in (Path(sys.executable).parents[1], AWS_PROGRAM.parents[1]):
            machine.bind(environment, str(environment))
        self.members.append(Member(machine, group))
        self._all.append(machine)
        machine.boot()
        return machine

    def _write_platform_files(self) -> None:
        groups = self._settings["instance_groups"]
        name = self._settings["cluster_name"]
        config = resource_config(name, groups, self.members, self.controller.address)

        def write(machine: Machine) -> None:
            machine.write(RESOURCE_CONFIG, config)
            machine.write(_PARAMETERS, provisioning_parameters(groups))

        at_once(write, (machine for machine in self.machines if machine.is_on))

    def _start_slurmd(self, machine: Machine) -> None:
        node = next(node for node in self.slurm_nodes if node.name == machine.hostname)
        agent.start_slurmd(machine, controller=self.controller.hostname, num_gpus=node.num_gpus)
