"""make replace and make reboot keep jobs off nodes of a real Slurm, and let them take jobs again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.machine import Machine
from tests.cluster.patience import wait_until
from tools.nodes.cluster_nodes import Node
from tools.nodes.drain import SlurmPlacement
from tools.nodes.head_node import HeadNode

REASON = "make replace"


@dataclass(frozen=True)
class Controller(HeadNode):
    """Controller on which a script runs without a session."""

    machine: Machine | None = None
    environment: Mapping[str, str] | None = None

    def run_as_root(self, script: str, arguments: Sequence[str], say: Callable[[str], None]) -> int:
        assert self.machine
        command = ["bash", "-c", script, "script", *arguments]
        result = self.machine.run(command, environment=self.environment, check=False)
        for line in result.output.splitlines():
            say(line)
        return result.status


def node(host_name: str) -> Node:
    return Node(
        name="workers-1",
        group="workers",
        instance_id="i-0123456789abcdef0",
        instance_type="ml.g5.8xlarge",
        status="Running",
        message="",
        host_name=host_name,
    )


@pytest.fixture
def placement(cluster: Cluster) -> SlurmPlacement:
    cluster.wait_for_slurm()
    return SlurmPlacement(Controller("controller-1", machine=cluster.controller))


@pytest.fixture
def worker(cluster: Cluster) -> Iterator[Node]:
    found = node(cluster.workers[0].hostname)
    yield found
    cluster.controller.run(["scancel", "--user=root"])
    update = ["scontrol", "update", f"NodeName={found.host_name}", "State=RESUME"]
    cluster.controller.run(update, check=False)


def state(cluster: Cluster, found: Node) -> str:
    command = ["sinfo", "--noheader", f"--nodes={found.host_name}", "--format=%T %E"]
    return cluster.controller.run(command).output.strip()


def test_a_node_is_drained_beside_its_job_and_resumed(
    cluster: Cluster, placement: SlurmPlacement, worker: Node
) -> None:
    assert placement.jobs([worker]) == []
    command = ["sbatch", "--parsable", "--partition=gpu", f"--nodelist={worker.host_name}"]
    command += ["--chdir=/tmp", "--job-name=long", "--wrap=sleep 300"]
    job = cluster.controller.run(command).output.strip()
    wait_until(lambda: bool(placement.jobs([worker])), "the job to start", seconds=240)
    (line,) = placement.jobs([worker])
    assert line.startswith(f"job {job} of root on {worker.host_name}, running for 0:")
    assert line.endswith(": long")

    assert placement.drain([worker], REASON) == [worker]
    assert state(cluster, worker) == f"draining {REASON}"
    # The second command finds it drained, so that it does not resume it after a failure.
    assert placement.drain([worker], "make reboot") == []
    assert state(cluster, worker).endswith(REASON)

    cluster.controller.run(["scancel", job])
    wait_until(lambda: not placement.jobs([worker]), "the job to end", seconds=240)
    placement.resume([worker])
    wait_until(lambda: state(cluster, worker).startswith("idle"), "the node", seconds=240)


def test_a_node_that_slurm_lacks_is_left_out(placement: SlurmPlacement) -> None:
    absent = node("ip-10-9-9-9")
    assert placement.jobs([absent]) == []
    assert placement.drain([absent], REASON) == []


def test_a_refusal_of_slurm_is_the_message(placement: SlurmPlacement) -> None:
    with pytest.raises(ValueError, match=r"^controller-1: .*ip-10-9-9-9|Invalid node"):
        placement.resume([node("ip-10-9-9-9")])
