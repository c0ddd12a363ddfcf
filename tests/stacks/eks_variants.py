"""Clusters on EKS that are not shipped: every option at once, the largest allowed, one in an existing VPC."""

from __future__ import annotations

from functools import cache
from typing import Any

from config.eks_cluster import EksCluster
from tests.stacks.base_templates import EXISTING_VPC
from tests.stacks.synthesized import Templates, load, read_templates, synthesize

_P5 = "clusters/eks-p5.yaml"
_SYSTEM = {"name": "system", "instance_type": "ml.m5.4xlarge", "num_instances": 2}
_TEAM = "arn:aws:iam::123456789012:role/team"


def _group(name: str, **options: Any) -> dict[str, Any]:
    return {"name": name, "instance_type": "ml.p5.48xlarge", "num_instances": 8} | options


EKS_EVERY_OPTION: EksCluster = load(
    _P5,
    name="every-eks-option",
    tags={"team": "proteins"},
    kubernetes={
        "version": "1.33",
        "endpoint": "public_and_private",
        "public_access_cidrs": ["203.0.113.0/24"],
        "control_plane_logs": ["audit"],
        "access": [
            {"principal_arn": f"{_TEAM}-a", "level": "cluster_admin"},
            {"principal_arn": f"{_TEAM}-b", "level": "edit"},
            {
                "principal_arn": f"{_TEAM}-c",
                "level": "view",
                "namespaces": ["hyperpod-ns-proteins"],
            },
        ],
    },
    training_operator="kubeflow",
    autoscaling="karpenter",
    container_insights=True,
    memory_states={"storage": "managed", "percent": 50},
    studio={
        "sign_in": "identity_center",
        "partitions": "per_profile",
        "profiles": [{"name": "ada", "sign_in_name": "ada@example.org"}],
    },
    instance_groups=[
        _SYSTEM,
        _group(
            "small",
            instance_type="ml.g5.2xlarge",
            ebs_gib=None,
            scheduled_update="cron(30 22 1 * ? *)",
            rolling_update={"max_nodes": 1, "rollback_alarms": ["gpu-errors"]},
        ),
        _group(
            "spot",
            instance_type=None,
            instance_types=["ml.m5.12xlarge", "ml.m6i.12xlarge"],
            capacity="spot",
            availability_zone_id="use1-az4",
        ),
        _group(
            "scaled",
            instance_type="ml.g6.12xlarge",
            num_instances=0,
            max_instances=4,
            labels={"lab": "structure"},
            taints=[{"key": "lab", "value": "structure", "effect": "NoSchedule"}],
        ),
        _group(
            "trainium", instance_type="ml.trn1.32xlarge", num_instances=1, auto_patch="when_idle"
        ),
        _group(
            "p5",
            training_plan_arn="arn:aws:sagemaker:us-east-1:123456789012:training-plan/esm2-p5",
            min_instances=4,
            threads_per_core=1,
            efa_only=True,
            deep_health_checks=["InstanceStress", "InstanceConnectivity"],
            image_release_version="1.2.3",
        ),
    ],
)

# As many groups and priorities as the services take, with names as long as they may be. 40 tags, or 50 labels
# and 50 taints on each of them, would be no template any more, which a synthesis says.
EKS_LARGEST: EksCluster = load(
    _P5,
    name="n" * 24,
    region="eu-west-1",
    memory_states={"storage": "nodes"},
    tags={f"tag-{number:02d}": "v" * 255 for number in range(7)},
    network={
        "vpc": "new",
        "availability_zone_ids": ["euw1-az1", "euw1-az2", "euw1-az3"],
        "interface_endpoints": True,
        "private_prefix_length": 18,
    },
    kubernetes={
        "access": [
            {
                "principal_arn": f"{_TEAM}-{number}",
                "level": "edit",
                "namespaces": [f"hyperpod-ns-{'t' * 38}{team:02d}" for team in range(20)],
            }
            for number in range(10)
        ]
    },
    task_governance={
        "teams": [
            {
                "name": f"{'t' * 38}{number:02d}",
                "quota": [{"instance_type": "ml.p5.48xlarge", "num_instances": 1}],
            }
            for number in range(20)
        ],
        "priority_classes": [
            {"name": f"{'c' * 38}{number:02d}", "weight": 10 * number} for number in range(10)
        ],
    },
    instance_groups=[
        _SYSTEM,
        *(
            _group(
                f"{'g' * 61}{number:02d}",
                num_instances=1,
                labels={f"label-{key:02d}": "v" * 63 for key in range(10)},
                taints=[
                    {"key": f"taint-{key:02d}", "value": "v" * 63, "effect": "NoSchedule"}
                    for key in range(10)
                ],
            )
            for number in range(99)
        ),
    ],
)

EKS_EXISTING_VPC: EksCluster = load(
    "clusters/eks.yaml",
    name="existing-vpc",
    region="us-east-1",
    network=EXISTING_VPC,
    prometheus=False,
)

_VARIANTS = {
    "eks_every_option": EKS_EVERY_OPTION,
    "eks_largest": EKS_LARGEST,
    "eks_existing_vpc": EKS_EXISTING_VPC,
}
EKS_VARIANTS = tuple(_VARIANTS)


def eks_variant(name: str) -> EksCluster:
    return _VARIANTS[name]


@cache
def eks_variant_templates(name: str) -> Templates:
    return read_templates(synthesize(_VARIANTS[name]))
