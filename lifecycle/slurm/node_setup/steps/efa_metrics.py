"""Metrics of the EFA network adapters."""

import re

from node_setup.node import Node
from node_setup.service import run_collector

SECONDS_TO_WRITE = 60


def run_collector_of_efa(node: Node) -> None:
    """Collect the adapters' counters for node_exporter, on instance types with adapters."""
    expected = node.facts.hardware.num_efa_interfaces
    if expected == 0:
        return
    text = run_collector(node, "efa_metrics", timeout_seconds=SECONDS_TO_WRITE)
    found = len(re.findall(r"^node_amazonefa_info\{", text, re.MULTILINE))
    if found != expected:
        node.warn(
            f"{found} EFA adapters of {expected} are in /sys/class/infiniband; NCCL falls back to TCP "
            "without them: see `fi_info --provider efa` and `lsmod | grep efa`"
        )
