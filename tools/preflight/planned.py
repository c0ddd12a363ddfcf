"""Resources that a deployment would create on EKS, according to the synthesized template."""

import json
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from config.eks_cluster import EksCluster
from config.resource_names import construct_ids

REPOSITORY = Path(__file__).parents[2]
LATER = "<known at deployment>"
"""Placeholder for values that CloudFormation fills in, such as ARNs."""
Template = dict[str, Any]


@dataclass(frozen=True)
class Addon:
    name: str
    version: str
    configuration: dict[str, Any] | None
    """Configuration values, with LATER as placeholder; None if there are none."""


class Synthesis(NamedTuple):
    template: Template
    errors: list[str]
    """Errors of the stack, which prevent its deployment."""


class Planned:
    """Stack of the cluster, synthesized at the first access."""

    def __init__(self, cluster: EksCluster) -> None:
        self._cluster = cluster

    @cached_property
    def _synthesis(self) -> Synthesis:
        return synthesize(self._cluster)

    @property
    def errors(self) -> list[str]:
        """Errors that prevent the deployment."""
        return self._synthesis.errors

    @property
    def addons(self) -> list[Addon]:
        addons = []
        for properties in self._of_type("AWS::EKS::Addon"):
            values = properties.get("ConfigurationValues")
            configuration = None if values is None else json.loads(_text(values))
            addons.append(Addon(properties["AddonName"], properties["AddonVersion"], configuration))
        return addons

    @property
    def log_groups(self) -> list[str]:
        """Names of log groups that have a name in the template; the others are named after their function."""
        names = [
            properties.get("LogGroupName") for properties in self._of_type("AWS::Logs::LogGroup")
        ]
        return [name for name in names if isinstance(name, str)]

    def _of_type(self, resource_type: str) -> list[dict[str, Any]]:
        resources = self._synthesis.template["Resources"].values()
        return [
            resource["Properties"] for resource in resources if resource["Type"] == resource_type
        ]


def synthesize(cluster: EksCluster) -> Synthesis:
    """Return the template of the cluster's stack, and its errors.

    Raises:
        ValueError: if Node.js is missing, on which the CDK runs.
    """
    if shutil.which("node") is None:
        raise ValueError("node is not on the PATH, and the CDK needs it; use `make preflight`")
    # These imports take seconds, which checks of Slurm clusters avoid.
    from aws_cdk import App

    from stacks.assembly_checks import errors_of
    from stacks.cluster_stacks import add_stacks

    context = json.loads((REPOSITORY / "cdk.json").read_text())["context"]
    with TemporaryDirectory(prefix="cdk-") as folder:
        app = App(context=context, outdir=folder, analytics_reporting=False)
        add_stacks(app, cluster)
        stack = construct_ids(cluster).hyperpod
        try:
            app.synth()
        except RuntimeError:
            # The stack's own errors raise only after the files are written.
            errors = errors_of(Path(folder) / f"{stack}.metadata.json")
            if not errors:
                raise
        else:
            errors = []
        template: Template = json.loads((Path(folder) / f"{stack}.template.json").read_text())
    return Synthesis(template, errors)


def _text(value: str | dict[str, Any]) -> str:
    """Return a string of the template; references in it become LATER."""
    if isinstance(value, str):
        return value
    if "Fn::Join" in value:
        separator, parts = value["Fn::Join"]
        return str(separator).join(map(_text, parts))
    return LATER
