"""What a diagram of a cluster shows of its templates, and in which words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tools.template_graph import Resource

CLUSTER = "AWS::SageMaker::Cluster"
"""Drawn as a box of its instance groups."""
KUBERNETES_OBJECT = "Custom::AWSCDK-EKS-KubernetesResource"
Words = tuple[str, ...]
"""Lines of a label; the first is the name."""


@dataclass(frozen=True)
class Part:
    """One kind of resource."""

    words: Callable[[Resource], Words]
    verb: str = ""
    """At the arrows that lead to it."""
    together: bool = False
    """All of a stack are one node, with the first line of its words and the others' list."""


def _file_system(resource: Resource) -> Words:
    properties = resource.properties
    size = f"{properties['StorageCapacity']:,} GiB"
    if properties["FileSystemType"] == "LUSTRE":
        efa = ", EFA" if properties["LustreConfiguration"].get("EfaEnabled") else ""
        return "FSx for Lustre", f"{size}{efa}"
    return "FSx for OpenZFS", f"homes, {size}"


def _bucket(resource: Resource) -> Words:
    uses = {
        "Data": "data",
        "Artifacts": "scripts, code",
        "Mlflow/MlflowArtifacts": "MLflow's artefacts",
        "AccessLogs": "access logs",
    }
    place = resource.path.removesuffix("/Resource")
    return "S3 bucket", uses.get(place, place.rpartition("/")[2])


def _database(resource: Resource) -> Words:
    standby = ", standby" if resource.properties.get("MultiAZ") else ""
    return "RDS for MariaDB", f"{resource.properties['DBInstanceClass']}{standby}"


def _pod_role(resource: Resource) -> Words:
    return "Pods with a role", str(resource.properties["ServiceAccount"])


def _object(resource: Resource) -> Words:
    """By the construct that makes them."""
    words = resource.path.removesuffix("/Resource/Default").split("/")
    return "Kubernetes objects", " ".join(words[1:] or words)


def _named(name: str, *properties: str) -> Callable[[Resource], Words]:
    def words(resource: Resource) -> Words:
        return name, *(str(_value(resource.properties, given)) for given in properties)

    return words


def _value(properties: Any, path: str) -> Any:
    for key in path.split("."):
        properties = properties[key]
    return properties


PARTS: dict[str, Part] = {
    "AWS::EKS::Cluster": Part(_named("EKS control plane", "Version"), "nodes of"),
    "AWS::EKS::Addon": Part(_named("EKS add-ons", "AddonName"), together=True),
    "AWS::EKS::PodIdentityAssociation": Part(_pod_role, together=True),
    KUBERNETES_OBJECT: Part(_object, together=True),
    "AWS::FSx::FileSystem": Part(_file_system, "mounts"),
    "AWS::RDS::DBInstance": Part(_database, "accounting"),
    "AWS::S3::Bucket": Part(_bucket, "reads"),
    "AWS::ECR::Repository": Part(_named("ECR", "RepositoryName"), "pulls"),
    "AWS::APS::Workspace": Part(_named("Managed Prometheus"), "metrics"),
    "AWS::Grafana::Workspace": Part(_named("Managed Grafana"), "dashboards"),
    "AWS::SNS::Topic": Part(_named("SNS topic", "DisplayName"), "alerts"),
    "AWS::CloudWatch::Alarm": Part(_named("CloudWatch alarms"), together=True),
    "AWS::Events::Rule": Part(_named("EventBridge rules"), together=True),
    "AWS::SQS::Queue": Part(_named("SQS queues"), "requests", together=True),
    "AWS::SageMaker::Domain": Part(_named("SageMaker Studio", "AuthMode"), "opens"),
    "AWS::SageMaker::MlflowApp": Part(_named("MLflow app"), "logs runs"),
    "AWS::SageMaker::MlflowTrackingServer": Part(_named("MLflow server", "TrackingServerSize"), "logs runs"),
    "AWS::Budgets::Budget": Part(_named("Budget alarm")),
    "AWS::EC2::NatGateway": Part(_named("NAT gateway")),
}
"""By CloudFormation type; what is not here is passed through, as roles and policies, or left out."""

PASSED_THROUGH = frozenset(
    {
        *("AWS::IAM::Role", "AWS::IAM::Policy", "AWS::SecretsManager::Secret"),
        *("AWS::SecretsManager::SecretTargetAttachment", "AWS::Lambda::Function"),
    }
)
"""What refers to one of them reaches what it refers to."""
LINKS = {"AWS::FSx::DataRepositoryAssociation": "linked"}
"""Resources that join two others."""
LEFT_OUT = ("AccessLogs",)
"""Constructs that are of no interest: what S3 writes about itself."""
SILENT = {
    (source, target)
    for source in ("AWS::EKS::Addon", "AWS::EKS::PodIdentityAssociation", KUBERNETES_OBJECT)
    for target in ("AWS::EKS::Cluster", CLUSTER)
} | {(KUBERNETES_OBJECT, "AWS::SageMaker::MlflowApp"), (KUBERNETES_OBJECT, "AWS::APS::Workspace")}
"""Source and target of arrows that say what the words say."""
_VERBS = {
    ("AWS::SageMaker::MlflowApp", "AWS::S3::Bucket"): "artefacts",
    ("AWS::SageMaker::MlflowTrackingServer", "AWS::S3::Bucket"): "artefacts",
    ("AWS::Grafana::Workspace", "AWS::APS::Workspace"): "asks",
    ("AWS::CloudWatch::Alarm", "AWS::FSx::FileSystem"): "watch",
}


def verb(source: str, target: str) -> str:
    """At an arrow between two kinds of resources."""
    return _VERBS.get((source, target), PARTS[target].verb if target in PARTS else "")
