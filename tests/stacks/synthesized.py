"""Cluster files and variants of them, synthesized once for all tests as `cdk synth` does it."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from aws_cdk import App

from config.cluster_kinds import KINDS, AnyCluster
from stacks.cluster_stacks import add_checks, add_stacks

REPOSITORY = Path(__file__).parents[2]
CHARTS = REPOSITORY / "tests" / "charts" / "stand_ins"
_FILES = {
    path.relative_to(REPOSITORY).as_posix(): yaml.safe_load(path.read_text())["scheduler"]
    for path in sorted((REPOSITORY / "clusters").glob("*.yaml"))
}
CLUSTER_FILES = [file for file, scheduler in _FILES.items() if scheduler == "slurm"]
EKS_FILES = [file for file, scheduler in _FILES.items() if scheduler == "eks"]
ALL_FILES = list(_FILES)
STACKS = ("SlurmNetworkStack", "SlurmStorageStack", "SlurmHyperPodStack")
EKS_STACKS = ("EksNetworkStack", "EksStorageStack", "EksHyperPodStack")
OBSERVABILITY_STACKS = ("SlurmObservabilityStack", "EksObservabilityStack")
"""Of clusters whose file asks for it."""
STUDIO_STACKS = ("SlurmStudioStack", "EksStudioStack")
"""Of clusters that are not shipped (tests/stacks/studios.py)."""

Templates = dict[str, dict[str, Any]]
"""By construct id, in the order of deployment."""


def load(file: str, **changes: Any) -> Any:
    """The cluster of a file, with other values at its top level."""
    document = yaml.safe_load((REPOSITORY / file).read_text()) | changes
    return KINDS[document["scheduler"]].model_validate(document)


def new_app(file: str | None = None) -> App:
    """An app that writes to a folder of its own, with what the command line would give it."""
    context = json.loads((REPOSITORY / "cdk.json").read_text())["context"]
    # What the command line adds by itself.
    context |= {"aws:cdk:enable-path-metadata": True, "aws:cdk:enable-asset-metadata": True}
    if file:
        context["cluster"] = file
    return App(context=context, outdir=tempfile.mkdtemp(prefix="cdk-"), analytics_reporting=False)


def synthesize(cluster: AnyCluster, file: str | None = None) -> Path:
    """The folder of the cloud assembly; cdk-nag's findings raise."""
    app = new_app(file)
    add_stacks(app, cluster, chart_stand_ins=CHARTS)
    add_checks(app)
    return Path(app.synth().directory)


def read_templates(folder: Path) -> Templates:
    return {
        stack: json.loads((folder / f"{stack}.template.json").read_text())
        for stack in (*STACKS, *EKS_STACKS, *OBSERVABILITY_STACKS, *STUDIO_STACKS)
        if (folder / f"{stack}.template.json").exists()
    }


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
