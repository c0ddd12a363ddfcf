"""Optional parts of a cluster file that some regions lack, with the resource types that decide it."""

from collections.abc import Callable
from dataclasses import dataclass

from config.cluster import Cluster
from config.facts.registry import regions_with


@dataclass(frozen=True)
class OptionalFeature:
    """Part of a cluster file that needs a resource type which CloudFormation lacks in some regions."""

    path: str
    """Place in the cluster file."""
    title: str
    """Name in messages and in docs/first-model.md."""
    resource_type: str
    is_used: Callable[[Cluster], bool]
    instead: str
    """Remedy in other regions."""
    got: str = ""
    """Description of the file's content in messages; by default the value itself."""

    @property
    def regions(self) -> frozenset[str]:
        return regions_with(self.resource_type)


OPTIONAL_FEATURES = (
    OptionalFeature(
        "observability.grafana",
        "Managed Grafana",
        "AWS::Grafana::Workspace",
        lambda cluster: cluster.grafana is not None,
        "remove it; a Grafana elsewhere can read Prometheus too",
    ),
    OptionalFeature(
        "mlflow.kind",
        "MLflow apps",
        "AWS::SageMaker::MlflowApp",
        lambda cluster: cluster.mlflow is not None and cluster.mlflow.kind == "app",
        "set tracking_server, which every region has and which bills by the hour",
    ),
    OptionalFeature(
        "budget",
        "budgets",
        "AWS::Budgets::Budget",
        lambda cluster: cluster.budget is not None,
        "remove it, and create the budget once with `aws budgets create-budget`, which takes the same limit, "
        "address and cost filter in every account",
    ),
    OptionalFeature(
        "studio.profiles",
        "profiles of Studio",
        "AWS::SageMaker::UserProfile",
        lambda cluster: cluster.studio is not None and bool(cluster.studio.profiles),
        "remove them, and add the people in the console (SageMaker, Domains)",
        got="profiles",
    ),
)
"""Features that the stacks create and that a region of HyperPod lacks."""
