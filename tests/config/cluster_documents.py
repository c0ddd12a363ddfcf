"""Good cluster files, and how a test makes others of them."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

DELETED = "<deleted>"
"""As a changed value: the key is taken out."""

_EXISTING_NETWORK = {
    "vpc": "existing",
    "vpc_id": "vpc-0123456789abcdef0",
    "cidr": "10.4.0.0/16",
    "private_subnets": [
        {
            "subnet_id": "subnet-0aaaaaaaaaaaaaaaa",
            "availability_zone_id": "usw2-az4",
            "route_table_id": "rtb-0aaaaaaaaaaaaaaaa",
            "cidr": "10.4.0.0/20",
        },
        {
            "subnet_id": "subnet-0bbbbbbbbbbbbbbbb",
            "availability_zone_id": "usw2-az1",
            "route_table_id": "rtb-0aaaaaaaaaaaaaaaa",
            "cidr": "10.4.16.0/20",
        },
    ],
}


_FILES = {
    "small": "slurm.yaml",
    "existing": "slurm.yaml",
    "p5": "slurm-p5.yaml",
    "eks": "eks.yaml",
    "eks-existing": "eks.yaml",
    "eks-p5": "eks-p5.yaml",
}


@cache
def _shipped(name: str) -> str:
    return json.dumps(yaml.safe_load((Path("clusters") / name).read_text()))


def document(base: str, changes: dict[Any, Any] | None = None) -> dict[str, Any]:
    """A shipped cluster with changes: the small one also in an ``existing`` VPC, p5's with EFA to Lustre.

    Changes are by path: ``storage.lustre.efa``, ``instance_groups[workers].ebs_gib``.
    """
    made: dict[str, Any] = json.loads(_shipped(_FILES[base]))
    if base.endswith("existing"):
        made["network"] = _EXISTING_NETWORK
    if base.endswith("p5"):
        made["storage"]["lustre"]["efa"] = True
    made = json.loads(json.dumps(made))  # a copy in which nothing is there twice
    # The paths name the groups as they are in the base, also where a change renames one.
    places = [(_place(made, place), value) for place, value in (changes or {}).items()]
    for (holder, key), value in places:
        if value == DELETED:
            del holder[key]
        else:
            holder[key] = value
    return made


def _place(made: dict[str, Any], path: str | int) -> tuple[Any, Any]:
    """What holds the place, and its key there."""
    parts: list[Any] = re.findall(r"[^.\[\]]+", path) if isinstance(path, str) else [path]
    *parents, last = parts
    holder: Any = made
    for part in parents:
        holder = holder[_index(holder, part)] if isinstance(holder, list) else holder.setdefault(part, {})
    return holder, _index(holder, last) if isinstance(holder, list) else last


def _index(items: list[dict[str, Any]], name: str) -> int:
    return int(name) if name.isdigit() else [item["name"] for item in items].index(name)


def mistakes(error: object) -> list[str]:
    """Lines of a refusal below the file's path, without the spaces that align them."""
    return [re.sub(r"^  (.*?): +got (.*?); +", r"\1: got \2; ", line) for line in str(error).split("\n")[1:]]
