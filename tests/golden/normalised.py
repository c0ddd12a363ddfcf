"""Templates without what changes with every change of a file that is uploaded."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from tests.stacks.endpoints import ENDPOINT_FILES, endpoint_template
from tests.stacks.studios import STUDIOS, studio_stack, studio_template
from tests.stacks.synthesized import ALL_FILES, templates

GOLDEN = Path(__file__).parent
_ASSET = re.compile(r"\b[0-9a-f]{64}\b")
_CONTENT = re.compile(
    r"\b(functions/|lifecycle/|workloads/|studio/|-codeeditor-|-jupyterlab-)[0-9a-f]{16}\b"
)


def normalised(template: dict[str, Any]) -> str:
    """The template as text; assets are numbered in the order of their first mention."""
    text = json.dumps(template, indent=1, sort_keys=True)
    numbers: dict[str, str] = {}
    text = _ASSET.sub(
        lambda found: numbers.setdefault(found[0], f"<asset {len(numbers) + 1}>"), text
    )
    return _CONTENT.sub(r"\1<content>", text) + "\n"


@cache
def golden_files() -> dict[Path, str]:
    """What the golden files of all shipped clusters and endpoints should hold."""
    endpoints = {
        GOLDEN / f"endpoint-{Path(file).stem}" / "EndpointStack.json": normalised(
            endpoint_template(file)
        )
        for file in ENDPOINT_FILES
    }
    clusters = {
        GOLDEN / Path(file).stem / f"{stack}.json": normalised(template)
        for file in ALL_FILES
        for stack, template in templates(file).items()
    }
    return clusters | endpoints


def studio_golden_file(name: str) -> Path:
    """Of a cluster that is not shipped (tests/stacks/studios.py)."""
    return GOLDEN / name / f"{studio_stack(name)}.json"


def studio_golden_files() -> dict[Path, str]:
    """Apart from the others, since they take two more syntheses."""
    return {studio_golden_file(name): normalised(studio_template(name)) for name in STUDIOS}
