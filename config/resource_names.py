"""Names and tags of stacks and resources, also of existing roles, for constructs and for tools."""

from typing import NamedTuple

from config.cluster import Cluster
from config.eks_cluster import EksCluster
from config.task_governance import team_namespace

PROJECT_TAG = "project"
PROJECT = "hyperpod-esm2"
"""Value of the project's tag."""
CLUSTER_TAG = "hyperpod-cluster"
"""Tag with the cluster's name for the budget; activate it as a cost allocation tag in Billing."""


def artifact_bucket(cluster: Cluster, account: str) -> str:
    """Return the bucket of scripts and code; HyperPod's managed policy reads ``sagemaker-*``."""
    return f"sagemaker-{cluster.name}-{account}-{cluster.region}"


class ResourceNames:
    """Names of a cluster's resources."""

    def __init__(self, cluster: Cluster) -> None:
        name = cluster.name
        self.image_repository = f"{name}/training"
        self.shell_document = f"{name}-shell"
        """Session Manager document that starts a shell as the nodes' user."""
        self.kubernetes_cluster = name
        """EKS cluster, which has HyperPod's name unless it exists already."""
        if isinstance(cluster, EksCluster) and cluster.kubernetes.existing:
            self.kubernetes_cluster = cluster.kubernetes.existing
        self.control_plane_log_group = f"/aws/eks/{self.kubernetes_cluster}/cluster"
        """EKS's only log group (EKS user guide, "Send control plane logs to CloudWatch Logs")."""
        self.lustre_log_group = f"/aws/fsx/{name}-lustre"
        self.node_log_group = f"/aws/sagemaker/Clusters/{name}/nodes"
        """The nodes' own log group; nodes may also write to the service's, which has the cluster's id."""
        self.metrics_log_group = f"/aws/vendedlogs/prometheus/{name}"
        self.key_name = f"{name}-storage"
        self.key_alias = f"alias/{self.key_name}"
        """Alias of the key that ``storage.kms: create`` creates."""


def tags_of(cluster: Cluster) -> dict[str, str]:
    """Return the file's tags and the project's, which take precedence."""
    return {**cluster.tags, PROJECT_TAG: PROJECT, CLUSTER_TAG: cluster.name}


class StackNames(NamedTuple):
    """Names of a cluster's stacks in the order of deployment; the last is destroyed first."""

    network: str
    storage: str
    studio: str
    """Optional like ``observability``; deployed before the cluster, which refers to it."""
    hyperpod: str
    observability: str
    """Stack that exists only if the file has its section, or had it when it was deployed."""


def construct_ids(cluster: Cluster) -> StackNames:
    """Return the construct ids, which `cdk deploy` accepts."""
    prefix = {"slurm": "Slurm", "eks": "Eks"}[cluster.scheduler]
    names = ("Network", "Storage", "Studio", "HyperPod", "Observability")
    return StackNames(*(f"{prefix}{name}Stack" for name in names))


def stack_names(cluster: Cluster) -> StackNames:
    return StackNames(
        *(f"{cluster.name}-{cluster.scheduler}-{name}" for name in StackNames._fields)
    )


def wanted_stacks(cluster: Cluster, of: StackNames) -> list[str]:
    """Return the names or ids in ``of`` that belong to stacks that the file requests."""
    optional = {of.studio: cluster.studio, of.observability: cluster.observability}
    return [name for name in of if name not in optional or optional[name]]


COMMON_NAMESPACE = "hyperpod-training"
"""Namespace of jobs if there are no teams. HyperPod resumes jobs automatically in kubeflow and in hyperpod*
(SageMaker developer guide, "Automatic node recovery and auto-resume")."""
POD_SECURITY = {"pod-security.kubernetes.io/enforce": "baseline"}
"""Labels of the namespaces of jobs. Their pods need no access to the node's network or files, which would
give them the node's credentials."""
LUSTRE_CLAIM = "fsx"
"""PersistentVolumeClaim of the Lustre file system in every namespace of jobs."""
LUSTRE_STORAGE_CLASS = "fsx-lustre"
NODE_MEMORY_CLAIM = "node-memory"
"""PersistentVolumeClaim of the folder in the memory of each node in every namespace of jobs, if the cluster
has ``memory_states`` on nodes."""
JOB_SERVICE_ACCOUNT = "training"
"""Service account that gives the pods of jobs access to AWS, if the cluster has MLflow."""
JOB_ENVIRONMENT = "training-environment"
"""ConfigMap with environment variables for jobs in every namespace of jobs."""
TRAINING_UID = 10001
"""User and group of the training image, which workloads/Dockerfile creates."""


def job_namespaces(cluster: EksCluster) -> list[str]:
    """Return the namespaces in which jobs may run: each team's, or the common one."""
    return [team_namespace(team.name) for team in cluster.teams] or [COMMON_NAMESPACE]


def existing_roles(cluster: Cluster) -> dict[str, str]:
    """Return names or ARNs of the existing roles, by their places in the file."""
    places = {
        f"instance_groups[{group.name}].execution_role": group.execution_role
        for group in cluster.instance_groups
    }
    if isinstance(cluster, EksCluster):
        places["kubernetes.role"] = cluster.kubernetes.role
        places["autoscaling_role"] = cluster.autoscaling_role
    return {place: role for place, role in places.items() if role is not None}
