"""Write config/facts/registry.json from the registry and the price lists that cfn-lint carries.

``python -m tools.stacks.registry_facts`` needs no network. Run it after a change of the pinned cfn-lint,
or of the resource types of the stacks.
"""

import json
from collections.abc import Iterable
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from cfnlint.schema import PROVIDER_SCHEMA_MANAGER, ResourceNotFoundError  # type: ignore[import-untyped]

from config.facts.instance_catalogue import INSTANCE_TYPES
from config.facts.optional_features import OPTIONAL_FEATURES
from config.facts.regions import ZONE_ID_PREFIXES
from config.facts.registry import PATH
from tools.command_line import run_command

PRICED = "data/schemas/extensions/aws_sagemaker_cluster/instancetype_enum.json"
"""cfn-lint's list of HyperPod's instance types by region, from AWS's price list (rule E3644)."""


def main() -> int:
    PATH.write_text(registry_text())
    return 0


def registry_text() -> str:
    """Return the content of the file."""
    priced = json.loads((files("cfnlint") / PRICED).read_text())
    unpriced = {
        name: [region for region in ZONE_ID_PREFIXES if name not in priced[region]["enum"]]
        for name in INSTANCE_TYPES
    }
    types = {feature.resource_type for feature in OPTIONAL_FEATURES}
    facts = {
        "cfn_lint": version("cfn-lint"),
        "absent": {name: missing_regions(name) for name in sorted(types)},
        "unpriced": {name: regions for name, regions in unpriced.items() if regions},
    }
    return _one_list_per_line(facts)


def _one_list_per_line(facts: dict[str, Any]) -> str:
    """Return JSON in which each list is on one line, so that differences are readable."""
    parts = []
    for key, value in facts.items():
        text = json.dumps(value)
        if isinstance(value, dict):
            entries = [
                f"  {json.dumps(name)}: {json.dumps(regions)}" for name, regions in value.items()
            ]
            text = "{\n" + ",\n".join(entries) + "\n }"
        parts.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def missing_regions(resource_type: str) -> list[str]:
    """Return the regions of HyperPod whose registry lacks a resource type."""
    return [region for region in ZONE_ID_PREFIXES if not _has(region, resource_type)]


def types_missing_somewhere(resource_types: Iterable[str]) -> set[str]:
    """Return the resource types of AWS that a region of HyperPod lacks."""
    return {name for name in resource_types if name.startswith("AWS::") and missing_regions(name)}


def _has(region: str, resource_type: str) -> bool:
    try:
        PROVIDER_SCHEMA_MANAGER.get_resource_schema(region, resource_type)
    except ResourceNotFoundError:
        return False
    return True


if __name__ == "__main__":
    run_command(main)
