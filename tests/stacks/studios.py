"""Studio's stacks, among those of clusters that are not shipped."""

from __future__ import annotations

from typing import Any

from config.cluster_kinds import AnyCluster
from config.resource_names import construct_ids
from tests.stacks.eks_variants import EKS_EVERY_OPTION, eks_variant_templates
from tests.stacks.synthesized import Templates
from tests.stacks.variants import EVERY_OPTION, variant_templates

SLURM = "every-option"
EKS = "every-eks-option"
"""Names of the two clusters whose profiles have partitions of their own."""
STUDIOS: dict[str, AnyCluster] = {SLURM: EVERY_OPTION, EKS: EKS_EVERY_OPTION}


def studio_templates(name: str) -> Templates:
    return (
        variant_templates("every_option")
        if name == SLURM
        else eks_variant_templates("eks_every_option")
    )


def studio_stack(name: str) -> str:
    return construct_ids(STUDIOS[name]).studio


def studio_template(name: str) -> dict[str, Any]:
    return studio_templates(name)[studio_stack(name)]
