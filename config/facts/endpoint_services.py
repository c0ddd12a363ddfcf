"""AWS services, except S3, that nodes and EKS's installer call; a closed network needs their endpoints."""

from config.cluster import Cluster, NewVpc
from config.eks_cluster import EksCluster

_SAGEMAKER = "aws.sagemaker"
"""Prefix of a few services' names; all others begin with com.amazonaws."""
_ALWAYS = {
    "EcrApi": "ecr.api",
    "EcrDocker": "ecr.dkr",
    "Ssm": "ssm",
    "SsmMessages": "ssmmessages",
    "Ec2Messages": "ec2messages",
    "Ec2": "ec2",
    "Sts": "sts",
    "Kms": "kms",
    "Logs": "logs",
    "Monitoring": "monitoring",
    "SecretsManager": "secretsmanager",
    "SageMakerApi": "sagemaker.api",
    "Fsx": "fsx",
}
_WITH_PROMETHEUS = {"PrometheusWorkspaces": "aps-workspaces"}
_WITH_TRACKING_SERVER = {"SageMakerMlflow": f"{_SAGEMAKER}.experiments"}
_WITH_STUDIO = {"Sqs": "sqs", "SageMakerRuntime": "sagemaker.runtime"}
# Nodes describe their EKS cluster, and pods fetch the credentials of their pod identity.
_WITH_EKS = {"Eks": "eks", "EksAuth": "eks-auth"}
# The functions that install charts and objects are in the VPC, and the first one invokes the others.
_WITH_EKS_WITHOUT_INTERNET = {"Lambda": "lambda"}


def endpoint_services(cluster: Cluster) -> dict[str, str]:
    """Return the endpoint name of each construct id, for all calls from boot to the end of a job.

    Prometheus is included only for clusters with a workspace, because not every region offers it.
    """
    services = dict(_ALWAYS)
    if cluster.prometheus:
        services |= _WITH_PROMETHEUS
    if cluster.mlflow and cluster.mlflow.server_size:
        services |= _WITH_TRACKING_SERVER
    if cluster.studio:
        services |= _WITH_STUDIO
    if isinstance(cluster, EksCluster):
        services |= _WITH_EKS
        if _may_lack_internet(cluster):
            services |= _WITH_EKS_WITHOUT_INTERNET
    return services


def _may_lack_internet(cluster: EksCluster) -> bool:
    """Return whether nodes of EKS work without internet access; in an existing VPC they may have it."""
    has_nat = isinstance(cluster.network, NewVpc) and cluster.network.internet == "nat"
    return cluster.kubernetes.images == "image_repository" and not has_nat


def prefix_and_name(service: str) -> tuple[str, str]:
    """Return the parts of an endpoint's full name before and after the region."""
    if service.startswith(f"{_SAGEMAKER}."):
        return _SAGEMAKER, service.removeprefix(f"{_SAGEMAKER}.")
    return "com.amazonaws", service


def whole_name(service: str, region: str) -> str:
    """Return the full service name that EC2 uses."""
    prefix, name = prefix_and_name(service)
    return f"{prefix}.{region}.{name}"
