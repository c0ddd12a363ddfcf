"""Services for jobs: HyperPod's training operator, the collector of trainings' metrics, and MLflow."""

from collections.abc import Sequence

from aws_cdk import aws_sagemaker as sagemaker

from config.facts import addons
from config.proxy_environment import proxy_environment
from config.resource_names import JOB_ENVIRONMENT, JOB_SERVICE_ACCOUNT
from config.stack_division import division
from constructs import Construct, IDependable
from constructs.eks.kubernetes_cluster import KubernetesCluster
from constructs.eks.pod_role import PodRole
from constructs.monitoring.managed_mlflow import ManagedMlflow
from constructs.monitoring.metrics_workspace import MetricsWorkspace
from constructs.policy.statement_role import Statement
from manifests import training_collector
from manifests.objects import Object, kubernetes_object


class TrainingOperator(Construct):
    """HyperPod's training operator.

    The role of its pods is created first, because the add-on does not accept one as an argument.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        kubernetes: KubernetesCluster,
        hyperpod: sagemaker.CfnCluster,
    ) -> None:
        super().__init__(scope, construct_id)
        # The statement of AmazonSageMakerHyperPodTrainingOperatorAccess, narrowed to this cluster.
        describe = Statement(
            "DescribeNodes", ["sagemaker:DescribeClusterNode"], [hyperpod.attr_cluster_arn]
        )
        role = PodRole(
            self,
            "Role",
            kubernetes=kubernetes,
            namespaces=["aws-hyperpod"],
            service_account="hp-training-operator-controller-manager",
            statements=[describe],
        )
        kubernetes.addon(self, "Addon", addons.TRAINING_OPERATOR, after=[role])


class TrainingCollector(Construct):
    """Prometheus agent that finds the pods of trainings; it may only write to the workspace."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        kubernetes: KubernetesCluster,
        metrics: MetricsWorkspace,
    ) -> None:
        super().__init__(scope, construct_id)
        role = PodRole(
            self,
            "Role",
            kubernetes=kubernetes,
            namespaces=[training_collector.NAMESPACE],
            service_account=training_collector.NAME,
            statements=[metrics.to_write],
        )
        settings = kubernetes.settings
        objects = training_collector.collector_objects(
            settings, division(settings).namespaces, remote_write_url=metrics.remote_write_url
        )
        kubernetes.manifest(self, "Objects", objects, after=[role])


class JobProxy(Construct):
    """HTTP proxy for the pods of jobs, in their namespaces. With MLflow, its object has the proxy, too."""

    def __init__(
        self, scope: Construct, construct_id: str, *, kubernetes: KubernetesCluster
    ) -> None:
        super().__init__(scope, construct_id)
        self._kubernetes = kubernetes
        self._objects(self, division(kubernetes.settings).namespaces, after=[])

    def add_namespaces(
        self, scope: Construct, namespaces: Sequence[str], *, after: IDependable
    ) -> None:
        """Create the object in other namespaces of jobs."""
        self._objects(Construct(scope, "Proxy"), namespaces, after=[after])

    def _objects(
        self, scope: Construct, namespaces: Sequence[str], *, after: Sequence[IDependable]
    ) -> None:
        variables = proxy_environment(self._kubernetes.settings)
        objects = [
            kubernetes_object("v1", "ConfigMap", JOB_ENVIRONMENT, namespace, data=variables)
            for namespace in namespaces
        ]
        self._kubernetes.manifest(scope, "Objects", objects, after=after)


class MlflowAccess(Construct):
    """Address of MLflow, and a service account that may only log to it, in the namespaces of jobs."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        kubernetes: KubernetesCluster,
        mlflow: ManagedMlflow,
    ) -> None:
        super().__init__(scope, construct_id)
        self._kubernetes = kubernetes
        self._variables = {
            "MLFLOW_TRACKING_URI": mlflow.arn,
            **proxy_environment(kubernetes.settings),
        }
        namespaces = division(kubernetes.settings).namespaces
        self._role = PodRole(
            self,
            "Role",
            kubernetes=kubernetes,
            namespaces=namespaces,
            service_account=JOB_SERVICE_ACCOUNT,
            statements=[mlflow.to_log_runs],
        )
        # Pods need the account to start, and read their role when they start. So the role comes first.
        self._objects(self, namespaces, after=[self._role])

    def add_namespaces(
        self, scope: Construct, namespaces: Sequence[str], *, after: IDependable
    ) -> None:
        """Create address, service account and association in other namespaces of jobs."""
        roles = Construct(scope, "MlflowRole")
        for namespace in namespaces:
            self._role.associate(roles, namespace, namespace)
        self._objects(Construct(scope, "Mlflow"), namespaces, after=[roles, after])

    def _objects(
        self, scope: Construct, namespaces: Sequence[str], *, after: Sequence[IDependable]
    ) -> None:
        objects: list[Object] = []
        for namespace in namespaces:
            objects.append(
                kubernetes_object("v1", "ServiceAccount", JOB_SERVICE_ACCOUNT, namespace)
            )
            objects.append(
                kubernetes_object(
                    "v1", "ConfigMap", JOB_ENVIRONMENT, namespace, data=self._variables
                )
            )
        self._kubernetes.manifest(scope, "Objects", objects, after=after)
