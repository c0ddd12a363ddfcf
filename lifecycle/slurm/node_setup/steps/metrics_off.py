"""No exporters and no collector on nodes of a cluster whose metrics have been switched off."""

from __future__ import annotations

from node_setup.node import Node
from node_setup.steps import gpu_exporter, metrics_collector, node_exporter

UNITS = (
    metrics_collector.UNIT,
    metrics_collector.DISCOVERY_UNIT,
    "slurm-metrics.service",
    "efa-metrics.service",
    gpu_exporter.UNIT,
    node_exporter.UNIT,
)


def remove(node: Node) -> None:
    """Stop the services that the other steps installed, and remove their units; programs stay.

    Raises:
        SetupError: if one does not stop.
    """
    before = len(node.changes)
    for unit in UNITS:
        path = node.host.path(f"/etc/systemd/system/{unit}")
        if path.is_file() and _description(path.read_text()) == _description(_ours(node, unit)):
            node.host.run("systemctl", "disable", "--now", "--quiet", unit, timeout_seconds=120)
            path.unlink()
            node.changed(f"{unit}: removed")
    if len(node.changes) > before:
        node.host.run("systemctl", "daemon-reload")


def _ours(node: Node, unit: str) -> str:
    return (node.files / "units" / unit).read_text()


def _description(text: str) -> str:
    """What tells our unit from one of the same name that somebody has set up by hand."""
    return next((line for line in text.splitlines() if line.startswith("Description=")), "")
