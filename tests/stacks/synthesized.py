"""Cluster files and variants of them, synthesized once for all tests as `cdk synth` does it."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from aws_cdk import App

from config.slurm_cluster import SlurmCluster
from stacks.cluster_stacks import add_checks, add_stacks

REPOSITORY = Path(__file__).parents[2]
CLUSTER_FILES = sorted(
    path.relative_to(REPOSITORY).as_posix()
    for path in (REPOSITORY / "clusters").glob("*.yaml")
    if yaml.safe_load(path.read_text())["scheduler"] == "slurm"
)
STACKS = ("SlurmNetworkStack", "SlurmStorageStack", "SlurmHyperPodStack")

Templates = dict[str, dict[str, Any]]
"""By construct id, in the order of deployment."""


def load(file: str, **changes: Any) -> SlurmCluster:
    """The cluster of a file, with other values at its top level."""
    return SlurmCluster.model_validate(yaml.safe_load((REPOSITORY / file).read_text()) | changes)


def new_app(file: str | None = None) -> App:
    """An app that writes to a folder of its own, with what the command line would give it."""
    context = json.loads((REPOSITORY / "cdk.json").read_text())["context"]
    # What the command line adds by itself.
    context |= {"aws:cdk:enable-path-metadata": True, "aws:cdk:enable-asset-metadata": True}
    if file:
        context["cluster"] = file
    return App(context=context, outdir=tempfile.mkdtemp(prefix="cdk-"), analytics_reporting=False)


def synthesize(cluster: SlurmCluster, file: str | None = None) -> Path:
    """The folder of the cloud assembly; cdk-nag's findings raise."""
    app = new_app(file)
    add_stacks(app, cluster)
    add_checks(app)
    return Path(app.synth().directory)


def read_templates(folder: Path) -> Templates:
    return {stack: json.loads((folder / f"{stack}.template.json").read_text()) for stack in STACKS}


@cache
def assembly(file: str) -> Path:
    return synthesize(load(file), file)


@cache
def templates(file: str) -> Templates:
    return read_templates(assembly(file))


def resources(template: dict[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    """Those of one CloudFormation type, by logical id."""
    return {name: found for name, found in template["Resources"].items() if found["Type"] == kind}


def only(template: dict[str, Any], kind: str) -> dict[str, Any]:
    """The properties of the one resource of a type."""
    (found,) = resources(template, kind).values()
    properties: dict[str, Any] = found["Properties"]
    return properties
