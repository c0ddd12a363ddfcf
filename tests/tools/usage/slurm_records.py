"""Records of Slurm's accounting as sacct prints them, and a cluster for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from config.facts.price_list import Price
from tools.usage.node_kinds import ClusterNodeKinds, NodeKind
from tools.usage.records import Accounting
from tools.usage.slurm_accounting import FIELDS, parse_accounting

MARK = "|0a1b|"
GPU_USD = 8.0
CPU_USD = 0.5


def second(text: str) -> int:
    """Return the second of a time in November 2026, such as ``02T23:30``."""
    return int(datetime.fromisoformat(f"2026-11-{text}").replace(tzinfo=UTC).timestamp())


def record(**fields: str) -> str:
    """Return a line of sacct: an hour on one whole node with 4 GPUs, with other values for ``fields``."""
    row: Mapping[str, str] = {
        "JobIDRaw": "7",
        "JobID": fields.get("JobIDRaw", "7"),
        "User": "ada",
        "Account": "esm2",
        "Partition": "gpu",
        "State": "COMPLETED",
        "Start": "2026-11-02T10:00:00",
        "End": "2026-11-02T11:00:00",
        "NNodes": "1",
        "AllocTRES": "billing=48,cpu=48,gres/gpu=4,mem=1G,node=1",
        "NodeList": "ip-10-0-0-20",
        "JobName": "train",
        **fields,
    }
    return MARK.join(row[name] for name in FIELDS)


def read(
    *lines: str,
    clock: str = "30T00:00",
    present: Sequence[str] = (),
    tracked: str = "cpu,mem,node,gres/gpu",
    reader: str = "root",
    private: str = "none",
) -> Accounting:
    """Return the accounting of lines of sacct, with the facts of ``slurm_accounting.sh`` around them."""
    facts = {"clock": str(second(clock)), "reader": reader, "tracked": tracked, "private": private}
    before = [f"{MARK}{name}{MARK}{value}" for name, value in facts.items()]
    after = [f"{MARK}queued{MARK}{number}" for number in present]
    return parse_accounting([*before, *lines, *after], MARK)


def price(usd: float) -> Price:
    return Price(usd, "hour", "2026-11", "test", "", "us-west-2")


GPU_NODE = NodeKind("ml.g5.12xlarge", 48, "gres/gpu", 4, price(GPU_USD))
CPU_NODE = NodeKind("ml.m5.xlarge", 4, "gres/gpu", 0, price(CPU_USD))
KINDS = ClusterNodeKinds(
    of_groups={"workers": GPU_NODE, "small": CPU_NODE},
    num_nodes={"workers": 3, "small": 1},
    groups_of_partitions={"gpu": ["workers"], "cpu": ["small"], "all": ["workers", "small"]},
    of_hosts={"ip-10-0-0-20": GPU_NODE, "ip-10-0-0-30": CPU_NODE},
)
"""Three nodes with GPUs, one without, and a partition with both."""
