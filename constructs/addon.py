"""An EKS add-on of the version that the table has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from aws_cdk import aws_eks as eks

from config.addons import ADDON_VERSIONS
from config.eks_cluster import EksCluster
from constructs import Construct
from constructs.kubernetes_cluster import KubernetesCluster


def addon(
    scope: Construct,
    construct_id: str,
    *,
    settings: EksCluster,
    kubernetes: KubernetesCluster,
    name: str,
    configuration: Mapping[str, Any] | None = None,
) -> eks.CfnAddon:
    """Level 1, because the library's own add-ons cannot resolve conflicts.

    They are always resolved for the add-on: the stack is who says what is installed.
    """
    return eks.CfnAddon(
        scope,
        construct_id,
        cluster_name=kubernetes.name,
        addon_name=name,
        addon_version=ADDON_VERSIONS[settings.kubernetes.version][name],
        resolve_conflicts="OVERWRITE",
        configuration_values=(
            # Tokens are texts without quotes or backslashes, and so go through.
            json.dumps(configuration, sort_keys=True, separators=(",", ":")) if configuration else None
        ),
    )
