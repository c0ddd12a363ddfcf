"""Parts of nodes' settings about Slurm's accounts, QOS and partitions."""

from __future__ import annotations

from typing import Any

NO_LIMITS = {"max_jobs": None, "max_submitted_jobs": None, "max_nodes": None, "max_gpus": None}


def account(name: str, parent: str | None = None, **options: Any) -> dict[str, Any]:
    """An account with a share of 5 and without limits."""
    own = {"name": name, "parent": parent, "fairshare": 5, "qos": [], "default_qos": None}
    return {**NO_LIMITS, **own, **options}


def qos(name: str, **options: Any) -> dict[str, Any]:
    """A QOS without limits."""
    own = {"name": name, "priority": None, "max_time": None, "per_user": None}
    return {**NO_LIMITS, **own, **options}


def partition(name: str, **options: Any) -> dict[str, Any]:
    """Options of a partition, of which none is set."""
    own = {
        "name": name,
        "default": False,
        "max_time": None,
        "default_time": None,
        "max_nodes": None,
        "priority_tier": None,
        "qos": None,
        "allow_qos": [],
        "allow_accounts": [],
    }
    return {**own, **options}
