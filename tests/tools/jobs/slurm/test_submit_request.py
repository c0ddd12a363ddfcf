"""Resources and environment of a job, from run file and cluster file, and refused requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from seqlm.runs.run_file import load_config
from tests.tools.cluster_files import shipped
from tools.images.import_image import shared_folder
from tools.jobs.slurm.request import SlurmWanted, job_request, job_user, user_folder
from tools.jobs.work import NamedRun

RUN = Path("workloads/seqlm/configs/esm2_8m_sample.yaml")
CLUSTER = shipped("slurm")
P5 = shipped("slurm-p5")
FOLDER = "/fsx/ubuntu/esm2"
IMAGE = "/fsx/images/esm2.sqsh"


def request(*overrides: str, cluster: Any = CLUSTER, **wanted: Any) -> dict[str, Any]:
    return job_request(
        cluster,
        NamedRun(load_config(RUN, overrides), RUN.read_text()),
        list(overrides),
        SlurmWanted(**{"stage": "train", "folder": FOLDER, "image": IMAGE, **wanted}),
        version="abc",
    )


def test_training_takes_all_nodes_and_their_gpus() -> None:
    found = request("parallel.mode=fsdp")
    assert found["sbatch"] == [
        "--job-name=train-esm2_8m_sample",
        "--partition=gpu",
        "--nodes=2",
        "--gpus-per-node=1",
        "--exclusive",
    ]
    job = found["job"]
    assert job["run_dir"] == f"{FOLDER}/runs/esm2_8m_sample"
    assert job["data_manifest"] == f"{FOLDER}/data/sample/manifest.json"
    # On the cluster the file has another name.
    assert job["overrides"] == ("parallel.mode=fsdp", "name=esm2_8m_sample")
    assert (job["gpus_per_node"], job["processes_per_node"], job["mounts"]) == (1, 1, ("/fsx",))
    assert found["config"] == RUN.read_text()


def mixed(**second: Any) -> Any:
    """The small cluster with a second group of workers, of four nodes, in the same partition."""
    workers = next(group for group in CLUSTER.instance_groups if group.role == "worker")
    other = workers.model_copy(update={"name": "more", "num_instances": 4, **second})
    return CLUSTER.model_copy(update={"instance_groups": [*CLUSTER.instance_groups, other]})


def test_a_job_can_exclude_spot_nodes() -> None:
    cluster = mixed(capacity="spot")
    assert "--nodes=6" in request(cluster=cluster)["sbatch"]
    options = request(cluster=cluster, capacity="plan,on_demand")["sbatch"]
    assert "--nodes=2" in options and "--constraint=plan|on_demand" in options
    assert "--constraint=spot" in request(cluster=cluster, capacity="spot")["sbatch"]


@pytest.mark.parametrize(
    ("cluster", "capacity", "message"),
    [
        (mixed(capacity="spot"), "on-demand", "give one or more of plan, on_demand, spot"),
        (mixed(capacity="spot"), "plan", "partition gpu has on_demand, spot"),
        (mixed(), "on_demand", "all worker groups are on_demand, so nodes have no feature"),
    ],
)
def test_wrong_kinds_of_capacity_are_refused(cluster: Any, capacity: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"--capacity: got {capacity}; .*{message}"):
        request(cluster=cluster, capacity=capacity)


def test_p5_nodes_have_eight_processes_and_efa() -> None:
    folder = user_folder(P5, "ubuntu")
    job = request(cluster=P5, folder=folder)["job"]
    assert (job["gpus_per_node"], job["processes_per_node"], job["efa"]) == (8, 8, True)
    assert not request(cluster=P5, folder=folder, nodes="1")["job"]["efa"]


def test_a_fine_tuning_reads_its_table_alone() -> None:
    """The embedded one comes with the code, a named one is fetched."""
    overrides = ["task.kind=binary", "task.table=[sample, deeploc2]", "data.source=[mine.fasta]"]
    assert request(*overrides)["job"]["stage"] == "train"


def test_inference_takes_a_node_and_reads_no_shards() -> None:
    """Nor the sources of the run's data, which may be gone."""
    found = request(
        "data.source=[mine.fasta]", "inference.input=[sample, s3://b/p.fasta]", stage="predict"
    )
    assert {"--nodes=1", "--gpus-per-node=1", "--exclusive"} <= set(found["sbatch"])
    job = found["job"]
    assert job["data_manifest"] == ""
    assert job["output"] == f"{FOLDER}/runs/esm2_8m_sample/predictions.csv"
    # On the node its model is visible, and would decide.
    assert job["overrides"][-1] == f"inference.output={job['output']}"
    assert job["needed"] == (f"{FOLDER}/runs/esm2_8m_sample/model",)
    elsewhere = request("inference.output=/fsx/data/e.parquet", stage="embed", nodes="2")
    assert (
        elsewhere["job"]["output"] == "/fsx/data/e.parquet" and "--nodes=2" in elsewhere["sbatch"]
    )
    found = request(
        "inference.input=[/fsx/w.fasta]", "inference.mutations=/fsx/m.csv", stage="variants"
    )
    assert found["job"]["needed"][:2] == ("/fsx/w.fasta", "/fsx/m.csv")
    for stage in ("variants", "contacts"):
        found = request("inference.structure=/fsx/x.cif", stage=stage)
        assert "/fsx/x.cif" in found["job"]["needed"]
    assert (
        request("inference.model=facebook/esm2_t6_8M_UR50D", stage="embed")["job"]["needed"] == ()
    )
    assert request("inference.input=[mine.fasta]")["job"]["output"] == ""


def test_nodes_may_be_a_range() -> None:
    """Whichever number it gets, network and options must fit."""
    found = request(cluster=P5, folder=user_folder(P5, "ubuntu"), nodes="1-2")
    assert "--nodes=1-2" in found["sbatch"] and found["job"]["efa"]


def test_data_take_one_node_without_gpus() -> None:
    options = request(stage="data")["sbatch"]
    assert {"--nodes=1", "--cpus-per-task=8"} <= set(options)
    assert not [option for option in options if option.startswith(("--gpus", "--exclusive"))]


def test_training_on_cpus_is_one_process_a_node() -> None:
    job = request(gpus_per_node=0)["job"]
    assert (job["gpus_per_node"], job["processes_per_node"], job["efa"]) == (0, 1, False)


def test_how_long_a_hang_may_last_is_handed_on() -> None:
    assert request()["job"]["hang_seconds"] == 300
    assert request(hang_seconds=540)["job"]["hang_seconds"] == 540
    assert request(hang_seconds=10, gpus_per_node=0)["job"]["hang_seconds"] == 10


@pytest.mark.parametrize(
    "time", ["10", "10:30", "2:00:00", "1-0", "1-0:00", "2-00:00:00", "UNLIMITED"]
)
def test_a_time_limit_is_handed_on(time: str) -> None:
    assert f"--time={time}" in request(time=time)["sbatch"]


@pytest.mark.parametrize("image", ["nvcr.io#nvidia/pytorch:26.07-py3", "docker://debian:12"])
def test_an_image_may_be_a_reference(image: str) -> None:
    assert request(image=image)["job"]["image"] == image


@pytest.mark.parametrize(
    ("overrides", "wanted", "problem"),
    [
        ([], {"image": None}, "image, python: give one of them"),
        ([], {"image": None}, "for containers (make image TARGET=slurm makes such a file"),
        (
            [],
            {"hang_seconds": 120},
            "--hang-seconds: got 120; give 150 to 540, and more than a step takes",
        ),
        ([], {"hang_seconds": 9, "gpus_per_node": 0}, "--hang-seconds: got 9; give 10 to 86400"),
        ([], {"python": "/fsx/venv/bin/python"}, "image, python: give one of them"),
        (
            [],
            {"image": "/images/esm2.sqsh"},
            "IMAGE: got /images/esm2.sqsh; nodes share /fsx. make image",
        ),
        ([], {"image": "esm2.sqsh"}, "IMAGE: got esm2.sqsh; nodes share /fsx"),
        ([], {"nodes": "3"}, "NODES: got 3; partition gpu has 2"),
        ([], {"nodes": "2-3"}, "NODES: got 2-3; partition gpu has 2"),
        ([], {"nodes": "0"}, "NODES: got 0; expected a number from 1, or a range such as 2-3"),
        ([], {"nodes": "2-1"}, "NODES: got 2-1; expected"),
        ([], {"nodes": "two"}, "NODES: got two; expected"),
        ([], {"stage": "data", "nodes": "2"}, "NODES: got 2; data are prepared on 1 node"),
        ([], {"time": "2:00"}, "--time: got 2:00, to Slurm 2 minute(s); give at least 10"),
        ([], {"time": "0-00:09:30"}, "to Slurm 9.5 minute(s)"),
        ([], {"stage": "evaluate", "time": "5"}, "jobs are stopped 5 minutes before the limit"),
        ([], {"partition": "cpu"}, "partition: got cpu; the cluster file has gpu"),
        ([], {"gpus_per_node": 2}, "--gpus-per-node: got 2; ml.g5.8xlarge has 1"),
        ([], {"folder": "/home/ubuntu"}, "--folder: got /home/ubuntu; nodes share /fsx"),
        ([], {"folder": "/fsx/../home"}, "--folder: got /fsx/../home"),
        (["runs=/root/runs"], {}, "runs: got /root/runs; nodes share /fsx"),
        (["data.path=/data"], {}, "data.path: got /data"),
        (["data.downloads=/tmp"], {}, "data.downloads: got /tmp"),
        (["data.source=[mine.fasta]"], {}, "data: mine.fasta is on this machine"),
        (
            ["model.init_from=/home/ada/qwen"],
            {},
            "model.init_from: /home/ada/qwen is on this machine",
        ),
        (
            ["inference.input=[sample, mine.fasta]"],
            {"stage": "predict"},
            "inference.input: mine.fasta is on this machine; nodes read below /fsx, https:// and s3://",
        ),
        (
            ["inference.mutations=m.csv"],
            {"stage": "variants"},
            "inference.mutations: m.csv is on this machine; nodes read below /fsx",
        ),
        (
            ["inference.structure=x.cif"],
            {"stage": "contacts"},
            "inference.structure: x.cif is on this machine; nodes read below /fsx",
        ),
        (
            ["inference.model=/home/ada/model"],
            {"stage": "embed"},
            "inference.model: got /home/ada/model; nodes share /fsx",
        ),
        (
            ["inference.models=[/fsx/a/model, /home/ada/model]"],
            {"stage": "scorecard"},
            "inference.models[1]: got /home/ada/model; nodes share /fsx",
        ),
        (
            ["inference.output=/tmp/e.parquet"],
            {"stage": "embed"},
            "inference.output: got /tmp/e.parquet; nodes share /fsx",
        ),
        (
            ["inference.output=e.csv"],
            {"stage": "embed"},
            "got e.csv; its name must end in .parquet",
        ),
        (["task.kind=binary", "task.table=[mine.csv]"], {}, "data: mine.csv is on this machine"),
        (
            ["task.kind=binary", "task.split.clusters=mine.tsv"],
            {},
            "data: mine.tsv is on this machine",
        ),
        (
            ["parallel.mode=fsdp", "parallel.shard_size=3"],
            {},
            "shard_size: got 3; it must divide the number of processes, which is 2",
        ),
        (
            ["parallel.mode=fsdp", "parallel.shard_size=2"],
            {"nodes": "1-2"},
            "shard_size: got 2; it must divide the number of processes, which is 1 on 1 node(s)",
        ),
    ],
)
def test_reports_what_does_not_fit(
    overrides: list[str], wanted: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError) as raised:
        request(*overrides, **wanted)
    assert problem in str(raised.value)


@pytest.mark.parametrize("source", ["sample", "uniref50", "s3://bucket/a.fasta", "/fsx/a.fasta"])
def test_sources_that_nodes_can_read(source: str) -> None:
    assert request(f"data.source=[{source}]")["job"]["stage"] == "train"


def test_reports_all_problems_at_once() -> None:
    with pytest.raises(ValueError, match=r"3 problem\(s\)"):
        request("runs=/root/runs", image=None, nodes="9")


def test_the_user_of_a_job() -> None:
    assert job_user(CLUSTER, None) == "ubuntu"
    names = [user.name for user in P5.access.users]
    assert len(names) > 1
    with pytest.raises(ValueError, match=f"--user: got none; give the user of the job: {names[0]}"):
        job_user(P5, None)
    with pytest.raises(ValueError, match="--user: got nobody"):
        job_user(P5, "nobody")
    assert job_user(P5, names[1]) == names[1]


def test_on_the_cluster_everybody_submits_for_themselves() -> None:
    assert job_user(P5, None, "ada") == job_user(P5, "ada", "ada") == "ada"
    with pytest.raises(ValueError, match="--user: got ben; on the cluster, jobs belong to ada"):
        job_user(P5, "ben", "ada")


def test_folders_are_on_lustre() -> None:
    """Below the home where homes are there; ubuntu's is on each node's own disk."""
    name = P5.access.users[0].name
    expected = f"/fsx/{name}/esm2" if P5.storage.home else f"/fsx/home/{name}/esm2"
    assert user_folder(P5, name) == expected
    assert user_folder(P5, "ubuntu") == "/fsx/ubuntu/esm2"


def test_without_lustre_runs_are_in_homes_and_images_beside_them() -> None:
    cluster = shipped("slurm", storage={"lustre": "none", "home": {}})
    folder = user_folder(cluster, "ubuntu")
    assert folder == "/home/ubuntu/esm2"
    image = f"{shared_folder(cluster, None)}/esm2.sqsh"
    assert image == "/home/shared/images/esm2.sqsh"
    found = request(cluster=cluster, folder=folder, image=image)
    assert found["job"]["run_dir"] == f"{folder}/runs/esm2_8m_sample"
    with pytest.raises(ValueError, match="/home"):
        request(cluster=cluster, folder=folder, image=IMAGE)
