"""Shipped EKS clusters and variants of them, under one name each."""

from __future__ import annotations

import json
from typing import Any

from tests.stacks.eks_variants import EKS_VARIANTS, eks_variant, eks_variant_templates
from tests.stacks.intrinsics import Evaluator
from tests.stacks.synthesized import EKS_FILES, Templates, load, only, resources, templates

CASES = (*EKS_FILES, *EKS_VARIANTS)
CLUSTER = "AWS::SageMaker::Cluster"
EKS = "AWS::EKS::Cluster"
ADDON = "AWS::EKS::Addon"
OBJECTS = "Custom::AWSCDK-EKS-KubernetesResource"


def settings(case: str) -> Any:
    return load(case) if case in EKS_FILES else eks_variant(case)


def stacks(case: str) -> Templates:
    return templates(case) if case in EKS_FILES else eks_variant_templates(case)


def hyperpod(case: str) -> dict[str, Any]:
    return stacks(case)["EksHyperPodStack"]


def evaluated(case: str, kind: str) -> dict[str, Any]:
    found: dict[str, Any] = Evaluator(stacks(case), settings(case).region)(
        only(hyperpod(case), kind)
    )
    return found


def groups(case: str) -> dict[str, dict[str, Any]]:
    return {
        group["InstanceGroupName"]: group
        for group in only(hyperpod(case), CLUSTER)["InstanceGroups"]
    }


def addons(case: str) -> dict[str, dict[str, Any]]:
    return {
        found["Properties"]["AddonName"]: found["Properties"]
        for found in resources(hyperpod(case), ADDON).values()
    }


def objects(case: str) -> list[dict[str, Any]]:
    """All Kubernetes objects of the stack, values evaluated."""
    evaluate = Evaluator(stacks(case), settings(case).region)
    return [
        made
        for found in resources(hyperpod(case), OBJECTS).values()
        for made in json.loads(evaluate(found["Properties"]["Manifest"]))
    ]


def governed(case: str, kind: str) -> list[dict[str, Any]]:
    """Return the function's request to SageMaker, ClusterSchedulerConfig or ComputeQuota, evaluated."""
    evaluate = Evaluator(stacks(case), settings(case).region)
    found = resources(hyperpod(case), f"Custom::HyperPod{kind}").values()
    assert all(resource["Properties"]["Kind"] == kind for resource in found)
    return [json.loads(evaluate(resource["Properties"]["Request"])) for resource in found]
