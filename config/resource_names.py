"""Names and tags of stacks and resources, for the constructs and for the tools that look for them."""

from __future__ import annotations

from typing import NamedTuple

from config.cluster import Cluster
from config.eks_cluster import EksCluster
from config.task_governance import team_namespace

PROJECT_TAG, PROJECT = "project", "hyperpod-esm2"
CLUSTER_TAG = "hyperpod-cluster"
"""Names the cluster; the budget filters by it, so it must be activated as a cost allocation tag (Billing)."""


def artifact_bucket(cluster: Cluster, account: str) -> str:
    """Lifecycle scripts and workload code; HyperPod's managed policy reads buckets named ``sagemaker-*``."""
    return f"sagemaker-{cluster.name}-{account}-{cluster.region}"


def image_repository(cluster: Cluster) -> str:
    return f"{cluster.name}/training"


def shell_document(cluster: Cluster) -> str:
    """Session Manager document that starts a shell as the nodes' user."""
    return f"{cluster.name}-shell"


def kubernetes_cluster(cluster: Cluster) -> str:
    """EKS's own cluster below HyperPod's, of the same name: `aws eks update-kubeconfig --name` takes it."""
    return cluster.name


def control_plane_log_group(cluster: Cluster) -> str:
    """EKS writes there and nowhere else (EKS user guide, "Send control plane logs to CloudWatch Logs")."""
    return f"/aws/eks/{kubernetes_cluster(cluster)}/cluster"


def lustre_log_group(cluster: Cluster) -> str:
    return f"/aws/fsx/{cluster.name}-lustre"


def node_log_group(cluster: Cluster) -> str:
    """Beside the service's own group, which is named by the cluster's id: nodes may write to both."""
    return f"/aws/sagemaker/Clusters/{cluster.name}/nodes"


def metrics_log_group(cluster: Cluster) -> str:
    return f"/aws/vendedlogs/prometheus/{cluster.name}"


def mlflow(cluster: Cluster) -> str:
    """The app or tracking server; names of servers are unique in an account and region."""
    return cluster.name


def key_name(cluster: Cluster) -> str:
    return f"{cluster.name}-storage"


def key_alias(cluster: Cluster) -> str:
    """Of the key that ``storage.kms: create`` makes."""
    return f"alias/{key_name(cluster)}"


def alert_key_name(cluster: Cluster) -> str:
    """Of the topic's key, where the cluster has none of its own."""
    return f"{cluster.name}-alerts"


def tags_of(cluster: Cluster) -> dict[str, str]:
    """The file's own tags and ours, which win."""
    return {**cluster.tags, PROJECT_TAG: PROJECT, CLUSTER_TAG: cluster.name}


class StackNames(NamedTuple):
    """In the order of deployment; the last is destroyed first."""

    network: str
    storage: str
    studio: str
    """As the next but one; before the cluster, which refers to it."""
    hyperpod: str
    observability: str
    """A stack that is there only if the file has its section, or had it when it was deployed."""


def construct_ids(cluster: Cluster) -> StackNames:
    """What people type after `cdk deploy`."""
    prefix = {"slurm": "Slurm", "eks": "Eks"}[cluster.scheduler]
    names = ("Network", "Storage", "Studio", "HyperPod", "Observability")
    return StackNames(*(f"{prefix}{name}Stack" for name in names))


def stack_names(cluster: Cluster) -> StackNames:
    return StackNames(*(f"{cluster.name}-{cluster.scheduler}-{name}" for name in StackNames._fields))


def wanted_stacks(cluster: Cluster, of: StackNames) -> list[str]:
    """Those of the names or ids whose stacks the file asks for."""
    optional = {of.studio: cluster.studio, of.observability: cluster.observability}
    return [name for name in of if name not in optional or optional[name]]


COMMON_NAMESPACE = "hyperpod-training"
"""Where jobs run without teams. HyperPod resumes jobs by itself in kubeflow and in hyperpod* (SageMaker
developer guide, "Automatic node recovery and auto-resume")."""
POD_SECURITY = {"pod-security.kubernetes.io/enforce": "baseline"}
"""Labels of namespaces of jobs, whose pods need nothing of the node's own: in its network, or with its files,
they would have its credentials."""
LUSTRE_CLAIM = "fsx"
"""The PersistentVolumeClaim of the Lustre file system, of this name in every namespace of jobs."""
LUSTRE_STORAGE_CLASS = "fsx-lustre"
JOB_SERVICE_ACCOUNT = "training"
"""Whose rights to AWS the pods of jobs have, where the cluster has something for them: its MLflow."""
JOB_ENVIRONMENT = "training-environment"
"""The ConfigMap with variables for jobs, of this name in every namespace of jobs."""
TRAINING_UID = 10001
"""User and group that the training image runs as; workloads/esm2/Dockerfile makes them."""


def job_namespaces(cluster: EksCluster) -> list[str]:
    """Where jobs may run: each team's namespace, or the common one."""
    return [team_namespace(team.name) for team in cluster.teams] or [COMMON_NAMESPACE]


def job_folder(namespace: str) -> str:
    """The folder of the file system that belongs to a namespace's jobs, as they see it below their mount."""
    return namespace
