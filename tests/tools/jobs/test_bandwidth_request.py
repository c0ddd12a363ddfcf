"""The bandwidth job: which nodes it takes, what is expected of them, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from config.facts.instance_catalogue import INSTANCE_TYPES
from seqlm.launch.network.expectation import wire_limit_gb_s
from tests.tools.cluster_files import shipped
from tools.jobs.slurm.request import SlurmWanted, job_request, user_folder
from tools.jobs.work import PUBLISHED

CLUSTER = shipped("slurm")
P5 = shipped("slurm-p5")


def request(*settings: str, cluster: Any = P5, **wanted: Any) -> dict[str, Any]:
    folder = user_folder(cluster, "ubuntu")
    asked = SlurmWanted(
        **{"stage": "bandwidth", "folder": folder, "image": "/fsx/x.sqsh", **wanted}
    )
    return job_request(cluster, None, list(settings), asked, version="abc")


def test_it_takes_whole_nodes_and_brings_what_is_expected() -> None:
    found = request(nodes="2")
    assert found["sbatch"][:3] == [
        "--job-name=bandwidth-p5.48xlarge",
        "--partition=p5",
        "--nodes=2",
    ]
    assert "--exclusive" in found["sbatch"] and "--gpus-per-node=8" in found["sbatch"]
    job = found["job"]
    expected = json.loads(found["config"])
    assert job["stage"] == "bandwidth" and job["efa"] and job["data_manifest"] == ""
    assert job["run_dir"].endswith("/esm2/runs/bandwidth-p5.48xlarge")
    assert expected["published"]["bus_gb_s"] == 465.87
    assert (expected["network_gb_s"], expected["has_efa"], expected["at_least_gb_s"]) == (
        400.0,
        True,
        None,
    )


def test_types_without_a_published_figure_have_none() -> None:
    expected = json.loads(request("at_least=1.5", cluster=CLUSTER)["config"])
    assert (expected["instance_type"], expected["published"]) == ("ml.g5.8xlarge", None)
    assert (expected["network_gb_s"], expected["at_least_gb_s"]) == (25 / 8, 1.5)


@pytest.mark.parametrize(
    ("settings", "wanted", "problem"),
    [
        (["optim.lr=1"], {}, "optim.lr=1: the bandwidth job takes at_least=<GB/s>"),
        (["at_least=fast"], {}, "at_least=fast: the bandwidth job takes"),
        (
            [],
            {"nodes": "1", "gpus_per_node": 1},
            "NODES: got 1, with one process; an all-reduce needs two",
        ),
        ([], {"nodes": "99"}, "NODES: got 99; partition p5 has"),
        ([], {"folder": "/data/ada"}, "--folder: got /data/ada; nodes share /fsx"),
        ([], {"image": None}, "image, python: give one of them"),
        ([], {"partition": "gone"}, "partition: got gone"),
    ],
)
def test_reports_what_does_not_fit(
    settings: list[str], wanted: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError) as told:
        request(*settings, **wanted)
    assert problem in str(told.value)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_published_figures_are_possible(name: str) -> None:
    """Bounds are for existing types, have a source, and are below the network's limit."""
    figure = PUBLISHED[name]
    hardware = INSTANCE_TYPES[name]
    limit = wire_limit_gb_s(
        hardware.network_gbps / 8, figure.num_nodes, figure.num_nodes * hardware.num_accelerators
    )
    assert limit is not None and 0.25 * limit < figure.bus_gb_s < limit
    assert figure.source.startswith("github.com/") and figure.size_bytes % (1 << 30) == 0
