"""IAM roles that a cluster file names instead of letting the stacks create them."""

from config.cluster import Cluster
from config.eks_cluster import EksCluster


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
