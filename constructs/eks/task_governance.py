"""Quotas of teams and priorities of jobs."""

import json
from collections.abc import Mapping
from typing import Any

from aws_cdk import CustomResource, Stack
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sagemaker as sagemaker

from config.eks_cluster import EksCluster
from config.facts import addons
from config.resource_names import POD_SECURITY, tags_of
from config.task_governance import BORROW_LIMIT_PERCENT, Team, team_namespace
from config.task_governance import TaskGovernance as Settings
from constructs import Construct
from constructs.custom_resource import ResourceProvider
from constructs.eks.kubernetes_cluster import KubernetesCluster
from constructs.policy.statement_role import Statement

_SHARING = {"lend": "Lend", "dont_lend": "DontLend", "lend_and_borrow": "LendAndBorrow"}
_PREEMPTION = {"lower_priority": "LowerPriority", "never": "Never"}
_POLICIES = "AmazonSage?akerHyper?od*"
"""Pattern of EKS's access policies; AWS spells the name in more than one way."""


class TaskGovernance(Construct):
    """HyperPod's Kueue, the cluster's one policy, and a quota for each team, which makes its namespace.

    The add-on watches what pods are made: nothing that makes pods may be installed while it comes up. Policy
    and quotas are made by a function, because CloudFormation has types for both in a few of the regions only.
    """

    def __init__(
        self,
        scope: Construct,
        *,
        governance: Settings,
        kubernetes: KubernetesCluster,
        hyperpod: sagemaker.CfnCluster,
        log: logs.CfnLogGroup,
    ) -> None:
        super().__init__(scope, "TaskGovernance")
        settings = kubernetes.settings
        self._settings, self._hyperpod = settings, hyperpod
        kueue = kubernetes.addon(self, "Addon", addons.TASK_GOVERNANCE)
        self._function = ResourceProvider(
            self,
            "task_governance",
            description="Makes policy and quotas of a HyperPod cluster",
            statements=_statements(Stack.of(self), settings, kubernetes.arn, hyperpod.attr_cluster_arn),
            seconds_between_calls=10,
            log=log,
        )
        classes = [{"Name": found.name, "Weight": found.weight} for found in governance.priority_classes]
        scheduler = {
            **({"PriorityClasses": classes} if classes else {}),
            "FairShare": "Enabled" if governance.fair_share else "Disabled",
            "IdleResourceSharing": "Enabled" if governance.lend_unallocated else "Disabled",
        }
        request = {"Name": settings.name, "SchedulerConfig": scheduler}
        policy = self._resource("Policy", "ClusterSchedulerConfig", request)
        policy.node.add_dependency(kueue)
        for team in governance.teams:
            quota = self._resource(f"Quota{team.name}", "ComputeQuota", _quota(settings.name, team))
            quota.node.add_dependency(policy)
            # The quota makes the namespace, and says nothing of what its pods may do.
            security = eks.KubernetesPatch(
                self,
                f"PodSecurity{team.name}",
                cluster=kubernetes.cluster,
                resource_name=f"namespace/{team_namespace(team.name)}",
                apply_patch={"metadata": {"labels": POD_SECURITY}},
                # For as long as there is a namespace.
                restore_patch={"metadata": {}},
            )
            security.node.add_dependency(quota)

    def _resource(self, construct_id: str, kind: str, request: Mapping[str, Any]) -> CustomResource:
        tags = [{"Key": key, "Value": value} for key, value in tags_of(self._settings).items()]
        # As text: CloudFormation makes texts of the numbers that it hands on.
        text = json.dumps(
            {**request, "ClusterArn": self._hyperpod.attr_cluster_arn, "Tags": tags},
            sort_keys=True,
            separators=(",", ":"),
        )
        return self._function.resource(self, construct_id, kind, {"Kind": kind, "Request": text})


def _statements(stack: Stack, settings: EksCluster, eks_arn: str, hyperpod_arn: str) -> list[Statement]:
    """SageMaker developer guide, "Dashboard setup" of task governance, narrowed to this cluster.

    SageMaker lets its own controller into Kubernetes with the rights of who asks for a policy or a quota.
    """
    here = f"{stack.region}:{stack.account}"
    governed = f"arn:{stack.partition}:sagemaker:{here}"
    in_eks = f"arn:{stack.partition}:eks:{here}"
    entries = f"{in_eks}:access-entry/{settings.name}/*"
    policies = f"arn:{stack.partition}:eks::aws:cluster-access-policy/{_POLICIES}"
    made_up = "the last part is made up by the service"
    return [
        Statement(
            "GovernTasks",
            [
                f"sagemaker:{verb}{kind}"
                for kind in ("ClusterSchedulerConfig", "ComputeQuota")
                for verb in ("Create", "Delete", "Describe", "Update")
            ]
            + ["sagemaker:AddTags", "sagemaker:DeleteTags", "sagemaker:ListTags"],
            [hyperpod_arn, f"{governed}:cluster-scheduler-config/*", f"{governed}:compute-quota/*"],
            why="the service makes up their ids",
        ),
        Statement("DescribeHyperPod", ["sagemaker:DescribeCluster"], [hyperpod_arn]),
        Statement(
            "FindKueue",
            ["eks:DescribeAddon", "eks:DescribeCluster", "eks:ListAddons"],
            [eks_arn, f"{in_eks}:addon/{settings.name}/*"],
            why=made_up,
        ),
        Statement(
            "SeeWhomSageMakerLetsIn",
            ["eks:DescribeAccessEntry", "eks:ListAssociatedAccessPolicies"],
            [entries],
            why=made_up,
        ),
        Statement(
            "LetSageMakerIn",
            ["eks:AssociateAccessPolicy", "eks:DisassociateAccessPolicy"],
            [entries],
            # Policies of HyperPod's alone: not those that would make someone an administrator.
            {"ArnLike": {"eks:policyArn": policies}},
            made_up,
        ),
    ]


def _quota(cluster_name: str, team: Team) -> dict[str, Any]:
    sharing: dict[str, Any] = {"Strategy": _SHARING[team.sharing]}
    if team.sharing == "lend_and_borrow":
        sharing["BorrowLimit"] = team.borrow_limit_percent or BORROW_LIMIT_PERCENT
    resources = [
        {
            "InstanceType": quota.instance_type,
            **(
                {"Accelerators": quota.num_accelerators}
                if quota.num_instances is None
                else {"Count": quota.num_instances}
            ),
        }
        for quota in team.quota
    ]
    return {
        "Name": f"{cluster_name}-{team.name}"[:63].rstrip("-"),
        "ActivationState": "Enabled",
        "ComputeQuotaTarget": {"TeamName": team.name, "FairShareWeight": team.fair_share_weight},
        "ComputeQuotaConfig": {
            **({"ComputeQuotaResources": resources} if resources else {}),
            "ResourceSharingConfig": sharing,
            "PreemptTeamTasks": _PREEMPTION[team.preemption],
        },
    }
