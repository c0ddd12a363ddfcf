"""Valid cluster files, and a function that changes them for tests."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

DELETED = "<deleted>"
"""Changed value that removes the key."""

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
    """Return a shipped cluster with changes by path.

    Paths are like ``storage.lustre.efa`` or ``instance_groups[workers].ebs_gib``. The small cluster can also
    be in an ``existing`` VPC, and those with P5 have EFA to Lustre.
    """
    made: dict[str, Any] = json.loads(_shipped(_FILES[base]))
    if base.endswith("existing"):
        made["network"] = _EXISTING_NETWORK
    if base.endswith("p5"):
        made["storage"]["lustre"]["efa"] = True
    made = json.loads(json.dumps(made))  # a copy without shared objects
    # Paths use the groups' names in the base file, even if a change renames a group.
    places = [(_place(made, place), value) for place, value in (changes or {}).items()]
    for (holder, key), value in places:
        if value == DELETED:
            del holder[key]
        else:
            holder[key] = value
    return made


def _place(made: dict[str, Any], path: str | int) -> tuple[Any, Any]:
    """Return the container of a place and its key in the container."""
    parts: list[Any] = re.findall(r"[^.\[\]]+", path) if isinstance(path, str) else [path]
    *parents, last = parts
    holder: Any = made
    for part in parents:
        holder = (
            holder[_index(holder, part)]
            if isinstance(holder, list)
            else holder.setdefault(part, {})
        )
    return holder, _index(holder, last) if isinstance(holder, list) else last


def _index(items: list[dict[str, Any]], name: str) -> int:
    return int(name) if name.isdigit() else [item["name"] for item in items].index(name)


def mistakes(error: object) -> list[str]:
    """Return the lines of an error below the file's path, without the spaces that align them."""
    return [
        re.sub(r"^  (.*?): +got (.*?); +", r"\1: got \2; ", line)
        for line in str(error).split("\n")[1:]
    ]
