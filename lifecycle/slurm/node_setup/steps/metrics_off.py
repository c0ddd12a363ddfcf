"""Remove exporters and collector from nodes of a cluster whose metrics are switched off."""

from node_setup.node import Node
from node_setup.service import remove_units
from node_setup.steps import exporters, gpu_exporter, metrics_collector

UNITS = (
    metrics_collector.UNIT,
    metrics_collector.DISCOVERY_UNIT,
    "slurm-metrics.service",
    "efa-metrics.service",
    gpu_exporter.UNIT,
    exporters.NODE_UNIT,
)


def remove(node: Node) -> None:
    """Stop the services that the other steps installed, and remove their units; programs stay.

    Raises:
        SetupError: if one does not stop.
    """
    remove_units(node, UNITS)
