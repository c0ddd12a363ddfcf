"""Names of resources, for the constructs that give them and the tools that look for them."""

from __future__ import annotations

from config.cluster import SlurmCluster


def artifact_bucket(cluster: SlurmCluster, account: str) -> str:
    """Lifecycle scripts and workload code; HyperPod's managed policy reads buckets named ``sagemaker-*``."""
    return f"sagemaker-{cluster.name}-{account}-{cluster.region}"


def image_repository(cluster: SlurmCluster) -> str:
    return f"{cluster.name}/training"


def shell_document(cluster: SlurmCluster) -> str:
    """Session Manager document that starts a shell as the nodes' user."""
    return f"{cluster.name}-shell"


def lustre_log_group(cluster: SlurmCluster) -> str:
    return f"/aws/fsx/{cluster.name}-lustre"


def node_log_group(cluster: SlurmCluster) -> str:
    """Beside the service's own group, which is named by the cluster's id: nodes may write to both."""
    return f"/aws/sagemaker/Clusters/{cluster.name}/nodes"


def metrics_log_group(cluster: SlurmCluster) -> str:
    return f"/aws/vendedlogs/prometheus/{cluster.name}"


def key_name(cluster: SlurmCluster) -> str:
    return f"{cluster.name}-storage"


def key_alias(cluster: SlurmCluster) -> str:
    """Of the key that ``storage.kms: create`` makes."""
    return f"alias/{key_name(cluster)}"
