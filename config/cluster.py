"""Typed cluster file, with one YAML file per deployment: the sections that all schedulers share.

``slurm_cluster`` and ``eks_cluster`` add the fields of each scheduler. The classes constrain single values
(types, lengths, ranges), which editors read from the JSON schema. ``rules`` checks combinations of values.
Sizes are in GiB and throughput in MB/s, the units in which the services bill.
"""

from collections.abc import Sequence
from ipaddress import IPv4Network
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from config import text_forms as forms
from config.facts.instance_catalogue import InstanceType, any_of, common_hardware
from config.observability import Grafana, Mlflow, Observability
from config.proxy import Proxy
from config.section import Section
from config.storage import Storage
from config.studio import Studio

ClusterName = Annotated[str, forms.field(forms.CLUSTER_NAME, max_length=24)]
"""Up to 24 characters, so that ``sagemaker-<name>-<account>-<region>`` fits a bucket name (63 at most)."""
GroupName = Annotated[str, forms.field(forms.GROUP_NAME, max_length=63)]
AvailabilityZoneId = Annotated[str, forms.field(forms.ZONE_ID)]
Cidr = Annotated[str, forms.field(forms.CIDR)]
RoleName = Annotated[str, forms.field(forms.ROLE, max_length=2048)]
"""Existing IAM role of the account."""
LogDays = Literal[
    1,
    3,
    5,
    7,
    14,
    30,
    60,
    90,
    120,
    150,
    180,
    365,
    400,
    545,
    731,
    1096,
    1827,
    2192,
    2557,
    2922,
    3288,
    3653,
]
"""Retention periods that CloudWatch Logs accepts (PutRetentionPolicy)."""


class NewVpc(Section):
    vpc: Literal["new"] = "new"
    """A new VPC for this cluster only."""
    cidr: Cidr = "10.0.0.0/16"
    """Address range; /16 is the largest range of a VPC."""
    availability_zone_ids: Annotated[list[AvailabilityZoneId], Field(min_length=1, max_length=3)]
    """Zone ids (usw2-az2), because zone names differ between accounts. FSx, and all nodes of groups that name
    no other zone, are in the first zone. Slurm's database and the EKS control plane need a second one."""
    private_prefix_length: Annotated[int, Field(ge=17, le=26)] = 18
    """Prefix length of each zone's private subnet for nodes and file systems; 18 has 16,379 addresses.
    In a /16, 17 gives the first zone 32,763 addresses, enough for 1,000 P5 nodes, and the others 8,187."""
    internet: Literal["nat", "none"] = "nat"
    """Route of nodes to the internet. ``none`` is a closed network with interface endpoints only."""
    interface_endpoints: bool = False
    """Create endpoints for the AWS services that nodes call; required without NAT, optional with it."""
    endpoint_zones: dict[str, AvailabilityZoneId] = Field(default={})
    """Zones of endpoints for services that the first zone lacks, by service, as ``{fsx: usw2-az1}``. `make
    preflight` prints the entries that are needed."""
    flow_logs_days: LogDays = 30
    """Days for which the log of accepted and rejected connections is kept."""


class ExistingSubnet(Section):
    """One private subnet of an existing VPC."""

    subnet_id: Annotated[str, forms.field(forms.SUBNET_ID)]
    """Subnet id; the subnet must not give its nodes public addresses."""
    availability_zone_id: AvailabilityZoneId
    """The subnet's zone, by id; one subnet per zone."""
    route_table_id: Annotated[str, forms.field(forms.ROUTE_TABLE_ID)]
    """Route table of the subnet, which receives the endpoint for S3."""
    cidr: Cidr
    """The subnet's address range."""


class ExistingVpc(Section):
    vpc: Literal["existing"]
    """An existing VPC; `make preflight` verifies the values below."""
    vpc_id: Annotated[str, forms.field(forms.VPC_ID)]
    """VPC id; DNS names and DNS resolution must be on in the VPC. VPC and subnets may belong to another
    account that shares them."""
    cidr: Cidr
    """An address range of the VPC."""
    other_cidrs: Annotated[list[Cidr], Field(max_length=49)] = Field(default=[])
    """Further ranges of the VPC, which has up to 50. Machines in these ranges and in the subnets below reach
    the interface endpoints and the homes."""
    private_subnets: Annotated[list[ExistingSubnet], Field(min_length=1, max_length=16)]
    """Subnets without public addresses, in any range of the VPC. FSx, and nodes of groups that name no other
    zone, are in the first. The EKS control plane has its interfaces in the first two."""
    security_group_ids: Annotated[
        list[Annotated[str, forms.field(forms.SECURITY_GROUP_ID)]], Field(max_length=5)
    ] = Field(default=[])
    """Existing security groups of all nodes and file systems, which the stacks never change. They must admit
    all traffic between their members, which `make preflight` checks. An empty list creates a group."""
    proxy: Proxy | None = None
    """HTTP proxy to the internet; null uses the subnets' routes."""
    s3_gateway_endpoint: bool = False
    """Add a gateway endpoint for S3 to the subnets' route tables; false if the VPC has one. AWS lets only the
    owner of a shared VPC add endpoints."""
    interface_endpoints: bool = False
    """Add endpoints for the AWS services that nodes call; false if the VPC has them or reaches them, and in a
    shared VPC."""
    endpoint_zones: dict[str, AvailabilityZoneId] = Field(default={})
    """Zones of endpoints for services that the first zone lacks, by service, as ``{fsx: usw2-az1}``. `make
    preflight` prints the entries that are needed."""


BoughtAs = Literal["plan", "on_demand", "spot"]
"""Way in which the capacity of a group is bought."""
Network = Annotated[NewVpc | ExistingVpc, Field(discriminator="vpc")]


class BatchSize(NamedTuple):
    """Size of a batch in the form of HyperPod's API."""

    unit: Literal["INSTANCE_COUNT", "CAPACITY_PERCENTAGE"]
    value: int


class RollingUpdate(Section):
    """Batches in which the service installs a new image on a group's nodes.

    The service does not wait for jobs on the nodes of a batch.
    """

    max_nodes: Annotated[int, Field(ge=1, le=6758)] | None = None
    """Most nodes of a batch. Set either this or ``max_percent``."""
    max_percent: Annotated[int, Field(ge=1, le=100)] | None = None
    """Most nodes of a batch, in percent of the group."""
    wait_seconds: Annotated[int, Field(ge=0, le=3600)] = 0
    """Time between two batches."""
    rollback_alarms: Annotated[
        list[Annotated[str, forms.field(forms.ALARM_NAME, max_length=255)]], Field(max_length=10)
    ] = Field(default=[])
    """CloudWatch alarms of this account and region. If one is raised, the service returns the nodes to the
    earlier image, in batches of the same size."""

    @property
    def batch_size(self) -> BatchSize:
        if self.max_nodes is not None:
            return BatchSize("INSTANCE_COUNT", self.max_nodes)
        assert self.max_percent is not None, "the rules require one of the two"
        return BatchSize("CAPACITY_PERCENTAGE", self.max_percent)


class InstanceGroup(Section):
    """Nodes of one type, or of several interchangeable ones."""

    name: GroupName
    """Name of the group; fixed at creation."""
    instance_type: str | None = None
    """Type that HyperPod offers, with its ml. prefix; config/facts/instance_types.csv lists them."""
    instance_types: Annotated[list[str], Field(max_length=20)] = Field(default=[])
    """Several types in place of ``instance_type``, the preferred one first. HyperPod starts a node of the
    next type if it has no capacity of the one before. Their accelerators, EFA interfaces and architecture
    agree."""
    num_instances: Annotated[int, Field(ge=0, le=6758)]
    """Number of nodes; 0 keeps the group for later."""
    min_instances: Annotated[int, Field(ge=1, le=6758)] | None = None
    """Nodes that must run before the group is in service. If they are missing after 3 hours, the group
    returns to its earlier state, which is no nodes for a new group. Null uses the available nodes and waits
    for the rest. Requires continuous provisioning."""
    availability_zone_id: AvailabilityZoneId | None = None
    """Zone of the group. Null is the first zone, which has FSx. In another zone, all files cross zones, which
    is slower and bills about 0.02 USD per GB. Groups with EFA that share jobs are in one zone."""
    ebs_gib: Annotated[int, Field(ge=1, le=16384)] | None = 500
    """Size in GiB of the volume at /opt/sagemaker for containers and caches; null adds no volume. The service
    fixes the root volume at 100 GiB."""
    threads_per_core: Literal[1, 2] | None = None
    """1 turns hyper-threading off; null keeps the instance type's default."""
    efa_only: bool = False
    """EFA interfaces have no IP address, which saves 31 addresses per P5 node."""
    deep_health_checks: list[Literal["InstanceStress", "InstanceConnectivity"]] = Field(default=[])
    """Checks that run on accelerated nodes before they accept jobs; they take up to two hours."""
    training_plan_arn: Annotated[str, forms.field(forms.TRAINING_PLAN_ARN)] | None = None
    """Training plan, which reserves the group's capacity and bills it (`make plans-list`)."""
    capacity: Literal["on_demand", "spot"] = "on_demand"
    """Spot nodes are cheaper and may be interrupted at any time; they require continuous provisioning."""
    execution_role: RoleName | None = None
    """Existing IAM role of the group's nodes, which the stacks never change. Null creates one."""
    image_id: Annotated[str, forms.field(forms.IMAGE_ID)] | None = None
    """Machine image; null is HyperPod's current image."""
    auto_patch: Literal["none", "when_idle", "when_all_idle"] = "none"
    """Time at which the service may replace a node's image with one that has security patches."""
    scheduled_update: Annotated[str, forms.field(forms.CRON, max_length=256)] | None = None
    """Times at which the service installs HyperPod's newest image, also on nodes with jobs. Null sets no
    schedule."""
    rolling_update: RollingUpdate | None = None
    """Batches of ``scheduled_update``, ``auto_patch: when_idle`` and `make patch`. Null leaves them to the
    service, and requires ``ARGS=--all-at-once`` for `make patch`."""

    @property
    def types(self) -> list[str]:
        """Types of the group's nodes, the preferred one first."""
        return self.instance_types or ([self.instance_type] if self.instance_type else [])

    @property
    def types_text(self) -> str:
        """Types of the group's nodes, for messages."""
        return any_of(self.types)

    @property
    def hardware(self) -> InstanceType:
        """Hardware that each node of the group has; of several types the smallest values.

        Raises:
            ValueError: if HyperPod does not offer one of the types, which ``load_cluster`` refuses.
        """
        return common_hardware(self.types)

    @property
    def runs_jobs(self) -> bool:
        """Return whether jobs are placed on the group's nodes."""
        return True

    @property
    def bought_as(self) -> BoughtAs:
        return "plan" if self.training_plan_arn else self.capacity


class Iam(Section):
    """Rules of the account for every IAM role that the stacks create."""

    permissions_boundary: Annotated[str, forms.field(forms.POLICY_ARN, max_length=2048)] | None = (
        None
    )
    """ARN of the policy that limits each role; null sets no boundary."""
    role_path: Annotated[str, forms.field(forms.IAM_PATH, max_length=512)] = "/"
    """Path of each role. A change replaces the roles."""
    role_name_prefix: Annotated[str, forms.field(forms.ROLE_NAME_PREFIX, max_length=24)] | None = (
        None
    )
    """Beginning of each role's name, for accounts that allow only some names. Null leaves the names to
    CloudFormation. A change replaces the roles."""
    node_policy: Literal["narrow", "managed"] = "narrow"
    """``managed`` also attaches AWS's AmazonSageMakerClusterInstanceRolePolicy to the nodes' roles, so that
    permissions that AWS adds to it later apply. It reads every bucket named sagemaker-*."""


class Budget(Section):
    """Email alarm if the cost or the forecast of this cluster's tag exceeds a limit."""

    monthly_usd: Annotated[int, Field(ge=1)]
    """Limit in whole dollars per calendar month."""
    email: Annotated[str, forms.field(forms.EMAIL)]
    """Address that receives the alarm."""


class Cluster(Section):
    """One HyperPod cluster and all it depends on, with any scheduler.

    A cluster file is a ``SlurmCluster`` or an ``EksCluster``.
    """

    scheduler: Literal["slurm", "eks"]
    """Scheduler, which places jobs."""
    name: ClusterName
    """Name of the cluster, which is part of every stack, bucket and repository name; fixed at creation."""
    region: str
    """AWS region of all stacks, as us-west-2; config/facts/regions.py lists the regions with HyperPod."""
    tags: dict[str, str] = Field(default={})
    """Tags on every resource, in addition to the project's own: up to 40, with values of 1 to 255 characters.
    Keys that differ only in case are the same."""
    network: Network
    """A new VPC or an existing one."""
    storage: Storage = Storage()
    """File systems, data bucket and their key."""
    iam: Iam = Iam()
    """Permissions boundary, path and name prefix of the stacks' roles."""
    instance_groups: Sequence[InstanceGroup]
    """Groups of nodes, by type and purpose."""
    node_recovery: Literal["automatic", "none"] = "automatic"
    """``automatic`` replaces or reboots nodes with hardware faults."""
    continuous_provisioning: bool = True
    """The cluster uses the available nodes and waits for the rest; fixed at creation."""
    wait: Literal["none", "workers"] = "none"
    """``workers`` makes `make deploy` wait until all nodes of the file run, and fail if they do not. By
    default, the deployment ends earlier, and HyperPod keeps trying to start missing nodes."""
    wait_minutes: Annotated[int, Field(ge=5, le=1440)] = 60
    """Longest time for which `make deploy` waits."""
    prometheus: bool = True
    """Amazon Managed Prometheus workspace in the storage stack, and software on the nodes that writes to it.
    It bills by samples."""
    mlflow: Mlflow | None = None
    """SageMaker's managed MLflow in the storage stack, for runs on the cluster. Runs elsewhere, and all runs
    with null, log to the folder ``mlruns``."""
    budget: Budget | None = None
    """Cost alarm; null sets none."""
    studio: Studio | None = None
    """SageMaker Studio with the Lustre file system, in its own stack. Null creates none."""
    observability: Observability | None = None
    """Alerts, alarms and dashboards for the metrics in Prometheus. Null creates none."""

    @property
    def grafana(self) -> Grafana | None:
        return self.observability.grafana if self.observability else None


def existing_security_groups(cluster: Cluster) -> list[str]:
    """Return the ids of the existing security groups of all nodes; empty if the stacks create one."""
    network = cluster.network
    return network.security_group_ids if isinstance(network, ExistingVpc) else []


ZONES_WITHOUT_CONTROL_PLANE = frozenset({"use1-az3", "usw1-az2", "cac1-az3"})
"""Zones in which EKS places no network interface of a control plane (EKS user guide, "View Amazon EKS
networking requirements for VPC and subnets")."""


def address_ranges(network: NewVpc | ExistingVpc) -> list[str]:
    """Return the VPC's ranges that the file names, and the ranges of subnets outside them."""
    if isinstance(network, NewVpc):
        return [network.cidr]
    ranges = [network.cidr, *network.other_cidrs]
    for subnet in network.private_subnets:
        inside = IPv4Network(subnet.cidr)
        if not any(inside.subnet_of(IPv4Network(cidr)) for cidr in ranges):
            ranges.append(subnet.cidr)
    return ranges


def zone_ids(cluster: Cluster) -> list[str]:
    """Return the network's zones in the file's order. FSx and groups without a zone are in the first."""
    network = cluster.network
    if isinstance(network, NewVpc):
        return network.availability_zone_ids
    return [subnet.availability_zone_id for subnet in network.private_subnets]


def zone_of(cluster: Cluster, group: InstanceGroup) -> str:
    return group.availability_zone_id or zone_ids(cluster)[0]


def control_plane_zones(cluster: Cluster) -> list[str]:
    """Return the two zones that the EKS control plane requires: the network's first two that EKS allows.

    A new VPC has small subnets in these zones for the control plane only. In the nodes' subnets, pods could
    take the last addresses, and EKS could not update the control plane (EKS best practices guide, "VPC and
    Subnet Considerations"). In an existing VPC it uses the private subnets, and its addresses are counted.
    """
    possible = [
        zone for zone in dict.fromkeys(zone_ids(cluster)) if zone not in ZONES_WITHOUT_CONTROL_PLANE
    ]
    return possible[:2]
