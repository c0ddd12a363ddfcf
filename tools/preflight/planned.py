"""Stacks that a deployment would create, according to their synthesis."""

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from config.cluster_kinds import AnyCluster
from config.resource_names import construct_ids, wanted_stacks
from tools.preflight.finding import Finding, Subject
from tools.preflight.read_only_aws import ReadOnlyAws

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


class Problem(NamedTuple):
    """Error of the synthesis, which prevents the deployment."""

    text: str
    remedy: str


class Synthesis(NamedTuple):
    template: Template
    """Template of the cluster's stack; empty if the synthesis wrote none."""
    problems: list[Problem]


SYNTHESIS = Subject("synthesis")
SYNTH_SHOWS_IT = "correct this first; `make synth` shows it too"
REMEDIES: Mapping[str, str] = {
    "F3006": "remove the section of the cluster file that needs the type, or change `region`",
    "Annotation": SYNTH_SHOWS_IT,
}
"""Remedies of errors, by the rule or the beginning of its id."""
OTHER_REMEDY = (
    "correct the value that it names in the cluster file; if the file is right, please report the line as a "
    "fault of this project (docs/security.md)"
)


EKS_CHOOSES = ""
"""Version of an add-on that the template leaves to EKS."""


class Planned:
    """Stack of the cluster, synthesized at the first access."""

    def __init__(self, cluster: AnyCluster) -> None:
        self._cluster = cluster

    @cached_property
    def _synthesis(self) -> Synthesis:
        return synthesize(self._cluster)

    @property
    def problems(self) -> list[Problem]:
        """Errors that prevent the deployment."""
        return self._synthesis.problems

    @property
    def addons(self) -> list[Addon]:
        addons = []
        for properties in self._of_type("AWS::EKS::Addon"):
            values = properties.get("ConfigurationValues")
            configuration = None if values is None else json.loads(_text(values))
            addons.append(
                Addon(
                    properties["AddonName"],
                    properties.get("AddonVersion", EKS_CHOOSES),
                    configuration,
                )
            )
        return addons

    @property
    def service_accounts(self) -> list[str]:
        """Service accounts to which the stack gives roles, each with its namespace."""
        return [
            f"{properties['Namespace']}/{properties['ServiceAccount']}"
            for properties in self._of_type("AWS::EKS::PodIdentityAssociation")
        ]

    @property
    def objects(self) -> list[dict[str, Any]]:
        """Kubernetes objects of the stack, with LATER as placeholder."""
        return [
            found
            for properties in self._of_type("Custom::AWSCDK-EKS-KubernetesResource")
            for found in json.loads(_text(properties["Manifest"]))
        ]

    @property
    def log_groups(self) -> list[str]:
        """Names of log groups that have a name in the template; the others are named after their function."""
        names = [
            properties.get("LogGroupName") for properties in self._of_type("AWS::Logs::LogGroup")
        ]
        return [name for name in names if isinstance(name, str)]

    def _of_type(self, resource_type: str) -> list[dict[str, Any]]:
        resources = self._synthesis.template.get("Resources", {}).values()
        return [
            resource["Properties"] for resource in resources if resource["Type"] == resource_type
        ]


def check_synthesis(planned: Planned, aws: ReadOnlyAws, cluster: AnyCluster) -> Iterator[Finding]:
    """Check the synthesis, because a failure would leave only the other stacks, which bill."""
    for problem in planned.problems:
        yield SYNTHESIS.fail(problem.text, problem.remedy)
    if not planned.problems:
        yield SYNTHESIS.ok("all stacks are complete and pass the validation")


def synthesize(cluster: AnyCluster) -> Synthesis:
    """Return the template of the cluster's stack, and the errors of all stacks.

    The checks are those of `make synth`: aws-cdk-lib's validation, cdk-nag, and the size of templates.

    Raises:
        ValueError: if Node.js is missing, on which the CDK runs.
    """
    if shutil.which("node") is None:
        raise ValueError("node is not on the PATH, and the CDK needs it; use `make preflight`")
    # These imports take seconds, which other tools avoid.
    from aws_cdk import App

    from stacks.assembly_checks import errors_of, oversized, validation_errors
    from stacks.cluster_stacks import add_checks, add_stacks

    context = json.loads((REPOSITORY / "cdk.json").read_text())["context"]
    with TemporaryDirectory(prefix="cdk-") as name:
        folder = Path(name)
        app = App(context=context, outdir=name, analytics_reporting=False)
        add_stacks(app, cluster)
        add_checks(app)
        problems: list[Problem] = []
        try:
            app.synth()
        except RuntimeError as error:
            # The stacks' own errors raise only after the files are written.
            for stack in wanted_stacks(cluster, construct_ids(cluster)):
                own = errors_of(folder / f"{stack}.metadata.json")
                problems += [Problem(text, SYNTH_SHOWS_IT) for text in own]
            known = {problem.text for problem in problems}
            problems += [
                Problem(f"{found.construct}: {found.text}", _remedy(found.rule))
                for found in validation_errors(folder)
                if found.text not in known
            ]
            if not problems:
                first_line = str(error).strip().splitlines()[0]
                problems.append(Problem(f"the CDK ends with: {first_line}", SYNTH_SHOWS_IT))
        problems += [Problem(text, SYNTH_SHOWS_IT) for text in oversized(folder)]
        path = folder / f"{construct_ids(cluster).hyperpod}.template.json"
        template: Template = json.loads(path.read_text()) if path.is_file() else {}
    return Synthesis(template, problems)


def _remedy(rule: str) -> str:
    return next(
        (remedy for name, remedy in REMEDIES.items() if rule.startswith(name)), OTHER_REMEDY
    )


def _text(value: str | dict[str, Any]) -> str:
    """Return a string of the template; references in it become LATER."""
    if isinstance(value, str):
        return value
    if "Fn::Join" in value:
        separator, parts = value["Fn::Join"]
        return str(separator).join(map(_text, parts))
    return LATER
