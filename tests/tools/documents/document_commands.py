"""Commands that a document tells people to type, and whether they exist."""

from __future__ import annotations

import io
import re
import runpy
import shlex
import sys
from contextlib import redirect_stderr, suppress
from pathlib import Path
from unittest.mock import patch

import botocore.session
from botocore import xform_name

REPOSITORY = Path(__file__).parents[3]
MAKEFILE = REPOSITORY / "Makefile"
MODELS = botocore.session.get_session()
HIGH_LEVEL = {"s3", "configure", "sso"}
"""Commands of the aws command line that are no operations of a service."""


def blocks(text: str) -> list[str]:
    """Blocks of shell commands, continued lines joined, without the comments behind commands."""
    found = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    return ["\n".join(line.partition(" # ")[0].rstrip() for line in _lines(block)) for block in found]


def _lines(block: str) -> list[str]:
    return block.replace("\\\n", " ").split("\n")


def commands(text: str) -> list[str]:
    """Lines of the blocks, and what stands in backticks."""
    lines = [line.strip() for block in blocks(text) for line in block.split("\n")]
    return [line for line in lines if line] + re.findall(r"`([^`\n]+)`", text)


def make_targets(text: str) -> set[str]:
    """Those that the text tells to make."""
    return {target for command in commands(text) for target in re.findall(r"^make ([a-z-]+)", command)}


def tool_commands(text: str) -> list[str]:
    """Those of the text that start one of our tools with arguments."""
    found = re.compile(r"make (?:logs|apply-lifecycle|connect|mirror-downloads|preflight) +(?:NODE|ARGS)=")
    return sorted({command for command in commands(text) if found.match(command)})


def takes_its_arguments(command: str) -> bool:
    """Whether a tool gets to the cluster file, and so past its arguments, with those of a make command."""
    filled = re.sub(r"<([a-z ]+)>", lambda match: match[1].replace(" ", "-"), command)
    _, target, *variables = shlex.split(filled)
    values = dict(variable.split("=", 1) for variable in variables)
    words = [values["NODE"]] if "NODE" in values else []
    words += ["--cluster", "/nonexistent.yaml", *shlex.split(values.get("ARGS", ""))]
    recipe = re.search(rf"^{target}:.*?-m (tools[\w.]+)", MAKEFILE.read_text(), re.MULTILINE | re.DOTALL)
    assert recipe is not None, f"make {target} starts no tool"
    module = REPOSITORY.joinpath(*recipe[1].split("."))
    path = module / "__main__.py" if module.is_dir() else module.with_suffix(".py")
    errors = io.StringIO()
    with patch.object(sys, "argv", [target, *words]), redirect_stderr(errors), suppress(SystemExit):
        runpy.run_path(str(path), run_name="__main__")
    return "nonexistent.yaml" in errors.getvalue() and "usage:" not in errors.getvalue()


def existing_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", MAKEFILE.read_text(), re.MULTILINE))


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
