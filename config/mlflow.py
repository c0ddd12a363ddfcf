"""The mlflow of a cluster file: where runs on the cluster are shown, beside their own files."""

from __future__ import annotations

from typing import Literal

from config.section import Section

Size = Literal["small", "medium", "large"]


class Mlflow(Section):
    kind: Literal["app", "tracking_server"]
    """An app is SageMaker's serverless MLflow: nothing to size, and nothing that bills while it is idle but
    its bucket. A tracking server is the cluster's own and bills by the hour, used or not."""
    size: Size | None = None
    """Of a tracking server; null is small. Small is meant for 25 people, medium for 50, large for 100
    (SageMaker developer guide, "MLflow Tracking Servers")."""

    @property
    def server_size(self) -> Size | None:
        """None for an app."""
        return (self.size or "small") if self.kind == "tracking_server" else None


APP_REGIONS = frozenset(
    {
        *("ap-northeast-1", "ap-northeast-2", "ap-south-1", "ap-southeast-1", "ap-southeast-2"),
        *("ca-central-1", "eu-central-1", "eu-north-1", "eu-west-1", "eu-west-2", "sa-east-1"),
        *("us-east-1", "us-east-2", "us-west-1", "us-west-2"),
    }
)
"""HyperPod's regions with AWS::SageMaker::MlflowApp in CloudFormation's registry; each has
MlflowTrackingServer."""
