"""Task governance: quotas of teams and priorities of jobs."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from aws_cdk import CustomResource, Stack
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sagemaker as sagemaker
from aws_cdk import aws_ssm as ssm

from config.eks_cluster import EksCluster
from config.facts import addons
from config.facts.gpu_slices import slices_of
from config.resource_names import POD_SECURITY, ResourceNames, tags_of
from config.stack_division import division
from config.task_governance import BORROW_LIMIT_PERCENT, Quota, Team, team_namespace
from config.task_governance import TaskGovernance as Settings
from constructs import Construct, IDependable
from constructs.custom_resource import ResourceProvider
from constructs.eks.kubernetes_cluster import KubernetesCluster
from constructs.policy.statement_role import Statement

MAX_QUOTA_NAME = 63
"""Maximum length of a quota's name."""
_SHARING = {"lend": "Lend", "dont_lend": "DontLend", "lend_and_borrow": "LendAndBorrow"}
_PREEMPTION = {"lower_priority": "LowerPriority", "never": "Never"}
_POLICIES = "AmazonSage?akerHyper?od*"
"""Pattern of EKS's access policies; AWS spells the name in more than one way."""


class TaskGovernance(Construct):
    """HyperPod's Kueue, the cluster's policy, and a quota for each team, which creates the team's namespace.

    The add-on must see every new pod, so nothing that creates pods may be installed while it starts. A
    function creates policy and quotas, because CloudFormation has types for them only in some regions.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        governance: Settings,
        kubernetes: KubernetesCluster,
        hyperpod: sagemaker.CfnCluster,
        log: logs.CfnLogGroup,
    ) -> None:
        super().__init__(scope, construct_id)
        settings = kubernetes.settings
        self._settings = settings
        self._kubernetes = kubernetes
        self._hyperpod = hyperpod
        kueue = kubernetes.addon(self, "Addon", addons.TASK_GOVERNANCE)
        self._function = ResourceProvider(
            self,
            "Function",
            name="task_governance",
            description="Makes policy and quotas of a HyperPod cluster",
            statements=_statements(
                Stack.of(self), settings, kubernetes.arn, hyperpod.attr_cluster_arn
            ),
            seconds_between_calls=10,
            log=log,
        )
        request = {"Name": settings.name, "SchedulerConfig": _scheduler_config(governance)}
        self._policy = self._resource(self, "Policy", "ClusterSchedulerConfig", request)
        self._policy.node.add_dependency(kueue)
        self.ready = ssm.CfnParameter(self, "Ready", type="String", value=_digest(governance.teams))
        """Resource that everything in the teams' namespaces depends on. The template would grow with the
        square of the teams if each resource depended on each team. The value changes with the teams, so that
        an update also waits for new teams."""
        for team in division(settings).teams:
            self.ready.node.add_dependency(self.add_team(self, team))
        self.ready.node.add_dependency(self._policy)

    def add_team(self, scope: Construct, team: Team) -> IDependable:
        """Create a team's quota, and restrict the pods of its namespace."""
        name = self._settings.name
        quota = self._resource(scope, f"Quota{team.name}", "ComputeQuota", _quota(name, team))
        quota.node.add_dependency(self._policy)
        # The quota creates the namespace without the labels that restrict its pods.
        security = eks.KubernetesPatch(
            scope,
            f"PodSecurity{team.name}",
            cluster=self._kubernetes.cluster,
            resource_name=f"namespace/{team_namespace(team.name)}",
            apply_patch={"metadata": {"labels": POD_SECURITY}},
            # The labels stay as long as the namespace.
            restore_patch={"metadata": {}},
        )
        security.node.add_dependency(quota)
        return security

    def _resource(
        self, scope: Construct, construct_id: str, kind: str, request: Mapping[str, Any]
    ) -> CustomResource:
        tags = [{"Key": key, "Value": value} for key, value in tags_of(self._settings).items()]
        # JSON as text, because CloudFormation turns numbers within properties into texts.
        text = json.dumps(
            {**request, "ClusterArn": self._hyperpod.attr_cluster_arn, "Tags": tags},
            sort_keys=True,
            separators=(",", ":"),
        )
        return self._function.resource(scope, construct_id, kind, {"Kind": kind, "Request": text})


def _digest(teams: Sequence[Team]) -> str:
    """Return a text that changes with the names of the teams."""
    names = " ".join(team.name for team in teams)
    return f"{len(teams)} teams {hashlib.sha256(names.encode()).hexdigest()[:16]}"


def _scheduler_config(governance: Settings) -> dict[str, Any]:
    """Return ``SchedulerConfig`` of the policy."""
    config: dict[str, Any] = {
        "FairShare": "Enabled" if governance.fair_share else "Disabled",
        "IdleResourceSharing": "Enabled" if governance.lend_unallocated else "Disabled",
    }
    if governance.priority_classes:
        config["PriorityClasses"] = [
            {"Name": found.name, "Weight": found.weight} for found in governance.priority_classes
        ]
    return config


def _statements(
    stack: Stack, settings: EksCluster, eks_arn: str, hyperpod_arn: str
) -> list[Statement]:
    """Return the permissions of the function.

    They are those of "Dashboard setup" of task governance in SageMaker's developer guide, narrowed to this
    cluster. They include access entries, because SageMaker admits its own controller to Kubernetes with the
    permissions of the caller that requests a policy or a quota.
    """
    here = f"{stack.region}:{stack.account}"
    governed = f"arn:{stack.partition}:sagemaker:{here}"
    in_eks = f"arn:{stack.partition}:eks:{here}"
    name = ResourceNames(settings).kubernetes_cluster
    entries = f"{in_eks}:access-entry/{name}/*"
    policies = f"arn:{stack.partition}:eks::aws:cluster-access-policy/{_POLICIES}"
    chosen_later = "the service chooses the last part"
    return [
        Statement(
            "GovernTasks",
            [
                "sagemaker:CreateClusterSchedulerConfig",
                "sagemaker:DeleteClusterSchedulerConfig",
                "sagemaker:DescribeClusterSchedulerConfig",
                "sagemaker:UpdateClusterSchedulerConfig",
                "sagemaker:CreateComputeQuota",
                "sagemaker:DeleteComputeQuota",
                "sagemaker:DescribeComputeQuota",
                "sagemaker:UpdateComputeQuota",
                "sagemaker:AddTags",
                "sagemaker:DeleteTags",
                "sagemaker:ListTags",
            ],
            [hyperpod_arn, f"{governed}:cluster-scheduler-config/*", f"{governed}:compute-quota/*"],
            why="the service chooses their ids",
        ),
        Statement("DescribeHyperPod", ["sagemaker:DescribeCluster"], [hyperpod_arn]),
        Statement(
            "FindKueue",
            ["eks:DescribeAddon", "eks:DescribeCluster", "eks:ListAddons"],
            [eks_arn, f"{in_eks}:addon/{name}/*"],
            why=chosen_later,
        ),
        Statement(
            "SeeWhomSageMakerLetsIn",
            ["eks:DescribeAccessEntry", "eks:ListAssociatedAccessPolicies"],
            [entries],
            why=chosen_later,
        ),
        Statement(
            "LetSageMakerIn",
            ["eks:AssociateAccessPolicy", "eks:DisassociateAccessPolicy"],
            [entries],
            # Only HyperPod's policies, not those that would make a principal an administrator.
            {"ArnLike": {"eks:policyArn": policies}},
            why=chosen_later,
        ),
    ]


def _quota(cluster_name: str, team: Team) -> dict[str, Any]:
    """Return the arguments of a team's quota."""
    sharing: dict[str, Any] = {"Strategy": _SHARING[team.sharing]}
    if team.sharing == "lend_and_borrow":
        sharing["BorrowLimit"] = team.borrow_limit_percent or BORROW_LIMIT_PERCENT
        if team.borrow_limits:
            sharing["AbsoluteBorrowLimits"] = [_resources(limit) for limit in team.borrow_limits]
    resources = [_resources(quota) for quota in team.quota]
    return {
        "Name": f"{cluster_name}-{team.name}"[:MAX_QUOTA_NAME].rstrip("-"),
        "ActivationState": "Enabled",
        "ComputeQuotaTarget": {"TeamName": team.name, "FairShareWeight": team.fair_share_weight},
        "ComputeQuotaConfig": {
            **({"ComputeQuotaResources": resources} if resources else {}),
            "ResourceSharingConfig": sharing,
            "PreemptTeamTasks": _PREEMPTION[team.preemption],
        },
    }


def _resources(quota: Quota) -> dict[str, Any]:
    """Return an amount of one instance type as ``ComputeQuotaResourceConfig``."""
    partition = None
    if quota.mig_profile is not None:
        found = slices_of(quota.instance_type)[quota.mig_profile]
        partition = {"Type": found.quota_type, "Count": quota.num_slices}
    values = {
        "Count": quota.num_instances,
        "Accelerators": quota.num_accelerators,
        "AcceleratorPartition": partition,
        "VCpu": quota.vcpus,
        "MemoryInGiB": quota.memory_gib,
    }
    given = {name: value for name, value in values.items() if value is not None}
    return {"InstanceType": quota.instance_type, **given}
