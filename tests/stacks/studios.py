"""Clusters with SageMaker Studio, which no shipped file has; synthesized once for all tests."""

from __future__ import annotations

from functools import cache
from typing import Any

from config.cluster_kinds import AnyCluster
from config.stack_names import construct_ids
from tests.stacks.synthesized import Templates, load, read_templates, synthesize

ACCESS = {
    "groups": [{"name": "research", "gid": 3000}],
    "users": [
        {"name": "ada", "uid": 2001, "group": "research", "admin": True},
        {"name": "ben", "uid": 2002},
    ],
}
STUDIOS: dict[str, AnyCluster] = {
    # With a key of its own, alarms that somebody hears, and one profile of each kind.
    "slurm-studio": load(
        "clusters/slurm-p5.yaml",
        name="slurm-studio",
        access=ACCESS,
        studio={
            "partitions": "per_profile",
            "partition_removal": "destroy",
            "profiles": [
                {"name": "ada-l", "cluster_user": "ada", "login_space": True},
                {"name": "ben", "cluster_user": "ben"},
                {"name": "guest"},
            ],
        },
    ),
    "eks-studio": load(
        "clusters/eks.yaml",
        name="eks-studio",
        studio={
            "sign_in": "identity_center",
            "partitions": "per_profile",
            "profiles": [{"name": "ada", "sign_in_name": "ada@example.org"}],
        },
    ),
}


@cache
def studio_templates(name: str) -> Templates:
    return read_templates(synthesize(STUDIOS[name]))


def studio_stack(name: str) -> str:
    return construct_ids(STUDIOS[name]).studio


def studio_template(name: str) -> dict[str, Any]:
    return studio_templates(name)[studio_stack(name)]
