"""Checks of a synthesized cloud assembly: errors of stacks, and the limits of templates."""

import json
from pathlib import Path
from typing import NamedTuple

from config.stack_division import MAX_RESOURCES

MAX_TEMPLATE_BYTES = 1_000_000
"""Limit of a template in S3 (CloudFormation user guide, "Understand CloudFormation quotas")."""
REPORT = "validation-report.json"
"""File of the assembly with the findings of all validations."""
REFUSED = {"error", "fatal"}
"""Severities that end a synthesis."""
_METADATA = ".metadata.json"
_TEMPLATE = ".template.json"


def errors_of(metadata: Path) -> list[str]:
    """Return the errors that a stack reported during synthesis.

    Args:
        metadata: file ``<stack>.metadata.json`` of the assembly; a stack without metadata has no file.
    """
    if not metadata.is_file():
        return []
    by_construct = json.loads(metadata.read_text())
    return [
        entry["data"]
        for entries in by_construct.values()
        for entry in entries
        if entry["type"] == "aws:cdk:error"
    ]


class ValidationError(NamedTuple):
    """Error that the validation of a cloud assembly reported."""

    rule: str
    """Id of the rule, such as F3006 of aws-cdk-lib or AwsSolutions-IAM4 of cdk-nag."""
    text: str
    construct: str
    """Path of the construct, which begins with the id of its stack."""


def validation_errors(folder: Path) -> list[ValidationError]:
    """Return the errors in the report that the CDK writes into a cloud assembly."""
    report = folder / REPORT
    if not report.is_file():
        return []
    return [
        ValidationError(violation["ruleName"], violation["description"], construct["constructPath"])
        for plugin in json.loads(report.read_text())["pluginReports"]
        for violation in plugin["violations"]
        if violation["severity"] in REFUSED
        for construct in violation["violatingConstructs"]
    ]


def remove_refused(folder: Path) -> None:
    """Delete the templates of stacks with errors from a cloud assembly, so that they cannot be deployed.

    The command line reports the errors in every command that synthesizes, compares or deploys the stack.
    """
    for metadata in folder.glob(f"*{_METADATA}"):
        if errors_of(metadata):
            stack = metadata.name.removesuffix(_METADATA)
            metadata.with_name(stack + _TEMPLATE).unlink(missing_ok=True)


def oversized(folder: Path) -> list[str]:
    """Return a message for each limit of CloudFormation that a template of a cloud assembly exceeds.

    aws-cdk-lib only warns about the size. Its check of the number of resources, which ends with a traceback,
    is off (``@aws-cdk/core:stackResourceLimit`` in ``cdk.json``).
    """
    problems: list[str] = []
    for template in sorted(folder.glob(f"*{_TEMPLATE}")):
        name = template.name.removesuffix(_TEMPLATE)
        num_resources = len(json.loads(template.read_text()).get("Resources", {}))
        if num_resources > MAX_RESOURCES:
            problems.append(
                f"{name}: the template has {num_resources} resources, CloudFormation accepts {MAX_RESOURCES};"
                " set `level: none` in entries of kubernetes.access that are in this stack, or fewer options"
            )
        size = template.stat().st_size
        if size > MAX_TEMPLATE_BYTES:
            problems.append(
                f"{name}: the template has {size:,} bytes, CloudFormation"
                f" accepts {MAX_TEMPLATE_BYTES:,}; every resource repeats the tags, and every group the"
                " labels and taints: set fewer or shorter ones, or fewer groups, teams or access entries"
            )
    return problems
