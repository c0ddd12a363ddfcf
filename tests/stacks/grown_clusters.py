"""EKS clusters with many teams and access entries, and their templates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from unittest import mock

from aws_cdk import Environment

from config.eks_cluster import EksCluster
from stacks.eks_hyperpod_stack import EksHyperPodStack
from stacks.network_stack import NetworkStack
from stacks.storage_stack import StorageStack
from tests.stacks.synthesized import CHARTS, load, new_app

FILE = "clusters/eks-p5.yaml"
"""Cluster with MLflow, metrics and Karpenter, which have objects in the namespaces of teams."""
TEAMS_WITH_QUOTA = 50


def cluster_of(num_teams: int, num_entries: int) -> EksCluster:
    quota = [{"instance_type": "ml.p5.48xlarge", "num_accelerators": 1}]
    cluster: EksCluster = load(
        FILE,
        task_governance={
            "teams": [
                {
                    "name": f"team-{number:03d}",
                    "quota": quota if number < TEAMS_WITH_QUOTA else [],
                }
                for number in range(num_teams)
            ]
        },
        kubernetes={
            "access": [
                {
                    "principal_arn": f"arn:aws:iam::123456789012:role/person-{number:03d}",
                    "level": "edit",
                    "namespaces": [f"hyperpod-ns-team-{number % num_teams:03d}"],
                }
                for number in range(num_entries)
            ]
        },
    )
    return cluster


def synthesized_templates(clusters: Mapping[str, EksCluster], folder: Path) -> dict[str, Path]:
    """Return the templates of clusters by name, those of nested stacks included.

    All are of one app, whose common stacks take most of the time.

    Args:
        clusters: clusters that differ only in teams and access entries. A template's name is ``Of`` and the
            name here.
        folder: folder for the assembly.
    """
    app = new_app(None, folder)
    first = next(iter(clusters.values()))
    env = Environment(region=first.region)
    network = NetworkStack(app, "Network", cluster=first, env=env, stack_name="network")
    storage = StorageStack(
        app, "Storage", network=network.network, cluster=first, env=env, stack_name="storage"
    )
    with mock.patch("stacks.eks_hyperpod_stack.chart_folder", lambda name: CHARTS / name):
        for name, cluster in clusters.items():
            EksHyperPodStack(
                app,
                f"Of{name}",
                network=network.network,
                storage=storage,
                studio=None,
                cluster=cluster,
                env=env,
                stack_name=f"of-{name}",
            )
    app.synth()
    return {
        path.name.removesuffix(".template.json"): path for path in folder.glob("Of*.template.json")
    }
