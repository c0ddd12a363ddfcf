"""Nested stack of teams for which the cluster's own stack has no room."""

from collections.abc import Sequence

from aws_cdk import NestedStack

from config.task_governance import Team, team_namespace
from constructs import Construct
from constructs.eks.job_services import JobProxy, MlflowAccess
from constructs.eks.kubernetes_cluster import KubernetesCluster
from constructs.eks.lustre_volumes import LustreVolumes
from constructs.eks.node_memory import NodeMemory
from constructs.eks.task_governance import TaskGovernance
from manifests.job_access import job_bindings
from manifests.training_collector import collector_bindings


class TeamStack(NestedStack):
    """Nested stack of teams, with everything that the cluster's own stack has for the first teams."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        number: int,
        teams: Sequence[Team],
        kubernetes: KubernetesCluster,
        governance: TaskGovernance,
        volumes: LustreVolumes,
        memory: NodeMemory | None,
        environment: MlflowAccess | JobProxy | None,
        has_collector: bool,
    ) -> None:
        """Create the stack.

        Args:
            scope: parent construct.
            construct_id: id within the parent.
            number: number of the stack, in names of objects of the whole cluster.
            teams: teams of the stack.
            kubernetes: cluster of the jobs.
            governance: policy of the quotas.
            volumes: volumes of the namespaces.
            memory: folders of the namespaces in the memory of nodes, if the cluster has any.
            environment: variables of jobs, if the cluster has any.
            has_collector: whether the cluster collects metrics of trainings.
        """
        super().__init__(scope, construct_id, suppress_template_indentation=True)
        namespaces = [team_namespace(team.name) for team in teams]
        governed = Construct(self, "Teams")
        for team in teams:
            governance.add_team(governed, team)
        volumes.add_namespaces(Construct(self, "Lustre"), namespaces, after=governed)
        if memory:
            memory.add_namespaces(Construct(self, "NodeMemory"), namespaces, after=[governed])
        bindings = job_bindings(namespaces, suffix=f"-{number}")
        if has_collector:
            bindings += collector_bindings(namespaces)
        kubernetes.manifest(self, "JobRoles", bindings, after=[governed])
        if environment:
            environment.add_namespaces(self, namespaces, after=governed)
