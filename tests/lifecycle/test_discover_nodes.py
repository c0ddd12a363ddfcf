"""Targets of Prometheus: the nodes that the platform lists, and those that Slurm knows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from collectors import discover_nodes
from node_setup.steps import exporters, gpu_exporter, managed_mlflow, metrics_collector
from seqlm.training.tracking.metrics_port import (
    FIRST_SLURM_PORT,
    NUM_SLURM_PORTS,
    SLURM_COMMENT,
    slurm_port,
)
from tests.lifecycle.node import StandIns, resource_config

GROUPS = {
    "controller": {"role": "controller", "num_gpus": 0},
    "login": {"role": "login", "num_gpus": 0},
    "workers": {"role": "worker", "num_gpus": 1},
}


class Cluster:
    """Both lists, and the folder that Prometheus reads."""

    def __init__(self, folder: Path, stand_ins: StandIns) -> None:
        self.output = folder / "lists"
        self.output.mkdir()
        self.text_file = folder / "discover.prom"
        self.config = {
            "resource_config": str(folder / "resource_config.json"),
            "instance_groups": GROUPS,
        }
        self.former: dict[str, discover_nodes.Nodes] = {}
        self._stand_ins = stand_ins
        self._folder = folder
        self.platform(resource_config())
        # HyperPod's login nodes are in Slurm's default partition.
        self.slurm(
            "NodeName=ip-10-0-0-20 NodeAddr=10.0.0.20 NodeHostName=ip-10-0-0-20 State=IDLE",
            "NodeName=ip-10-0-0-31 NodeAddr=10.0.0.31 NodeHostName=ip-10-0-0-31 State=IDLE",
        )
        self.jobs()

    def platform(self, document: dict[str, Any]) -> None:
        Path(str(self.config["resource_config"])).write_text(json.dumps(document))

    def slurm(self, *lines: str) -> None:
        (self._folder / "nodes").write_text("\n".join(lines) + "\n")
        self._stand_ins.command("scontrol", f'cat "{self._folder / "nodes"}"')

    def jobs(self, *lines: str) -> None:
        """Set the output of ``squeue --format=%A|%B|%k``."""
        (self._folder / "jobs").write_text("".join(f"{line}\n" for line in lines))
        self._stand_ins.command("squeue", f'cat "{self._folder / "jobs"}"')

    def slurm_is_down(self) -> None:
        for program in ("scontrol", "squeue"):
            self._stand_ins.command(
                program, "echo 'Unable to contact slurm controller' >&2; exit 1"
            )

    def run(self) -> bool:
        return discover_nodes.run_once(self.config, self.output, self.text_file, self.former)

    def listed(self, name: str = "nodes") -> dict[str, dict[str, str]]:
        """Labels by target."""
        entries = json.loads((self.output / f"{name}.json").read_text())
        return {target: entry["labels"] for entry in entries for target in entry["targets"]}


@pytest.fixture
def cluster(tmp_path: Path, stand_ins: StandIns) -> Cluster:
    return Cluster(tmp_path, stand_ins)


def test_all_nodes_are_listed_with_what_they_are(cluster: Cluster) -> None:
    assert cluster.run()
    assert list(cluster.listed()) == ["10.0.0.10:9100", "10.0.0.20:9100", "10.0.0.31:9100"]
    assert cluster.listed()["10.0.0.31:9100"] == {
        "instance": "ip-10-0-0-31",
        "group": "workers",
        "role": "worker",
        "instance_type": "ml.m5.4xlarge",
        "instance_id": "i-00000000000000003",
    }
    assert cluster.listed()["10.0.0.20:9100"]["role"] == "login"
    assert cluster.text_file.read_text().startswith(
        "node_discovery_last_success_timestamp_seconds 1"
    )


def test_lists_targets_for_gpus_only_on_nodes_that_have_them(cluster: Cluster) -> None:
    cluster.run()
    assert list(cluster.listed("gpus")) == ["10.0.0.31:9400"]


def test_a_replaced_node_has_its_new_name_and_address(cluster: Cluster) -> None:
    cluster.run()
    document = resource_config()
    document["InstanceGroups"][2]["Instances"][0] |= {
        "CustomerIpAddress": "10.0.0.77",
        "InstanceId": "i-7",
    }
    cluster.platform(document)
    cluster.slurm("NodeName=ip-10-0-0-77 NodeAddr=10.0.0.77 NodeHostName=ip-10-0-0-77 State=IDLE")
    cluster.run()
    assert list(cluster.listed()) == ["10.0.0.10:9100", "10.0.0.20:9100", "10.0.0.77:9100"]
    assert cluster.listed()["10.0.0.77:9100"]["instance_id"] == "i-7"


def test_a_node_that_is_down_stays_listed(cluster: Cluster) -> None:
    cluster.slurm(
        "NodeName=ip-10-0-0-31 NodeAddr=10.0.0.31 NodeHostName=ip-10-0-0-31 State=DOWN*+DRAIN"
    )
    cluster.run()
    assert "10.0.0.31:9100" in cluster.listed()


def test_a_worker_that_the_platform_does_not_list_yet(cluster: Cluster) -> None:
    document = resource_config()
    document["InstanceGroups"][2]["Instances"] = None
    cluster.platform(document)
    cluster.run()
    assert cluster.listed()["10.0.0.31:9100"] == {"instance": "ip-10-0-0-31", "role": "worker"}
    assert "10.0.0.31:9400" in cluster.listed("gpus")


def test_a_node_that_slurm_knows_by_name_is_listed_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discover_nodes.socket, "gethostbyname", lambda name: "10.0.0.31")
    cluster.slurm("NodeName=worker-1 NodeAddr=worker-1 NodeHostName=worker-1 State=IDLE")
    cluster.run()
    assert len(cluster.listed()) == 3
    assert cluster.listed()["10.0.0.31:9100"]["instance"] == "worker-1"


def test_places_for_nodes_that_never_were_are_not_nodes(cluster: Cluster) -> None:
    cluster.slurm(
        "NodeName=later-1 NodeAddr=10.0.0.88 NodeHostName=later-1 State=FUTURE",
        "NodeName=later-2 NodeAddr=10.0.0.89 NodeHostName=later-2 State=IDLE+CLOUD+POWERED_DOWN",
    )
    cluster.run()
    assert list(cluster.listed()) == ["10.0.0.10:9100", "10.0.0.20:9100", "10.0.0.31:9100"]


def test_slurm_that_is_down_leaves_the_platforms_list(cluster: Cluster) -> None:
    cluster.slurm_is_down()
    assert cluster.run()
    assert len(cluster.listed()) == 3


def test_a_platform_file_that_is_half_written_leaves_slurms_list(cluster: Cluster) -> None:
    Path(str(cluster.config["resource_config"])).write_text('{"InstanceGroups": [')
    assert cluster.run()
    assert list(cluster.listed()) == ["10.0.0.20:9100", "10.0.0.31:9100"]


def test_one_list_that_cannot_be_read_for_once_changes_nothing(cluster: Cluster) -> None:
    """Other labels would be other series, and end the old ones."""
    cluster.slurm("NodeName=ip-10-0-0-99 NodeAddr=10.0.0.99 NodeHostName=new State=IDLE")
    cluster.run()
    before = cluster.listed()
    assert {"10.0.0.10:9100", "10.0.0.99:9100"} <= set(before)
    platform = Path(str(cluster.config["resource_config"]))
    text = platform.read_text()
    platform.write_text(text[:100])
    assert cluster.run() and cluster.listed() == before
    platform.write_text(text)
    cluster.slurm_is_down()
    assert cluster.run() and cluster.listed() == before


def test_without_an_answer_the_former_lists_stay(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.run()
    before = cluster.listed()
    cluster.text_file.unlink()
    cluster.slurm_is_down()
    Path(str(cluster.config["resource_config"])).unlink()
    assert not cluster.run()
    assert cluster.listed() == before and not cluster.text_file.exists()
    said = capsys.readouterr().err
    assert (
        "resource_config.json: FileNotFoundError" in said
        and "Unable to contact slurm controller" in said
    )


def test_jobs_with_metrics_are_targets_on_their_first_node(cluster: Cluster) -> None:
    cluster.jobs(
        "612|ip-10-0-0-31|prometheus",
        "613|ip-10-0-0-31|prometheus",
        "614|ip-10-0-0-31|(null)",
        "615|ip-10-0-0-31|mine: prometheus|x",
        # Of a node that has left both lists.
        "616|ip-10-0-0-99|prometheus",
    )
    cluster.run()
    assert cluster.listed("jobs") == {
        f"10.0.0.31:{slurm_port(job_id)}": cluster.listed()["10.0.0.31:9100"]
        for job_id in (612, 613)
    }
    cluster.jobs()
    cluster.run()
    assert cluster.listed("jobs") == {}


def test_trainings_and_their_discovery_agree() -> None:
    assert discover_nodes.JOB_COMMENT == SLURM_COMMENT
    assert (discover_nodes.FIRST_JOB_PORT, discover_nodes.NUM_JOB_PORTS) == (
        FIRST_SLURM_PORT,
        NUM_SLURM_PORTS,
    )


def test_ports_of_training_runs_are_used_by_nothing_else() -> None:
    """Neither of a node's services, nor where processes of jobs meet, nor those that Linux gives away."""
    ports = range(FIRST_SLURM_PORT, FIRST_SLURM_PORT + NUM_SLURM_PORTS)
    prometheus = int(metrics_collector.URL.rpartition(":")[2])
    services = (exporters.NODE_PORT, gpu_exporter.PORT, managed_mlflow.PORT, prometheus)
    assert not any(port in ports for port in services)
    # Read, since it imports torch.
    agent = Path("workloads/seqlm/launch/node_agent.py").read_text()
    meeting = re.search(r"^FIRST_PORT = ([\d_]+)\nNUM_PORTS = ([\d_]+)$", agent, re.MULTILINE)
    assert meeting and ports.stop <= int(meeting[1]) and int(meeting[1]) + int(meeting[2]) <= 32768
    assert slurm_port(611) != slurm_port(611 + 500)


def test_jobs_stay_listed_while_slurm_does_not_answer(cluster: Cluster) -> None:
    cluster.jobs("612|ip-10-0-0-31|prometheus")
    cluster.run()
    cluster.slurm_is_down()
    assert cluster.run() and len(cluster.listed("jobs")) == 1


def test_lists_that_say_the_same_are_not_written_again(cluster: Cluster) -> None:
    cluster.run()
    before = (cluster.output / "nodes.json").stat().st_mtime_ns
    cluster.run()
    assert (cluster.output / "nodes.json").stat().st_mtime_ns == before
