"""GPU hours and USD by team, user and job.

``python -m tools.usage --cluster FILE --since DATE --until DATE [--json] [--csv FILE] [--page FILE]``
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from config.cluster import Cluster
from config.eks_cluster import EksCluster
from config.facts.price_list import Price, load_prices
from config.reading.loader import load_cluster, load_eks_cluster, load_slurm_cluster
from config.slurm_cluster import SlurmCluster
from seqlm.training.whole_file import write_whole
from tools.aws_session import aws_client, open_session
from tools.command_line import cluster_parser, run_command
from tools.json_output import add_json_option, publish
from tools.kubernetes.kubectl import add_kubeconfig_option, open_kubectl
from tools.nodes.cluster_nodes import read_cluster_nodes
from tools.nodes.head_node import find_head_node
from tools.usage.aws_report import read_report
from tools.usage.node_kinds import ClusterNodeKinds, cluster_node_kinds
from tools.usage.output import as_csv, as_json, as_page, as_text, idle_share
from tools.usage.period import Period, parse_period, second_text
from tools.usage.pods import read_groups, read_pods
from tools.usage.records import Accounting
from tools.usage.report_output import report_csv, report_json, report_notes, report_text
from tools.usage.slurm_accounting import read_accounting
from tools.usage.team_bill import UNKNOWN, TeamBill, make_team_bill

LOADERS = {None: load_cluster, "slurm": load_slurm_cluster, "eks": load_eks_cluster}
RECORDS = "scheduler"
REPORT = "report"
"""Sources of the hours: the scheduler's records, or AWS's usage report."""
NUM_NAMED = 10
"""Most jobs that a note names."""
ONLY_PRESENT_PODS = (
    "Kubernetes has only the pods that still exist: jobs that were deleted, and pods that were evicted or "
    "replaced, are missing, and users are not recorded. AWS's usage report keeps hours: see "
    "`--source report` (docs/usage.md)."
)


@dataclass(frozen=True)
class Found:
    """Records of a cluster, and its nodes."""

    accounting: Accounting
    kinds: ClusterNodeKinds
    notes: Sequence[str]
    """Limits of the records."""


def main() -> int:
    options = _options()
    period = parse_period(options.since, options.until, datetime.now(UTC))
    cluster = LOADERS[options.target](options.cluster)
    if options.source == REPORT:
        return _print_report(cluster, options, period)
    _refuse_report_options(options)
    if isinstance(cluster, EksCluster):
        found = _read_pods(cluster, options)
    else:
        found = _read_slurm(cluster, options, period)
    bill = make_team_bill(found.accounting, found.kinds, period)
    notes = [idle_share(bill), *found.notes, *_notes(cluster, found, bill)]
    title = f"{cluster.name} ({cluster.scheduler}) in {cluster.region}"
    subtitle = f"{second_text(bill.period.since)} to {second_text(bill.period.until)} UTC"
    if options.csv:
        _write("--csv", options.csv, as_csv(bill))
    if options.page:
        _write("--page", options.page, as_page(title, subtitle, bill, notes))
    publish(cluster=cluster.name, region=cluster.region, notes=notes, **as_json(bill))
    print(as_text(f"{title}, {subtitle}", bill, notes))
    return 0


def _print_report(cluster: Cluster, options: argparse.Namespace, period: Period) -> int:
    """Print AWS's own usage report, which it installs on EKS only."""
    if not isinstance(cluster, EksCluster):
        raise ValueError(
            f"--source: got {REPORT}; {cluster.name} runs Slurm, whose accounting is complete. Omit --source"
        )
    if options.page:
        raise ValueError(f"--page: got {options.page}; AWS's report has --csv and --json only")
    session = open_session(region=cluster.region, profile=options.profile)
    report = read_report(
        session, cluster, period, database=options.database, workgroup=options.workgroup
    )
    prices = load_prices(cluster.region)
    notes = list(report_notes(report, prices))
    if options.csv:
        _write("--csv", options.csv, report_csv(report, prices))
    publish(
        cluster=cluster.name,
        region=cluster.region,
        since=str(report.first_day),
        until=str(report.last_day + timedelta(days=1)),
        notes=notes,
        **report_json(report, prices),
    )
    title = f"{cluster.name} (eks) in {cluster.region}, {report.first_day} to {report.last_day} UTC"
    print(report_text(title, report, prices, notes))
    return 0


def _refuse_report_options(options: argparse.Namespace) -> None:
    for name in ("database", "workgroup"):
        if getattr(options, name):
            raise ValueError(f"--{name}: only AWS's usage report has one; add --source {REPORT}")


def _options() -> argparse.Namespace:
    parser = cluster_parser("Print GPU hours and USD by team, user and job, and the idle share.")
    parser.add_argument("--target", choices=[name for name in LOADERS if name])
    parser.add_argument(
        "--since", default="", metavar="DATE", help="begin (default: first day of the month)"
    )
    parser.add_argument(
        "--until", default="", metavar="DATE", help="end, which is excluded (default: now)"
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write a row for each job")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write an HTML page")
    parser.add_argument(
        "--source",
        choices=[RECORDS, REPORT],
        default=RECORDS,
        help="records of the scheduler, or on EKS AWS's usage report in Athena, which bills (%(default)s)",
    )
    parser.add_argument(
        "--database", help="Glue database of AWS's usage report (default: the one with its tables)"
    )
    parser.add_argument(
        "--workgroup", help="Athena workgroup of AWS's usage report (default: that of its stack)"
    )
    add_kubeconfig_option(parser)
    add_json_option(parser)
    return parser.parse_args()


def _write(option: str, path: Path, text: str) -> None:
    """Write a file.

    Raises:
        ValueError: if it cannot be written.
    """
    try:
        write_whole(path, text)
    except OSError as error:
        raise ValueError(f"{option}: got {path}; it cannot be written: {error}") from None


def _read_slurm(cluster: SlurmCluster, options: argparse.Namespace, period: Period) -> Found:
    """Read Slurm's accounting. HyperPod lists the nodes that exist, if there are several kinds.

    Nodes themselves have no permission for this list.
    """
    head = find_head_node(cluster, options.profile)
    prices = load_prices(cluster.region)
    kinds = cluster_node_kinds(cluster, prices, {})
    if kinds.are_mixed and not head.is_here:
        session = open_session(region=cluster.region, profile=options.profile)
        present = read_cluster_nodes(aws_client(session, "sagemaker"), cluster.name)
        groups = {node.host_name: node.group for node in present.nodes if node.host_name}
        kinds = cluster_node_kinds(cluster, prices, groups)
    return Found(read_accounting(head, period), kinds, [])


def _read_pods(cluster: EksCluster, options: argparse.Namespace) -> Found:
    """Read the pods that still exist, whatever their time."""
    with open_kubectl(
        cluster, "default", profile=options.profile, kubeconfig=options.kubeconfig
    ) as kubectl:
        groups = read_groups(kubectl)
        accounting = read_pods(kubectl)
    kinds = cluster_node_kinds(cluster, load_prices(cluster.region), groups)
    return Found(accounting, kinds, [ONLY_PRESENT_PODS])


def _notes(cluster: SlurmCluster | EksCluster, found: Found, bill: TeamBill) -> Iterator[str]:
    """Yield what the reader has to know about the figures."""
    kinds = found.kinds
    yield (
        f"Capacity: the {sum(kinds.num_nodes.values())} nodes for jobs of the cluster file, during the whole "
        "period. Controllers, login nodes, storage and network are not included (`make cost`)."
    )
    if bill.used.node_hours > bill.capacity.node_hours:
        yield "Jobs used more than this capacity: the cluster had more nodes than its file has now."
    yield from _price_notes(cluster, kinds)
    if bill.estimated:
        yield (
            f"GPU hours on {', '.join(bill.estimated)} follow from processors, because Slurm does not record "
            "these devices: add gres/gpu or gres/neuron to AccountingStorageTRES in slurm.conf."
        )
    if any(use.job.instance_type == UNKNOWN for use in bill.uses):
        yield (
            "Without a price: nodes whose instance type is not known, because they no longer exist and the "
            "cluster has several types. On a Slurm cluster itself, no node of a mixed partition has one."
        )
    if bill.without_end:
        more = len(bill.without_end) - NUM_NAMED
        named = ", ".join(bill.without_end[:NUM_NAMED]) + (f" and {more} more" if more > 0 else "")
        yield (
            f"Left out, because no end is recorded and the scheduler no longer has them: {named}. On Slurm, "
            "`sacctmgr show runawayjobs` repairs them."
        )
    if found.accounting.hidden_from:
        yield (
            f"slurmdbd hides jobs of other users (PrivateData), unless {found.accounting.hidden_from} is an "
            "operator of Slurm. Run it as root, or from outside the cluster."
        )


def _price_notes(cluster: Cluster, kinds: ClusterNodeKinds) -> Iterator[str]:
    """Yield the prices, and notes on those that are missing or not those of the account."""
    prices = {kind.instance_type: kind.price for kind in kinds.of_groups.values()}
    known = [
        f"{name} {price.usd:.2f}{_origin(price, cluster.region)}"
        for name, price in prices.items()
        if price
    ]
    if known:
        yield f"USD per hour, on demand: {', '.join(known)}."
    lacking = [name for name, price in prices.items() if price is None]
    if lacking:
        yield (
            f"Without a price: {', '.join(lacking)}. `make prices REGION={cluster.region}` fetches prices."
        )
    plans = [group.name for group in cluster.instance_groups if group.training_plan_arn]
    if plans:
        yield f"Training plans are paid at purchase, at their own price: {', '.join(plans)}."
    spot = [group.name for group in cluster.instance_groups if group.capacity == "spot"]
    if spot:
        yield f"Spot costs less than the on-demand price, and varies: {', '.join(spot)}."


def _origin(price: Price, region: str) -> str:
    """Return the origin of a price that is another product's or another region's."""
    elsewhere = f"as in {price.region}" if price.region != region else ""
    origin = " ".join(filter(None, (price.stand_in, elsewhere)))
    return f" ({origin})" if origin else ""


if __name__ == "__main__":
    run_command(main)
