"""Environment of programs that reach the internet through the cluster file's HTTP proxy."""

from config.cluster import Cluster, ExistingVpc, address_ranges
from config.eks_cluster import EksCluster

LOCAL = ("localhost", "127.0.0.1", "169.254.169.254")
"""This machine, and the instance metadata service."""
AWS = (".amazonaws.com", ".api.aws")
"""Domains of AWS's services, which are reached through endpoints or a route."""
NODES = (".compute.internal", ".ec2.internal")
"""Domains of the private names of machines in a VPC."""
KUBERNETES = (".svc", ".cluster.local", "169.254.170.23", "10.100.0.0/16", "172.20.0.0/16")
"""Services of Kubernetes, EKS Pod Identity's agent, and the ranges of which EKS gives services one (EKS user
guide, "Create an Amazon EKS cluster")."""


def proxy_environment(cluster: Cluster) -> dict[str, str]:
    """Return the variables in both spellings, because curl reads only http_proxy; empty without a proxy."""
    network = cluster.network
    if not isinstance(network, ExistingVpc) or network.proxy is None:
        return {}
    kubernetes = KUBERNETES if isinstance(cluster, EksCluster) else ()
    exceptions = [*LOCAL, *AWS, *NODES, *kubernetes, *address_ranges(network)]
    excluded = ",".join(dict.fromkeys([*exceptions, *network.proxy.no_proxy]))
    values = {"http_proxy": network.proxy.url, "https_proxy": network.proxy.url}
    values["no_proxy"] = excluded
    return values | {name.upper(): value for name, value in values.items()}
