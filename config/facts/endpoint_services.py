"""The AWS services that nodes call, beside S3: what a closed network needs an endpoint for."""

from __future__ import annotations

from config.cluster import Cluster

_SAGEMAKER = "aws.sagemaker"
"""What the names of a few services begin with; those of the others with com.amazonaws."""
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
# Nodes ask EKS for its cluster, pods for the credentials of their pod identity.
_WITH_EKS = {"Eks": "eks", "EksAuth": "eks-auth"}


def endpoint_services(cluster: Cluster) -> dict[str, str]:
    """Construct id and endpoint name, from boot to the end of a job.

    Prometheus only for clusters with a workspace: the service is not offered in every region.
    """
    return (
        _ALWAYS
        | (_WITH_PROMETHEUS if cluster.prometheus else {})
        | (_WITH_TRACKING_SERVER if cluster.mlflow and cluster.mlflow.server_size else {})
        | (_WITH_STUDIO if cluster.studio else {})
        | (_WITH_EKS if cluster.scheduler == "eks" else {})
    )


def prefix_and_name(service: str) -> tuple[str, str]:
    """What stands before and after the region in an endpoint's whole name."""
    if service.startswith(f"{_SAGEMAKER}."):
        return _SAGEMAKER, service.removeprefix(f"{_SAGEMAKER}.")
    return "com.amazonaws", service


def whole_name(service: str, region: str) -> str:
    """As EC2 has it."""
    prefix, name = prefix_and_name(service)
    return f"{prefix}.{region}.{name}"
