"""Jobs and services on slices of GPUs, and refused requests."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from config.task_governance import Quota
from seqlm.launch.kubernetes_job import job_manifest
from seqlm.launch.kubernetes_service import manifests
from tests.job_schemas.validation import check
from tests.tools.jobs.kubernetes.eks_jobs_made import made, pod, shipped, with_group
from tests.tools.jobs.kubernetes.test_eks_serve import endpoint
from tools.jobs.kubernetes.files import hyp_config
from tools.jobs.kubernetes.serve import pod_service

REPOSITORY = Path(__file__).parents[4]
SLICE = "1g.10gb"
P5 = "ml.p5.48xlarge"
PLAIN = with_group(shipped(), "workers", instance_type=P5, mig_profile=SLICE)
RESOURCE = "nvidia.com/mig-1g.10gb"


def cluster_with_quota(sharing: str = "lend_and_borrow", **amounts: Any) -> Any:
    """The P5 cluster with slices, of which each team has a quota."""
    cluster = with_group(shipped("eks-p5"), "p5", mig_profile=SLICE)
    governance = cluster.task_governance
    assert governance is not None
    teams = [
        team.model_copy(update={"quota": [Quota(instance_type=P5, **amounts)], "sharing": sharing})
        for team in governance.teams
    ]
    return cluster.model_copy(
        update={"task_governance": governance.model_copy(update={"teams": teams})}
    )


@pytest.mark.parametrize("stage", ["train", "embed"])
def test_a_job_requests_one_slice_and_its_share_of_the_node(stage: str) -> None:
    job = made(stage=stage, cluster=PLAIN, gpu_slice=SLICE)
    check(job_manifest(job))
    found = pod(job)
    limits = found["containers"][0]["resources"]["limits"]
    assert limits[RESOURCE] == "1" and "nvidia.com/gpu" not in limits
    assert "vpc.amazonaws.com/efa" not in limits
    assert found["nodeSelector"]["nvidia.com/mig.config"] == "all-1g.10gb"
    assert found["nodeSelector"]["nvidia.com/mig.config.state"] == "success"
    assert (job.num_pods, job.num_processes) == (1, 1)
    # 56 slices share 192 vCPUs and 2,048 GiB.
    assert 1 <= job.resources.num_cpus <= 192 / 56 and 1 <= job.resources.memory_gib <= 2048 / 56


def test_the_documented_notebook_is_placed_as_a_job_is() -> None:
    profile = "1g.20gb"
    page = (REPOSITORY / "docs/gpu-shares.md").read_text()
    text = (
        page.partition("## A notebook on a slice")[2].partition("```yaml\n")[2].partition("```")[0]
    )
    notebook = yaml.safe_load(text)
    check(notebook)
    cluster = with_group(
        cluster_with_quota(num_slices=7, mig_profile=profile), "p5", mig_profile=profile
    )
    job = made(stage="embed", cluster=cluster, team="proteins", gpu_slice=profile)
    assert notebook["metadata"]["namespace"] == job.namespace
    labels = job_manifest(job)["metadata"]["labels"]
    assert notebook["metadata"]["labels"].items() <= labels.items()
    of_job = pod(job)
    assert notebook["spec"]["nodeSelector"].items() <= of_job["nodeSelector"].items()
    assert notebook["spec"]["securityContext"] == of_job["securityContext"]
    assert of_job["tolerations"] == []
    assert all(volume in of_job["volumes"] for volume in notebook["spec"]["volumes"])
    (container,) = notebook["spec"]["containers"]
    for_work = of_job["containers"][0]
    assert all(mount in for_work["volumeMounts"] for mount in container["volumeMounts"])
    assert container["workingDir"] == for_work["workingDir"]
    assert container["securityContext"].items() <= for_work["securityContext"].items()
    slices = "nvidia.com/mig-1g.20gb"
    assert container["resources"]["limits"][slices] == for_work["resources"]["limits"][slices]


def test_hyp_gets_a_slice_in_place_of_a_number_of_nodes() -> None:
    values = hyp_config(made(cluster=PLAIN, gpu_slice=SLICE))
    schema = json.loads((Path(__file__).parents[3] / "job_schemas/hyp_config.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(
        {name: value for name, value in values.items() if name not in ("template", "version")}
    )
    assert values["accelerator_partition_type"] == "mig-1g.10gb"
    assert values["accelerator_partition_count"] == 1 and "node_count" not in values


def test_whole_gpus_come_from_other_groups() -> None:
    workers = next(group for group in PLAIN.instance_groups if group.name == "workers")
    whole = workers.model_copy(update={"name": "whole", "mig_profile": None})
    both = PLAIN.model_copy(update={"instance_groups": [*PLAIN.instance_groups, whole]})
    limits = pod(made(cluster=both, nodes="1"))["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "8" and RESOURCE not in limits
    limits = pod(made(cluster=both, gpu_slice=SLICE))["containers"][0]["resources"]["limits"]
    assert limits[RESOURCE] == "1"


def test_data_are_prepared_beside_slices() -> None:
    assert RESOURCE not in pod(made(stage="data", cluster=PLAIN))["containers"][0]["resources"]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (
            {},
            "--gpu-slice: got none; the GPUs of workers are divided: give --gpu-slice 1g.10gb, or another",
        ),
        ({"gpu_slice": "3g.40gb"}, "--gpu-slice: got 3g.40gb; the cluster file has 1g.10gb"),
        (
            {"gpu_slice": SLICE, "group": "system"},
            "--gpu-slice: got 1g.10gb; group system has no mig_profile",
        ),
        (
            {"gpu_slice": SLICE, "nodes": "2"},
            "NODES: got 2; a job has one slice, because NCCL connects no slices",
        ),
        (
            {"gpu_slice": SLICE, "gpus_per_node": 7},
            "--gpus-per-node: got 7; a job has one slice, because NCCL connects no slices",
        ),
        (
            {"gpu_slice": SLICE, "stage": "data"},
            "--gpu-slice: got 1g.10gb; data uses no GPU",
        ),
    ],
)
def test_requests_that_do_not_fit_slices(wanted: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        made(cluster=PLAIN, **wanted)
    assert message in str(caught.value)


def test_a_team_has_slices_of_its_quota() -> None:
    cluster = cluster_with_quota(num_slices=7, mig_profile=SLICE)
    job = made(cluster=cluster, team="proteins", gpu_slice=SLICE)
    assert job.placement.queue == "hyperpod-ns-proteins-localqueue"
    lent = made(cluster=cluster_with_quota(vcpus=8), team="proteins", gpu_slice=SLICE)
    assert lent.resources.gpu_slice == SLICE
    other = cluster_with_quota("lend", vcpus=8)
    with pytest.raises(
        ValueError, match="the team's quota has no such slice, and it may borrow none"
    ):
        made(cluster=other, team="proteins", gpu_slice=SLICE)


def with_quota(sharing: str, group: str = "p5", **amounts: Any) -> Any:
    """The P5 cluster, in which the first team has one quota."""
    cluster = shipped("eks-p5")
    governance = cluster.task_governance
    assert governance is not None
    types = {found.name: found.instance_type for found in cluster.instance_groups}
    quota = Quota(instance_type=types[group] or "", **amounts)
    first, *others = governance.teams
    changed = first.model_copy(
        update={"quota": [quota], "sharing": sharing, "borrow_limit_percent": None}
    )
    return cluster.model_copy(
        update={"task_governance": governance.model_copy(update={"teams": [changed, *others]})}
    )


def with_limit(cluster: Any, limit: Quota) -> Any:
    """The cluster, in which all teams may borrow this much."""
    governance = cluster.task_governance
    teams = [team.model_copy(update={"borrow_limits": [limit]}) for team in governance.teams]
    return cluster.model_copy(
        update={"task_governance": governance.model_copy(update={"teams": teams})}
    )


@pytest.mark.parametrize(
    ("cluster", "wanted", "message"),
    [
        (
            with_quota("lend", num_accelerators=8, memory_gib=64),
            {"nodes": "1"},
            "1 pod(s) of the job request 1739 GiB of memory, and the team's quota of ml.p5.48xlarge has 64, ",
        ),
        (
            with_quota("lend_and_borrow", num_accelerators=8, vcpus=100),
            {"nodes": "1"},
            "request 171 vCPUs, and the team's quota of ml.p5.48xlarge has 100, 150 with all that it may ",
        ),
        (
            with_quota("dont_lend", group="system", vcpus=2),
            {"stage": "data", "group": "system"},
            "request 8 vCPUs, and the team's quota of ml.m5.4xlarge has 2, 2 with all",
        ),
        (
            with_quota("lend", group="system", vcpus=8),
            {"nodes": "1"},
            "its quota has no ml.p5.48xlarge, and with sharing: lend it borrows none; add a quota",
        ),
        (
            with_quota("lend", vcpus=400),
            {"nodes": "1"},
            "its quota of ml.p5.48xlarge has no whole H100, and with sharing: lend it borrows none; add",
        ),
        (
            with_quota("lend", num_accelerators=4),
            {"nodes": "1"},
            "NODES: got 1; the team's quota of ml.p5.48xlarge is 4 accelerator(s), 4 with all that it may ",
        ),
        (
            with_quota("lend_and_borrow", num_accelerators=4),
            {},
            "is 4 accelerator(s), 6 with all that it may borrow; each node takes 8",
        ),
        (
            with_quota("lend", num_accelerators=12),
            {"nodes": "4", "gpus_per_node": 4},
            "NODES: got 4; the team's quota of ml.p5.48xlarge is 12 accelerator(s), 12 with all that it may ",
        ),
    ],
)
def test_quotas_that_never_admit_a_job(cluster: Any, wanted: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        made(cluster=cluster, team="proteins", **wanted)
    assert message in str(caught.value)


def test_quotas_of_cpus_and_memory_admit_what_fits() -> None:
    assert made(cluster=with_quota("lend", num_accelerators=8), team="proteins").num_pods == 1
    ample = with_quota("lend", num_accelerators=8, vcpus=192, memory_gib=2048)
    assert made(cluster=ample, team="proteins", nodes="1").num_pods == 1
    borrowing = with_quota("lend_and_borrow", num_accelerators=8, vcpus=120)
    assert made(cluster=borrowing, team="proteins", nodes="1").num_pods == 1
    # The quota has the GPUs, and the limit the missing CPUs.
    quota = with_quota("lend_and_borrow", num_accelerators=8, vcpus=100)
    limited = with_limit(quota, Quota(instance_type=P5, vcpus=80))
    assert made(cluster=limited, team="proteins", nodes="1").num_pods == 1
    # Its GPUs are lent by others.
    lent = with_quota("lend_and_borrow", vcpus=8)
    assert made(cluster=lent, team="proteins", nodes="1").num_pods == 1


@pytest.mark.parametrize(
    ("sharing", "amount", "wanted", "num_pods"),
    [
        ("lend", 12, {"nodes": "3", "gpus_per_node": 4}, 3),
        ("lend", 4, {"gpus_per_node": 4}, 1),
        ("lend", 4, {"stage": "data"}, 1),
        # 12 and half of them that are lent are 18.
        ("lend_and_borrow", 12, {"nodes": "2"}, 2),
    ],
)
def test_a_quota_of_parts_of_nodes_admits_what_its_accelerators_suffice_for(
    sharing: str, amount: int, wanted: dict[str, Any], num_pods: int
) -> None:
    cluster = with_quota(sharing, num_accelerators=amount)
    assert made(cluster=cluster, team="proteins", **wanted).num_pods == num_pods


def test_own_and_lent_parts_of_a_node_are_one_node() -> None:
    cluster = with_limit(
        with_quota("lend_and_borrow", num_accelerators=4),
        Quota(instance_type=P5, num_accelerators=4),
    )
    assert made(cluster=cluster, team="proteins", nodes="1").num_pods == 1


def test_quotas_of_several_types_do_not_add_up_for_a_job() -> None:
    cluster = with_group(
        with_quota("lend", num_instances=1),
        "p5",
        instance_type=None,
        instance_types=[P5, "ml.p5e.48xlarge"],
        training_plan_arn=None,
    )
    governance = cluster.task_governance
    assert governance is not None
    first, *others = governance.teams
    second = Quota(instance_type="ml.p5e.48xlarge", num_instances=1)
    changed = first.model_copy(update={"quota": [*first.quota, second]})
    teams = governance.model_copy(update={"teams": [changed, *others]})
    cluster = cluster.model_copy(update={"task_governance": teams})
    assert made(cluster=cluster, team="proteins").num_pods == 1
    with pytest.raises(ValueError, match=r"is 1 node\(s\), 1 with all that it may borrow"):
        made(cluster=cluster, team="proteins", nodes="2")


@pytest.mark.parametrize("gpu_slice", [None, SLICE])
def test_a_service_needs_devices_that_its_team_has_or_may_borrow(gpu_slice: str | None) -> None:
    cluster = cluster_with_quota("dont_lend", vcpus=400)
    if gpu_slice is None:
        cluster = with_group(cluster, "p5", mig_profile=None)
    options = Namespace(
        team="proteins", priority=None, namespace=None, group=None, gpu_slice=gpu_slice
    )
    with pytest.raises(ValueError, match=r"has no (such slice|whole H100), and .* borrow"):
        pod_service(cluster, endpoint(), options, version="abc")


def test_a_limit_of_borrowing_counts() -> None:
    limited = with_limit(shipped("eks-p5"), Quota(instance_type=P5, num_accelerators=8))
    assert made(cluster=limited, team="proteins", nodes="7").num_pods == 7
    with pytest.raises(ValueError, match=r"is 6 node\(s\), 7 with all that it may borrow"):
        made(cluster=limited, team="proteins", nodes="8")


def test_a_model_is_served_on_a_slice() -> None:
    options = Namespace(team=None, priority=None, namespace=None, group=None, gpu_slice=SLICE)
    service = pod_service(PLAIN, endpoint(), options, version="abc")
    for manifest in manifests(service):
        check(manifest)
    assert service.resources.sizes_with_devices()[RESOURCE] == "1"
    assert service.resources.gpus_text == "1 slice(s) 1g.10gb of a GPU"
    without = endpoint(kubernetes={"replicas": 1, "gpus": 0})
    with pytest.raises(
        ValueError, match=r"kubernetes\.gpus: got 0; a pod of --gpu-slice 1g\.10gb has"
    ):
        pod_service(PLAIN, without, options, version="abc")
    options.gpu_slice = None
    with pytest.raises(ValueError, match="--gpu-slice: got none; the GPUs of workers are divided"):
        pod_service(PLAIN, endpoint(), options, version="abc")


def test_slices_of_a_group_without_gpus_are_refused_for_a_team_too() -> None:
    cluster = cluster_with_quota(num_slices=7, mig_profile=SLICE)
    with pytest.raises(ValueError, match="group system has no mig_profile"):
        made(cluster=cluster, team="proteins", group="system", gpu_slice=SLICE)


def test_a_service_whose_pods_a_quota_never_admits_is_refused() -> None:
    cluster = cluster_with_quota("lend", num_slices=7, mig_profile=SLICE, memory_gib=8)
    options = Namespace(team="proteins", priority=None, namespace=None, group=None, gpu_slice=SLICE)
    asked = {"replicas": 9, "gpus": 1, "cpus": 2}
    fits = endpoint(kubernetes={**asked, "memory_gib": 8})
    assert pod_service(cluster, fits, options, version="abc").replicas == 9
    with pytest.raises(ValueError) as caught:
        pod_service(
            cluster, endpoint(kubernetes={**asked, "memory_gib": 9}), options, version="abc"
        )
    message = "--team: got proteins; each pod requests 9 GiB of memory, and the team's quota of"
    assert f"{message} {P5} has 8, 8 with all that it may borrow" in str(caught.value)
    # No quota applies in a namespace of one's own.
    options.team = None
    options.namespace = "mine"
    assert pod_service(
        cluster, endpoint(kubernetes={**asked, "memory_gib": 9}), options, version="abc"
    )
