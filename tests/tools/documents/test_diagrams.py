"""Tests that the two hand-drawn diagrams name every stack and AWS service of all expected templates."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.golden.normalised import GOLDEN

DIAGRAMS = Path(__file__).parents[3] / "docs/diagrams"
NAMES = {
    "APS": "Prometheus",
    "ApplicationAutoScaling": "Application Auto Scaling",
    "Budgets": "Budgets",
    "CloudWatch": "CloudWatch alarms",
    "EC2": "VPC",
    "ECR": "ECR",
    "EKS": "EKS cluster",
    "Events": "EventBridge",
    "FSx": "FSx for Lustre",
    "Grafana": "Grafana",
    "IAM": "IAM role",
    "KMS": "KMS key",
    "Lambda": "Lambda",
    "Logs": "CloudWatch Logs",
    "RDS": "RDS",
    "S3": "S3",
    "SNS": "SNS topic",
    "SQS": "SQS",
    "SSM": "Systems Manager",
    "SageMaker": "SageMaker HyperPod cluster",
    "SecretsManager": "Secrets Manager",
    "StepFunctions": "Step Functions",
}
"""Services as the diagrams call them, by their names in CloudFormation."""


@pytest.mark.parametrize("scheduler", ["slurm", "eks"])
def test_a_diagram_names_all_stacks_and_services(scheduler: str) -> None:
    drawn = (DIAGRAMS / f"{scheduler}.svg").read_text()
    mine = re.compile(f"({scheduler.capitalize()}|Endpoint)")
    templates = [path for path in sorted(GOLDEN.glob("*/*.json")) if mine.match(path.stem)]
    types = {
        r["Type"] for path in templates for r in json.loads(path.read_text())["Resources"].values()
    }
    services = {found[1] for kind in types if (found := re.match(r"AWS::(\w+)::", kind))}
    assert len({path.stem for path in templates}) == 6 and len(services) > 17
    wanted = [path.stem for path in templates] + [NAMES[service] for service in services]
    assert [name for name in wanted if name not in drawn] == []
    for part in ("Session Manager", "Internet", "Public subnet", "Private subnets"):
        assert part in drawn


def test_every_expected_template_belongs_to_a_diagram() -> None:
    assert all(re.match("Slurm|Eks|Endpoint", path.stem) for path in GOLDEN.glob("*/*.json"))


def test_a_service_of_one_scheduler_is_missing_in_the_other_diagram() -> None:
    """Names that occur in both diagrams in any case would prove nothing."""
    eks, slurm = ((DIAGRAMS / f"{name}.svg").read_text() for name in ("eks", "slurm"))
    assert "Secrets Manager" in slurm and "Secrets Manager" not in eks
    assert "EKS cluster" in eks and "EKS cluster" not in slurm
