"""The HyperPod cluster below which EKS places jobs."""

from __future__ import annotations

from typing import Any

from aws_cdk import Tags
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sagemaker as sagemaker

from config.eks_cluster import EksCluster, EksInstanceGroup
from constructs import Construct, IDependable
from constructs.nodes.instance_group import Group, common_properties, volumes, vpc_config
from constructs.policy.findings import acknowledge
from constructs.vpc.network import Network

ON_CREATE = "on_create.sh"
"""Runs once on each new node before it joins."""


class EksHyperPodCluster(Construct):
    """Nodes that HyperPod keeps healthy and EKS's control plane uses."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: EksCluster,
        network: Network,
        eks_cluster_arn: str,
        role: iam.IRole,
        autoscaling_role: iam.IRole | None,
        lifecycle_s3_uri: str,
        key: kms.IKey | None,
        depends_on: list[IDependable],
    ) -> None:
        super().__init__(scope, construct_id)
        self.resource = sagemaker.CfnCluster(
            self,
            "Resource",
            cluster_name=settings.name,
            instance_groups=[
                Group(
                    **common_properties(group, network=network, role=role),
                    image_release_version=group.image_release_version,
                    life_cycle_config={"sourceS3Uri": lifecycle_s3_uri, "onCreate": ON_CREATE},
                    instance_storage_configs=volumes(group, key) or None,
                    kubernetes_config=_kubernetes_config(group),
                )
                for group in settings.instance_groups
            ],
            vpc_config=vpc_config(network, None),
            node_recovery="Automatic" if settings.node_recovery == "automatic" else "None",
            node_provisioning_mode="Continuous" if settings.continuous_provisioning else None,
            orchestrator={"eks": {"clusterArn": eks_cluster_arn}},
            cluster_role=autoscaling_role.role_arn if autoscaling_role else None,
            auto_scaling={"mode": "Enable", "autoScalerType": "Karpenter"} if autoscaling_role else None,
        )
        # By it AWS's policy for the training operator tells whose nodes it may look at.
        Tags.of(self.resource).add("SageMaker", "true")
        self.resource.node.add_dependency(role, *depends_on)
        if any(group.image_release_version for group in settings.instance_groups):
            newer = "ImageReleaseVersion is newer than the library's own schema; cfn-lint has it"
            acknowledge(self.resource, {"CloudFormation-Validate::F3002": newer})

    @property
    def arn(self) -> str:
        return self.resource.attr_cluster_arn


def _kubernetes_config(group: EksInstanceGroup) -> dict[str, Any] | None:
    taints = [{"key": taint.key, "value": taint.value, "effect": taint.effect} for taint in group.taints]
    found = {"labels": group.labels, "taints": taints}
    return {name: value for name, value in found.items() if value} or None
