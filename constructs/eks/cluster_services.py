"""Services that are installed after the nodes exist."""

from itertools import pairwise

from aws_cdk import aws_logs as logs
from aws_cdk import aws_sagemaker as sagemaker

from config.eks_cluster import has_node_memory
from config.facts import addons
from config.proxy_environment import proxy_environment
from config.stack_division import division
from constructs import Construct, IConstruct
from constructs.eks.job_services import JobProxy, MlflowAccess, TrainingCollector, TrainingOperator
from constructs.eks.kubernetes_cluster import KubernetesCluster
from constructs.eks.lustre_volumes import LustreVolumes
from constructs.eks.nested_teams import TeamStack
from constructs.eks.node_memory import NodeMemory
from constructs.eks.observability import ContainerInsights, Observability
from constructs.eks.task_governance import TaskGovernance
from constructs.monitoring.managed_mlflow import ManagedMlflow
from constructs.monitoring.metrics_workspace import MetricsWorkspace
from constructs.storage.file_systems import LustreFileSystem
from manifests.job_access import job_roles
from manifests.karpenter import karpenter_objects


class ClusterServices(Construct):
    """DNS, certificates and quotas, one after the other, and then all other services in parallel.

    The certificates are for webhooks. Task governance precedes everything that creates pods, because its
    webhook must see them, and everything in the namespaces of its teams.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        kubernetes: KubernetesCluster,
        hyperpod: sagemaker.CfnCluster,
        lustre: LustreFileSystem,
        metrics: MetricsWorkspace | None,
        mlflow: ManagedMlflow | None,
        log: logs.CfnLogGroup,
    ) -> None:
        super().__init__(scope, construct_id)
        settings = kubernetes.settings
        governance: TaskGovernance | None = None
        steps: list[IConstruct] = [
            kubernetes.addon(self, "CoreDns", addons.COREDNS),
            kubernetes.addon(self, "CertManager", addons.CERT_MANAGER),
        ]
        if settings.task_governance:
            governance = TaskGovernance(
                self,
                "TaskGovernance",
                governance=settings.task_governance,
                kubernetes=kubernetes,
                hyperpod=hyperpod,
                log=log,
            )
            steps.append(governance)
        parts = division(settings)
        volumes = LustreVolumes(self, "Lustre", kubernetes=kubernetes, lustre=lustre)
        # The common namespace of jobs is created with the volumes.
        in_namespaces: list[IConstruct] = [
            kubernetes.manifest(self, "JobRoles", job_roles(parts.namespaces))
        ]
        memory: NodeMemory | None = None
        if has_node_memory(settings):
            memory = NodeMemory(self, "NodeMemory", kubernetes=kubernetes)
            in_namespaces.append(memory)
        others: list[IConstruct] = [volumes]
        if settings.training_operator == "hyperpod":
            others.append(
                TrainingOperator(self, "TrainingOperator", kubernetes=kubernetes, hyperpod=hyperpod)
            )
        if metrics:
            others.append(
                Observability(self, "Observability", kubernetes=kubernetes, metrics=metrics)
            )
            in_namespaces.append(
                TrainingCollector(self, "TrainingMetrics", kubernetes=kubernetes, metrics=metrics)
            )
        environment: MlflowAccess | JobProxy | None = None
        if mlflow:
            environment = MlflowAccess(self, "Mlflow", kubernetes=kubernetes, mlflow=mlflow)
        elif proxy_environment(settings):
            environment = JobProxy(self, "Proxy", kubernetes=kubernetes)
        if environment:
            in_namespaces.append(environment)
        if settings.container_insights:
            others.append(ContainerInsights(self, "ContainerInsights", kubernetes=kubernetes))
        if settings.autoscaling == "karpenter":
            others.append(kubernetes.manifest(self, "NodePools", karpenter_objects(settings)))
        for before, after in pairwise(steps):
            after.node.add_dependency(before)
        for service in in_namespaces:
            service.node.add_dependency(volumes)
        last_step = governance.ready if governance else steps[-1]
        for service in [*others, *in_namespaces]:
            service.node.add_dependency(last_step)
        if not governance:
            return
        # One after the other, so that SageMaker receives the requests of one stack at a time.
        earlier = in_namespaces
        for number, teams in parts.team_stacks.items():
            stack = TeamStack(
                self,
                f"Teams{number}",
                number=number,
                teams=teams,
                kubernetes=kubernetes,
                governance=governance,
                volumes=volumes,
                memory=memory,
                environment=environment,
                has_collector=metrics is not None,
            )
            resource = stack.nested_stack_resource
            assert resource is not None
            resource.node.add_dependency(*earlier)
            earlier = [resource]
