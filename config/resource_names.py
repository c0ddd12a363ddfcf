"""Names of resources, for the constructs that give them and the tools that look for them."""

from __future__ import annotations

from config.cluster import Cluster


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
