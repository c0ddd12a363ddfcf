"""Resources that continue to bill after the cluster is deleted."""

from config.cluster import Cluster, NewVpc
from config.slurm_cluster import SlurmCluster


def remaining_costs(cluster: Cluster) -> list[str]:
    """Describe the resources of the other stacks that bill by the hour or by the byte."""
    lustre, home = cluster.storage.lustre, cluster.storage.home
    mlflow, key = cluster.mlflow, cluster.storage.kms
    database = cluster.accounting_database if isinstance(cluster, SlurmCluster) else None
    nat = isinstance(cluster.network, NewVpc) and cluster.network.internet == "nat"
    parts = [
        f"FSx for Lustre ({lustre.capacity_gib} GiB)",
        f"FSx for OpenZFS ({home.capacity_gib} GiB)" if home else "",
        "S3 buckets",
        "image repository",
        "Prometheus workspace" if cluster.prometheus else "",
        f"MLflow tracking server ({mlflow.server_size})" if mlflow and mlflow.server_size else "",
        "Grafana workspace" if cluster.grafana else "",
        "Studio's spaces" if cluster.studio else "",
        "NAT gateway" if nat else "",
        "interface endpoints" if cluster.network.interface_endpoints else "",
        f"accounting database ({database.instance_class})" if database else "",
        "KMS key" if key == "create" or (cluster.observability and key == "aws") else "",
    ]
    return [part for part in parts if part]
