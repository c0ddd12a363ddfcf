"""Differences between regions, from the data that cfn-lint carries: CloudFormation's registry and prices.

``python -m tools.stacks.registry_facts`` writes ``registry.json`` from the pinned cfn-lint.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from config.facts.regions import ZONE_ID_PREFIXES

PATH = Path(__file__).with_name("registry.json")


@dataclass(frozen=True)
class Registry:
    cfn_lint: str
    """Version of cfn-lint that the facts come from."""
    absent: Mapping[str, list[str]]
    """Regions without a resource type, by type. Types that all regions have are left out."""
    unpriced: Mapping[str, list[str]]
    """Regions in which the price list of HyperPod has no entry for an instance type, by type. Types that all
    regions list are left out."""


REGISTRY = TypeAdapter(Registry).validate_python(json.loads(PATH.read_text()))


def regions_with(resource_type: str) -> frozenset[str]:
    """Return the regions of HyperPod in which CloudFormation has a resource type."""
    return frozenset(ZONE_ID_PREFIXES) - set(REGISTRY.absent.get(resource_type, ()))


def has_list_price(instance_type: str, region: str) -> bool:
    """Return whether HyperPod's price list names the type in the region.

    Types of training plans and of private offers have no list price, and new types have one late.
    """
    return region not in REGISTRY.unpriced.get(instance_type, ())
