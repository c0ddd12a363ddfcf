"""AWS services that nodes call, except S3; a closed network needs an endpoint for each."""

from config.cluster import Cluster

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
    if cluster.scheduler == "eks":
        services |= _WITH_EKS
    return services


def prefix_and_name(service: str) -> tuple[str, str]:
    """Return the parts of an endpoint's full name before and after the region."""
    if service.startswith(f"{_SAGEMAKER}."):
        return _SAGEMAKER, service.removeprefix(f"{_SAGEMAKER}.")
    return "com.amazonaws", service


def whole_name(service: str, region: str) -> str:
    """Return the full service name that EC2 uses."""
    prefix, name = prefix_and_name(service)
    return f"{prefix}.{region}.{name}"
