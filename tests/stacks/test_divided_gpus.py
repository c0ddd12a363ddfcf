"""Stack of an EKS cluster with slices of GPUs: the operator, the label, and quotas that SageMaker accepts."""

from __future__ import annotations

import json

import pytest

from config.eks_cluster import EksCluster
from tests.config.cluster_documents import document
from tests.manifests.helm_runs import STAND_INS, lint
from tests.stacks.intrinsics import Evaluator
from tests.stacks.shapes import request_shape, violations
from tests.stacks.synthesized import only, read_templates, resources, synthesize

P5 = "ml.p5.48xlarge"
SLICES = {"instance_type": P5, "mig_profile": "1g.10gb"}


@pytest.mark.long
def test_gpus_are_divided_and_shared() -> None:
    changes = {
        "name": "divided",
        "instance_groups[p5].mig_profile": "1g.10gb",
        "task_governance.teams[proteins].quota": [{**SLICES, "num_slices": 300}],
        "task_governance.teams[structure].quota": [
            {**SLICES, "num_slices": 100, "vcpus": 300, "memory_gib": 3000},
            {"instance_type": "ml.m5.4xlarge", "vcpus": 8},
        ],
        "task_governance.teams[structure].borrow_limits": [{**SLICES, "num_slices": 14}],
    }
    cluster = EksCluster.model_validate(document("eks-p5", changes))
    templates = read_templates(synthesize(cluster))
    stack = templates["EksHyperPodStack"]
    evaluate = Evaluator(templates, cluster.region)
    charts = {
        chart["Properties"]["Release"]: json.loads(evaluate(chart["Properties"]["Values"]))
        for chart in resources(stack, "Custom::AWSCDK-EKS-HelmChart").values()
    }
    assert set(charts) == {"hyperpod-dependencies", "gpu-operator"}
    assert not charts["hyperpod-dependencies"]["nvidia-device-plugin"]["devicePlugin"]["enabled"]
    lint(STAND_INS / "gpu-operator", charts["gpu-operator"])
    groups = only(stack, "AWS::SageMaker::Cluster")["InstanceGroups"]
    labels = [group.get("KubernetesConfig", {}).get("Labels") for group in groups]
    assert {"nvidia.com/mig.config": "all-1g.10gb"} in labels
    requests = [
        json.loads(evaluate(quota["Properties"]["Request"]))
        for quota in resources(stack, "Custom::HyperPodComputeQuota").values()
    ]
    for request in requests:
        assert list(violations(request_shape("CreateComputeQuota"), request)) == []
    structure = next(
        request["ComputeQuotaConfig"]
        for request in requests
        if request["ComputeQuotaTarget"]["TeamName"] == "structure"
    )
    partition = {"Type": "mig-1g.10gb", "Count": 100}
    assert structure["ComputeQuotaResources"] == [
        {
            "InstanceType": P5,
            "AcceleratorPartition": partition,
            "VCpu": 300.0,
            "MemoryInGiB": 3000.0,
        },
        {"InstanceType": "ml.m5.4xlarge", "VCpu": 8.0},
    ]
    assert structure["ResourceSharingConfig"]["AbsoluteBorrowLimits"] == [
        {"InstanceType": P5, "AcceleratorPartition": {**partition, "Count": 14}}
    ]
