"""Metrics of Slurm, from the primary controller."""

import re

from node_setup.node import Node
from node_setup.service import run_collector

SECONDS_TO_WRITE = 120
"""Time limit. slurmctld may be restarting after another step changed its configuration."""


def run_collector_of_slurm(node: Node) -> None:
    """Collect Slurm's metrics for node_exporter, on the primary controller.

    Raises:
        SetupError: if Slurm answers none of the collector's queries.
    """
    if not node.facts.is_primary_controller:
        return
    text = run_collector(
        node,
        "slurm_metrics",
        timeout_seconds=SECONDS_TO_WRITE,
        is_good=lambda text: bool(re.search(r"^slurm_collector_success\{.*\} 1$", text, re.MULTILINE)),
    )
    failed = re.findall(r'^slurm_collector_success\{source="(\w+)"\} 0$', text, re.MULTILINE)
    if failed:
        node.warn(f"no metrics of Slurm's {', '.join(failed)}: see `journalctl --unit slurm-metrics.service`")
