"""Quotas of teams and priorities of jobs."""

from __future__ import annotations

from typing import Any

from aws_cdk import Acknowledgment, CfnResource, Validations
from aws_cdk import aws_sagemaker as sagemaker

from config import addons
from config.cluster_tags import tags_of
from config.eks_cluster import EksCluster
from config.task_governance import Quota, Team
from config.task_governance import TaskGovernance as Settings
from constructs import Construct
from constructs.addon import addon
from constructs.eks_hyperpod_cluster import EksHyperPodCluster
from constructs.kubernetes_cluster import KubernetesCluster

_SHARING = {"lend": "Lend", "dont_lend": "DontLend", "lend_and_borrow": "LendAndBorrow"}
_PREEMPTION = {"lower_priority": "LowerPriority", "never": "Never"}
BORROW_LIMIT_PERCENT = 50
"""The service's own, which it wants to be told where a team borrows."""
MAX_QUOTA_NAME = 63


class TaskGovernance(Construct):
    """HyperPod's Kueue, the cluster's one policy, and a quota for each team, which makes its namespace.

    The add-on watches what pods are made: nothing that makes pods may be installed while it comes up.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: EksCluster,
        governance: Settings,
        kubernetes: KubernetesCluster,
        hyperpod: EksHyperPodCluster,
    ) -> None:
        super().__init__(scope, construct_id)
        kueue = addon(self, "Addon", settings=settings, kubernetes=kubernetes, name=addons.TASK_GOVERNANCE)
        config = sagemaker.CfnClusterSchedulerConfig
        policy = config(
            self,
            "Policy",
            name=settings.name,
            cluster_arn=hyperpod.arn,
            scheduler_config=config.SchedulerConfigProperty(
                priority_classes=[
                    config.PriorityClassProperty(name=found.name, weight=found.weight)
                    for found in governance.priority_classes
                ]
                or None,
                fair_share="Enabled" if governance.fair_share else "Disabled",
                idle_resource_sharing="Enabled" if governance.lend_unallocated else "Disabled",
            ),
        )
        policy.node.add_dependency(kueue)
        for team in governance.teams:
            # The library has no construct for the type, which is in CloudFormation's registry.
            quota = CfnResource(
                self,
                f"Quota{team.name}",
                type="AWS::SageMaker::ComputeQuota",
                properties={
                    "Name": f"{settings.name}-{team.name}"[:MAX_QUOTA_NAME].rstrip("-"),
                    "ClusterArn": hyperpod.arn,
                    "ActivationState": "Enabled",
                    "ComputeQuotaTarget": {
                        "TeamName": team.name,
                        "FairShareWeight": team.fair_share_weight,
                    },
                    "ComputeQuotaConfig": _quota(team),
                    # The library tags only types that it knows.
                    "Tags": [{"Key": key, "Value": value} for key, value in tags_of(settings).items()],
                },
            )
            quota.node.add_dependency(policy)
            Validations.of(quota).acknowledge(
                Acknowledgment(
                    id="CloudFormation-Validate::F3006", reason="newer than the library's list of types"
                )
            )


def _quota(team: Team) -> dict[str, Any]:
    sharing: dict[str, Any] = {"Strategy": _SHARING[team.sharing]}
    if team.sharing == "lend_and_borrow":
        sharing["BorrowLimit"] = team.borrow_limit_percent or BORROW_LIMIT_PERCENT
    return {
        **({"ComputeQuotaResources": [_resource(quota) for quota in team.quota]} if team.quota else {}),
        "ResourceSharingConfig": sharing,
        "PreemptTeamTasks": _PREEMPTION[team.preemption],
    }


def _resource(quota: Quota) -> dict[str, Any]:
    amount = (
        {"Count": quota.num_instances}
        if quota.num_instances is not None
        else {"Accelerators": quota.num_accelerators}
    )
    return {"InstanceType": quota.instance_type, **amount}
