"""Billed items of a cluster file, stack by stack, and of an endpoint file.

Not included, because they cost cents or are unpredictable: requests to S3, KMS and CloudWatch, backups, data
that leaves the region, and Lambda functions. The 100 GiB root volumes of nodes are missing because AWS
publishes no price.
"""

from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from pathlib import Path

from config.cluster import Cluster, NewVpc
from config.cluster_kinds import AnyCluster
from config.eks_cluster import EksCluster
from config.endpoint import Endpoint
from config.facts.endpoint_services import endpoint_services
from config.facts.price_list import HOURS_PER_MONTH, node_keys
from config.kubernetes import KUBERNETES_VERSIONS
from config.reading.endpoint_file import load_endpoint
from config.reading.yaml_document import read_document
from config.slurm_cluster import AccountingDatabase, SlurmCluster
from config.storage import LustreFileSystem
from tools.cost.bill import Item, Usage
from tools.cost.plan_prices import NO_PLANS, PaidPlan

SECONDS_PER_HOUR = 3600
INCLUDED_METADATA_IOPS = {1200: 1500, 2400: 3000, 9600: 6000, 45600: 12000}
"""Metadata IOPS up to a capacity in GiB."""
MONTH = timedelta(days=30)
"""Time that a bill looks ahead: extended support that begins in it is billed as if for the whole month."""


def cluster_items(
    cluster: AnyCluster, usage: Usage, plans: Mapping[str, PaidPlan] = NO_PLANS
) -> list[Item]:
    """Return all monthly items of the cluster's stacks, in the order of the guidance's tables.

    Args:
        cluster: cluster file.
        usage: usage per month.
        plans: training plans with known prices, by ARN. Groups of other plans are billed on demand.
    """
    return [
        *_nodes(cluster, usage, plans),
        *_storage(cluster, usage),
        *_network(cluster, usage),
        *_observability(cluster, usage),
        *_studio(cluster, usage),
    ]


def _nodes(cluster: AnyCluster, usage: Usage, plans: Mapping[str, PaidPlan]) -> Iterator[Item]:
    present = usage.hours / HOURS_PER_MONTH
    for paid in plans.values():
        hours = min(paid.plan.hours, HOURS_PER_MONTH)
        yield Item("Compute", f"{paid.plan.name}: {paid.text}", paid.key, hours, "kept")
    for group in cluster.instance_groups:
        if group.num_instances and group.training_plan_arn not in plans:
            what = f"{group.num_instances} * {group.types_text}"
            key, *other_keys = node_keys(group.types)
            hours = group.num_instances * usage.hours
            yield Item("Compute", what, key, hours, "nodes", tuple(other_keys))
    # The bill of an existing EKS cluster is its owner's.
    if isinstance(cluster, EksCluster) and not cluster.kubernetes.existing:
        yield from _control_plane(cluster, usage)
    with_volumes = [
        group for group in cluster.instance_groups if group.num_instances and group.ebs_gib
    ]
    if with_volumes:
        volumes = " + ".join(
            f"{group.num_instances} * {group.ebs_gib} GB" for group in with_volumes
        )
        gib = sum(group.num_instances * (group.ebs_gib or 0) for group in with_volumes)
        yield Item("Storage", f"EBS ({volumes})", "hyperpod.volume", gib * present, "nodes")


def _control_plane(cluster: EksCluster, usage: Usage) -> Iterator[Item]:
    version = cluster.kubernetes.version
    known = KUBERNETES_VERSIONS.get(version)
    yield Item("Control Plane", "EKS Control Plane", "eks.control_plane", usage.hours, "nodes")
    if known and known.end_of_standard_support <= date.today() + MONTH:
        what = f"extended support of Kubernetes {version}, from {known.end_of_standard_support}"
        yield Item("Control Plane", what, "eks.extended_support", usage.hours, "nodes")


def _storage(cluster: Cluster, usage: Usage) -> Iterator[Item]:
    lustre = cluster.storage.lustre
    home = cluster.storage.home
    if lustre:
        yield from _lustre(lustre)
    if home:
        size = home.capacity_gib
        speed = home.throughput_mbps
        yield Item("Storage", f"FSx for OpenZFS ({size} GiB)", "openzfs.ssd", size, "kept")
        yield Item(
            "Storage", f"FSx for OpenZFS ({speed} MB/s)", "openzfs.throughput", speed, "kept"
        )
    yield Item("Storage", f"S3 ({usage.data_gb:g} GB)", "s3.standard", usage.data_gb, "kept")
    yield Item(
        "Container Registry", f"ECR ({usage.image_gb:g} GB)", "ecr.storage", usage.image_gb, "kept"
    )
    if isinstance(cluster, SlurmCluster) and cluster.accounting_database:
        yield from _database(cluster.accounting_database)
    if cluster.storage.kms == "create":
        keys = 2 if isinstance(cluster.network, NewVpc) else 1
        yield Item(
            "Keys", f"KMS, {keys} keys" if keys > 1 else "KMS, a key", "kms.key", keys, "kept"
        )


def _database(database: AccountingDatabase) -> Iterator[Item]:
    name = database.instance_class
    copies = 2 if database.multi_az else 1
    hours = copies * HOURS_PER_MONTH
    gib = copies * database.storage_gib
    yield Item("Database", f"RDS for MariaDB, {copies} * {name}", f"rds.{name}", hours, "kept")
    yield Item("Database", f"RDS storage ({gib} GB)", "rds.storage", gib, "kept")


def _lustre(lustre: LustreFileSystem) -> Iterator[Item]:
    throughput = lustre.throughput_mbps_per_tib
    what = f"FSx for Lustre ({lustre.capacity_gib} GiB, {throughput} MB/s per TiB)"
    yield Item("Storage", what, f"lustre.{throughput}", lustre.capacity_gib, "kept")
    extra = max(0, (lustre.metadata_iops or 0) - included_metadata_iops(lustre.capacity_gib))
    if extra:
        what = f"FSx for Lustre, {extra} metadata IOPS beyond those of its capacity"
        yield Item("Storage", what, "lustre.metadata", extra, "kept")


def included_metadata_iops(capacity_gib: int) -> int:
    """Return the metadata IOPS that the price of the capacity includes.

    They are the defaults of the automatic mode (FSx for Lustre user guide, "Lustre metadata performance").
    """
    for up_to_gib, iops in INCLUDED_METADATA_IOPS.items():
        if capacity_gib <= up_to_gib:
            return iops
    return capacity_gib // 24000 * 12000


def _network(cluster: Cluster, usage: Usage) -> Iterator[Item]:
    network = cluster.network
    if isinstance(network, NewVpc) and network.internet == "nat":
        yield Item("Network", "NAT gateway", "nat.gateway", HOURS_PER_MONTH, "kept")
        yield Item("Network", "its public address", "address.public", HOURS_PER_MONTH, "kept")
        traffic = f"traffic through NAT ({usage.nat_gb:g} GB)"
        yield Item("Network", traffic, "nat.traffic", usage.nat_gb, "nodes")
    if network.interface_endpoints:
        number = len(endpoint_services(cluster))
        what = f"VPC endpoints ({number}, one zone)"
        yield Item("Network", what, "endpoint.interface", number * HOURS_PER_MONTH, "kept")
        traffic = f"traffic through VPC endpoints ({usage.endpoint_gb:g} GB)"
        yield Item("Network", traffic, "endpoint.traffic", usage.endpoint_gb, "nodes")


def _observability(cluster: Cluster, usage: Usage) -> Iterator[Item]:
    if cluster.prometheus:
        nodes = sum(group.num_instances for group in cluster.instance_groups)
        samples = (
            nodes * usage.series_per_node * usage.hours * SECONDS_PER_HOUR / usage.scrape_seconds
        )
        what = f"Prometheus ({nodes} nodes, {usage.series_per_node:g} series each)"
        yield Item("Observability", what, "prometheus.samples", samples / 1e6, "nodes")
    yield Item(
        "Observability",
        f"CloudWatch Logs ({usage.logs_gb:g} GB)",
        "logs.ingestion",
        usage.logs_gb,
        "nodes",
    )
    if cluster.grafana:
        editors = usage.grafana_editors
        what = f"Grafana ({editors:g} {'editor' if editors == 1 else 'editors'})"
        yield Item("Observability", what, "grafana.editor", editors, "kept")
    if cluster.mlflow and (size := cluster.mlflow.server_size):
        yield Item("MLflow", f"tracking server ({size})", f"mlflow.{size}", HOURS_PER_MONTH, "kept")


def _studio(cluster: AnyCluster, usage: Usage) -> Iterator[Item]:
    if studio := cluster.studio:
        number = max(1, len(studio.profiles))
        kind = studio.instance_type
        what = f"{number} * {kind}, {usage.studio_hours:g} h each"
        yield Item("Studio", what, f"studio.{kind}", number * usage.studio_hours, "kept")


def read_endpoint(path: Path) -> Endpoint:
    """Read an endpoint file; image and model may be missing, because they have no price.

    Raises:
        ValueError: listing all other mistakes in the file.
    """
    document = read_document(path)
    region = document.get("region", "us-east-1")
    stand_ins = {
        "image": f"000000000000.dkr.ecr.{region}.amazonaws.com/none@sha256:{'0' * 64}",
        "model": "s3://none/none/",
    }
    given = {name: value for name, value in stand_ins.items() if name not in document}
    return load_endpoint(path, given)


def endpoint_items(endpoint: Endpoint, usage: Usage) -> list[Item]:
    """Return the items of a month with the fewest instances that scaling allows."""
    fewest = endpoint.instances.min
    kind = endpoint.instance_type
    logs = f"CloudWatch Logs ({usage.logs_gb:g} GB)"
    items = [
        Item("Hosting", f"{fewest} * {kind}", f"hosting.{kind}", fewest * HOURS_PER_MONTH, "kept"),
        Item("Observability", logs, "logs.ingestion", usage.logs_gb, "kept"),
    ]
    if endpoint.kms == "create":
        items.append(Item("Keys", "KMS, a key", "kms.key", 1, "kept"))
    return items
