"""The mlflow of a cluster file: where runs on the cluster are shown, beside their own files."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from config.section import Section


class MlflowApp(Section):
    kind: Literal["app"]
    """SageMaker's serverless MLflow: nothing to size, and nothing that bills while it is idle but its
    bucket."""


class MlflowTrackingServer(Section):
    kind: Literal["tracking_server"]
    """A server of the cluster's own, which bills by the hour, used or not."""
    size: Literal["small", "medium", "large"] = "small"
    """Small is meant for 25 people, medium for 50, large for 100 (SageMaker developer guide, "MLflow Tracking
    Servers")."""


Mlflow = Annotated[MlflowApp | MlflowTrackingServer, Field(discriminator="kind")]

APP_REGIONS = frozenset(
    {
        *("ap-northeast-1", "ap-northeast-2", "ap-south-1", "ap-southeast-1", "ap-southeast-2"),
        *("ca-central-1", "eu-central-1", "eu-north-1", "eu-west-1", "eu-west-2", "sa-east-1"),
        *("us-east-1", "us-east-2", "us-west-1", "us-west-2"),
    }
)
"""HyperPod's regions with AWS::SageMaker::MlflowApp in CloudFormation's registry; each has
MlflowTrackingServer."""
