"""Resources that continue to bill after the cluster is deleted."""

from __future__ import annotations

from config.cluster import Cluster, NewVpc
from config.slurm_cluster import SlurmCluster


def remaining_costs(cluster: Cluster) -> list[str]:
    """Describe the resources of the other stacks that bill by the hour or by the byte."""
    lustre, home = cluster.storage.lustre, cluster.storage.home
    database = cluster.accounting_database if isinstance(cluster, SlurmCluster) else None
    parts = [f"FSx for Lustre ({lustre.capacity_gib} GiB)"]
    if home:
        parts.append(f"FSx for OpenZFS ({home.capacity_gib} GiB)")
    parts += ["S3 buckets", "image repository"]
    if cluster.prometheus:
        parts.append("Prometheus workspace")
    if cluster.mlflow and cluster.mlflow.server_size:
        parts.append(f"MLflow tracking server ({cluster.mlflow.server_size})")
    if cluster.grafana:
        parts.append("Grafana workspace")
    if cluster.studio:
        parts.append("Studio's spaces")
    if isinstance(cluster.network, NewVpc) and cluster.network.internet == "nat":
        parts.append("NAT gateway")
    if cluster.network.interface_endpoints:
        parts.append("interface endpoints")
    if database:
        parts.append(f"accounting database ({database.instance_class})")
    if cluster.storage.kms == "create" or (cluster.observability and cluster.storage.kms == "aws"):
        parts.append("KMS key")
    return parts
