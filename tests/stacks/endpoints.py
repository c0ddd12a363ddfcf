"""Endpoint files, synthesized once for all tests as `cdk synth -c endpoint=...` does it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from config.endpoint import Endpoint
from stacks.endpoint_stack import add_endpoint_stack
from tests.stacks.synthesized import REPOSITORY, once

ENDPOINT_FILES = [
    path.relative_to(REPOSITORY).as_posix()
    for path in sorted((REPOSITORY / "endpoints").glob("*.yaml"))
]
GIVEN = {
    "image": f"123456789012.dkr.ecr.us-west-2.amazonaws.com/esm2-slurm/training@sha256:{'1' * 64}",
    "model": "s3://esm2-slurm-models/localization/",
}
"""At deployment, where a file leaves it open."""


def endpoint(file: str, **changes: Any) -> Endpoint:
    document = yaml.safe_load((REPOSITORY / file).read_text())
    return Endpoint.model_validate({**GIVEN, **document, **changes})


def synthesize_endpoint(found: Endpoint) -> Path:
    """The folder of the cloud assembly; cdk-nag's findings raise."""
    return once(f"endpoint {found.model_dump_json()}", lambda app: add_endpoint_stack(app, found))


@cache
def endpoint_assembly(file: str) -> Path:
    return synthesize_endpoint(endpoint(file))


def template_in(folder: Path) -> dict[str, Any]:
    template: dict[str, Any] = json.loads((folder / "EndpointStack.template.json").read_text())
    return template


@cache
def endpoint_template(file: str) -> dict[str, Any]:
    return template_in(endpoint_assembly(file))
