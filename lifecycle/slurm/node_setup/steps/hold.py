"""No jobs for a worker that is not set up: drained while the steps run, and given back by the last one."""

from __future__ import annotations

from node_setup.node import Node


def hold(node: Node) -> None:
    """See the module."""


def release(node: Node) -> None:
    """See the module."""


def keep_held(node: Node, *, failed_step: str) -> None:
    """See the module."""
