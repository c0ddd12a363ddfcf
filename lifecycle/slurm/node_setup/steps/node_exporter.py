"""Metrics of the operating system (CPU, memory, disks, network), and the text files of other steps."""

from node_setup.downloads import find_download, install_binaries
from node_setup.endpoint import require_free_port, wait_for_metric
from node_setup.node import Node
from node_setup.service import TEXT_FILES, have_system_user, is_running, run_unit

UNIT = "node-exporter.service"
PORT = 9100
SECONDS_TO_ANSWER = 60


def run_exporter(node: Node) -> None:
    """Install Prometheus' node_exporter, and check that it answers on the cluster's network."""
    node.host.path(TEXT_FILES).mkdir(parents=True, exist_ok=True)
    have_system_user(node, "node_exporter")
    if not is_running(node, UNIT):
        require_free_port(node, PORT, "metrics of the node")
    changed = install_binaries(node, "node_exporter", ("node_exporter",))
    listen = f"{node.facts.address}:{PORT}"
    run_unit(node, UNIT, changed=changed, listen=listen)
    version = find_download(node, "node_exporter").version
    url, metric = f"http://{listen}/metrics", rf'node_exporter_build_info{{.*version="{version}"'
    wait_for_metric(node, url, metric, unit=UNIT, timeout_seconds=SECONDS_TO_ANSWER)
