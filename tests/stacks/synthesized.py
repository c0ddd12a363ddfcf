"""Cluster files and variants of them, synthesized as `cdk synth` does it, once per pytest session."""

from __future__ import annotations

import fcntl
import hashlib
import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import yaml
from aws_cdk import App

from config.cluster_kinds import KINDS, AnyCluster
from stacks.cluster_stacks import add_checks, add_stacks
from tests.shared_folder import shared_folder

REPOSITORY = Path(__file__).parents[2]
CHARTS = REPOSITORY / "tests" / "manifests" / "stand_ins"
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
"""Stacks of clusters whose file has the section."""
STUDIO_STACKS = ("SlurmStudioStack", "EksStudioStack")
"""Stacks of clusters that are not shipped (tests/stacks/studios.py)."""

Templates = dict[str, dict[str, Any]]
"""Templates by construct id, in the order of deployment."""


def load(file: str, **changes: Any) -> Any:
    """The cluster of a file, with other values at its top level."""
    document = yaml.safe_load((REPOSITORY / file).read_text()) | changes
    return KINDS[document["scheduler"]].model_validate(document)


def new_app(file: str | None = None, folder: Path | None = None) -> App:
    """An app with what the command line would give it. By default it writes to a folder of its own."""
    context = json.loads((REPOSITORY / "cdk.json").read_text())["context"]
    # What the command line adds by itself.
    context |= {"aws:cdk:enable-path-metadata": True, "aws:cdk:enable-asset-metadata": True}
    if file:
        context["cluster"] = file
    return App(
        context=context,
        outdir=str(folder or tempfile.mkdtemp(dir=shared_folder())),
        analytics_reporting=False,
    )


def synthesize(cluster: AnyCluster, file: str | None = None) -> Path:
    """The folder of the cloud assembly; cdk-nag's findings raise."""

    def add(app: App) -> None:
        add_with_stand_in(app, cluster)

    return once(f"{file} {cluster.model_dump_json()}", add, file)


def add_with_stand_in(app: App, cluster: AnyCluster) -> None:
    """Add the stacks with a stand-in for HyperPod's chart, which tests without a network lack."""
    with mock.patch("stacks.eks_hyperpod_stack.chart_folder", lambda name: CHARTS / name):
        add_stacks(app, cluster)


def once(subject: str, add: Callable[[App], None], file: str | None = None) -> Path:
    """The cloud assembly of what ``add`` adds, made by the first process of the session that wants it."""
    folder = shared_folder() / "assemblies" / hashlib.sha256(subject.encode()).hexdigest()[:16]
    folder.parent.mkdir(exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            partial = folder.with_suffix(".partial")
            app = new_app(file, partial)
            add(app)
            add_checks(app)
            app.synth()
            partial.rename(folder)
    return folder


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
