"""Resources that continue to bill after the cluster is deleted."""

from config.cluster import Cluster, NewVpc
from config.slurm_cluster import SlurmCluster


def remaining_costs(cluster: Cluster) -> list[str]:
    """Describe the resources of the other stacks that bill by the hour or by the byte."""
    lustre = cluster.storage.lustre
    home = cluster.storage.home
    mlflow = cluster.mlflow
    parts = [f"FSx for Lustre ({lustre.capacity_gib} GiB)"] if lustre else []
    if home:
        parts.append(f"FSx for OpenZFS ({home.capacity_gib} GiB)")
    parts += ["S3 buckets", "image repository"]
    if cluster.prometheus:
        parts.append("Prometheus workspace")
    if mlflow and mlflow.server_size:
        parts.append(f"MLflow tracking server ({mlflow.server_size})")
    if cluster.grafana:
        parts.append("Grafana workspace")
    if cluster.studio:
        parts.append("Studio's spaces")
    if isinstance(cluster.network, NewVpc) and cluster.network.internet == "nat":
        parts.append("NAT gateway")
    if cluster.network.interface_endpoints:
        parts.append("interface endpoints")
    if isinstance(cluster, SlurmCluster) and cluster.accounting_database:
        parts.append(f"accounting database ({cluster.accounting_database.instance_class})")
    # Without the cluster's key, the alerts' topic has its own.
    has_key_of_topic = cluster.observability and cluster.storage.kms == "aws"
    if cluster.storage.kms == "create" or has_key_of_topic:
        parts.append("KMS key")
    return parts
