"""Metrics of machines and of Slurm, which the collector on the controller gathers."""

import re

from node_setup.downloads import find_download, install_binaries
from node_setup.endpoint import require_free_port, wait_for_metric
from node_setup.node import Node
from node_setup.service import TEXT_FILES, have_system_user, is_running, run_collector, run_unit

NODE_UNIT = "node-exporter.service"
NODE_PORT = 9100
USER = "node_exporter"
"""System user that node_exporter runs as; the unit names it too."""
SECONDS_TO_ANSWER = 60
SECONDS_FOR_EFA = 60
SECONDS_FOR_SLURM = 120
"""Time limit. slurmctld may be restarting after another step changed its configuration."""


def run_node_exporter(node: Node) -> None:
    """Install Prometheus' node_exporter, and check that it answers on the cluster's network.

    It measures CPU, memory, disks and network, and publishes the text files of other steps.
    """
    node.host.path(TEXT_FILES).mkdir(parents=True, exist_ok=True)
    have_system_user(node, USER)
    if not is_running(node, NODE_UNIT):
        require_free_port(node, NODE_PORT, "metrics of the node")
    changed = install_binaries(node, "node_exporter", ("node_exporter",))
    listen = f"{node.facts.address}:{NODE_PORT}"
    run_unit(node, NODE_UNIT, changed=changed, listen=listen)
    version = find_download(node, "node_exporter").version
    wait_for_metric(
        node,
        f"http://{listen}/metrics",
        rf'node_exporter_build_info{{.*version="{version}"',
        unit=NODE_UNIT,
        timeout_seconds=SECONDS_TO_ANSWER,
    )


def run_collector_of_efa(node: Node) -> None:
    """Collect the adapters' counters for node_exporter, on instance types with adapters."""
    expected = node.facts.hardware.num_efa_interfaces
    if expected == 0:
        return
    text = run_collector(node, "efa_metrics", timeout_seconds=SECONDS_FOR_EFA)
    found = len(re.findall(r"^node_amazonefa_info\{", text, re.MULTILINE))
    if found != expected:
        node.warn(
            f"{found} EFA adapters of {expected} are in /sys/class/infiniband; NCCL falls back to TCP "
            "without them: see `fi_info --provider efa` and `lsmod | grep efa`"
        )


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
        timeout_seconds=SECONDS_FOR_SLURM,
        is_good=lambda text: bool(
            re.search(r"^slurm_collector_success\{.*\} 1$", text, re.MULTILINE)
        ),
    )
    failed = re.findall(r'^slurm_collector_success\{source="(\w+)"\} 0$', text, re.MULTILINE)
    if failed:
        node.warn(
            f"no metrics of Slurm's {', '.join(failed)}: see `journalctl --unit slurm-metrics.service`"
        )
