"""Kubernetes objects that the stack puts into the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aws_cdk import RemovalPolicy
from aws_cdk import aws_eks_v2 as eks

from constructs import Construct
from constructs.kubernetes_cluster import KubernetesCluster


def manifest(
    scope: Construct,
    construct_id: str,
    *,
    kubernetes: KubernetesCluster,
    objects: list[Mapping[str, Any]],
    removal: RemovalPolicy = RemovalPolicy.DESTROY,
) -> eks.KubernetesManifest:
    """One resource for all the objects, made in their order; what is there already is taken over.

    Retained ones go with the EKS cluster.
    """
    return eks.KubernetesManifest(
        scope,
        construct_id,
        cluster=kubernetes.cluster,
        manifest=objects,
        overwrite=True,
        removal_policy=removal,
    )
