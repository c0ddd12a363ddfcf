"""EFA network adapters: counters of the driver, under the names that AWS's exporter gives them."""

from monitoring.dashboards.model import RATE, Model, Panel, Variable, dashboard, share_panel


def efa() -> Model:
    return dashboard(
        uid="hyperpod-efa",
        title="EFA network",
        about="Traffic of NCCL, and of Lustre where it goes over EFA; what had to be sent again.",
        variables=[Variable("node", "Node", "node_amazonefa_info", "instance")],
        rows={
            "Traffic": (
                _rate("Sent", "tx_bytes", "Bps"),
                _rate("Received", "rx_bytes", "Bps"),
                _rate("Written to others' memory (RDMA)", "rdma_write_bytes", "Bps"),
                _rate("Read from others' memory (RDMA)", "rdma_read_bytes", "Bps"),
                _rate("Packets sent", "tx_pkts", "pps"),
                share_panel(
                    "Spread over the adapters of a node",
                    f"min by (instance) ({_chosen('tx_bytes')}) / "
                    f"(max by (instance) ({_chosen('tx_bytes')}) > 0)",
                    "{{instance}}",
                    about="The least used over the most used: NCCL uses all alike, so near 1 under load.",
                ),
            ),
            "Loss": (
                _rate("Sent again", "retrans_pkts", "pps", "Steady values mean congestion."),
                _rate("Dropped on arrival", "rx_drops", "pps", "A receiver that does not keep up."),
                _rate(
                    "Others that did not answer",
                    "unresponsive_remote_events",
                    "cps",
                    "A node that is lost, or a process that died there.",
                ),
                _rate("Time-outs", "retrans_timeout_events", "cps"),
                _rate("Impaired connections", "impaired_remote_conn_events", "cps"),
                _rate("Failed RDMA reads", "rdma_read_wr_err", "cps"),
            ),
        },
    )


def _chosen(counter: str) -> str:
    return f'rate(node_amazonefa_{counter}{{instance=~"$node"}}[{RATE}])'


def _rate(title: str, counter: str, unit: str, about: str = "") -> Panel:
    return Panel(title, f"sum by (instance) ({_chosen(counter)})", "{{instance}}", unit=unit, about=about)
