"""Commands that a document tells people to type, and whether they exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import botocore.session
from botocore import xform_name

REPOSITORY = Path(__file__).parents[3]
MODELS = botocore.session.get_session()
HIGH_LEVEL = {"s3", "configure", "sso"}
"""Commands of the aws command line that are no operations of a service."""


def blocks(text: str) -> list[str]:
    """Blocks of shell commands, continued lines joined, without the comments behind commands."""
    found = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    return [
        "\n".join(line.partition(" # ")[0].rstrip() for line in _lines(block)) for block in found
    ]


def _lines(block: str) -> list[str]:
    return block.replace("\\\n", " ").split("\n")


def commands(text: str) -> list[str]:
    """Lines of the blocks, and what stands in backticks."""
    lines = [line.strip() for block in blocks(text) for line in block.split("\n")]
    return [line for line in lines if line] + re.findall(r"`([^`\n]+)`", text)


def unknown_options(command: str) -> set[str]:
    """Options of an aws command that its operation does not take; fails for an operation that is none."""
    _, service, operation, *arguments = shlex.split(command.replace("<", "'<").replace(">", ">'"))
    if service in HIGH_LEVEL:
        return set()
    model = MODELS.get_service_model({"s3api": "s3"}.get(service, service))
    name = next(n for n in model.operation_names if xform_name(n, "-") == operation)
    shape = model.operation_model(name).input_shape
    known = shape.members if shape else {}
    members = {xform_name(member, "-") for member in known}
    options = {argument.removeprefix("--") for argument in arguments if argument.startswith("--")}
    # Of a member that is true or false the command line has the opposite, too.
    flags = [member for member in known if known[member].type_name == "boolean"]
    return options - members - {f"no-{xform_name(flag, '-')}" for flag in flags}
