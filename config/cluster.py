"""The typed form of a cluster file, one YAML file per deployment: what is the same for every scheduler.

``slurm_cluster`` and ``eks_cluster`` add what is each scheduler's own. Only facts about single values stand
here (types, lengths, ranges: editors learn them from the JSON schema); what holds between values is in
``rules``. Sizes are in GiB, throughput in MB/s, as the services bill them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from config import text_forms as forms
from config.observability import Grafana, Mlflow, Observability
from config.section import Section
from config.storage import Storage
from config.studio import Studio

ClusterName = Annotated[str, forms.field(forms.CLUSTER_NAME, max_length=24)]
"""24 characters, so that ``sagemaker-<name>-<account>-<region>`` is a bucket's name (63 at most)."""
GroupName = Annotated[str, forms.field(forms.GROUP_NAME, max_length=63)]
AvailabilityZoneId = Annotated[str, forms.field(forms.ZONE_ID)]
Cidr = Annotated[str, forms.field(forms.CIDR)]
LogDays = Literal[
    1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653
]
"""What CloudWatch Logs' PutRetentionPolicy takes."""


class NewVpc(Section):
    vpc: Literal["new"] = "new"
    """A VPC of the cluster's own."""
    cidr: Cidr = "10.0.0.0/16"
    """Address range; /16 is the largest a VPC may have."""
    availability_zone_ids: Annotated[list[AvailabilityZoneId], Field(min_length=1, max_length=3)]
    """Zone ids (usw2-az2), not names: names differ between accounts. FSx, and every node whose group names no
    other zone, go to the first; Slurm's database and the control plane of EKS need a second one."""
    private_prefix_length: Annotated[int, Field(ge=17, le=26)] = 18
    """Size of each zone's private subnet, where nodes and file systems live; 18 holds 16,379 addresses."""
    internet: Literal["nat", "none"] = "nat"
    """How nodes reach the internet. ``none`` is a closed network: interface endpoints only."""
    interface_endpoints: bool = False
    """Endpoints for the AWS services that nodes call; needed without NAT, optional with it."""
    flow_logs_days: LogDays = 30
    """How long the log of accepted and rejected connections is kept."""


class ExistingSubnet(Section):
    """One private subnet of a VPC that is there already."""

    subnet_id: Annotated[str, forms.field(forms.SUBNET_ID)]
    """A subnet that gives its nodes no public addresses."""
    availability_zone_id: AvailabilityZoneId
    """The subnet's zone, by id; one subnet per zone."""
    route_table_id: Annotated[str, forms.field(forms.ROUTE_TABLE_ID)]
    """The table that the subnet is associated with; the endpoint for S3 goes into it."""
    cidr: Cidr
    """The subnet's address range."""


class ExistingVpc(Section):
    vpc: Literal["existing"]
    """A VPC that is there already; `make preflight` verifies what is written here."""
    vpc_id: Annotated[str, forms.field(forms.VPC_ID)]
    """The VPC, with DNS names and DNS resolution switched on."""
    cidr: Cidr
    """The VPC's address range."""
    private_subnets: Annotated[list[ExistingSubnet], Field(min_length=1, max_length=16)]
    """Subnets without public addresses; FSx, and nodes whose group names no other zone, go to the first. The
    control plane of EKS has its interfaces in the first two."""
    s3_gateway_endpoint: bool = False
    """Add a gateway endpoint for S3 to the subnets' route tables; false if the VPC has one."""
    interface_endpoints: bool = False
    """Add endpoints for the AWS services that nodes call; false if the VPC has them or reaches them."""


Network = Annotated[NewVpc | ExistingVpc, Field(discriminator="vpc")]


class InstanceGroup(Section):
    """Nodes of one type."""

    name: GroupName
    """Fixed at creation."""
    instance_type: str
    """A type that HyperPod offers, with its ml. prefix; config/facts/instance_types.csv lists them."""
    num_instances: Annotated[int, Field(ge=0, le=6758)]
    """Nodes to have; 0 keeps the group for later."""
    min_instances: Annotated[int, Field(ge=1, le=6758)] | None = None
    """The group is not in service before this many nodes are; without them after 3 hours it goes back to what
    it was, which is no nodes for a new group. Null takes the nodes that there are and waits for the rest.
    Needs continuous provisioning."""
    availability_zone_id: AvailabilityZoneId | None = None
    """Null is the network's first zone, where FSx is; accelerated groups stay there."""
    ebs_gib: Annotated[int, Field(ge=1, le=16384)] | None = 500
    """Volume at /opt/sagemaker for containers and caches; null adds none. The root volume's size, 100 GiB, is
    the service's."""
    threads_per_core: Literal[1, 2] | None = None
    """1 turns hyper-threading off; null leaves the instance type's default."""
    efa_only: bool = False
    """EFA interfaces without an address each: 31 addresses less for a P5."""
    deep_health_checks: list[Literal["InstanceStress", "InstanceConnectivity"]] = Field(default=[])
    """Run on accelerated nodes before they take jobs; up to two hours."""
    training_plan_arn: Annotated[str, forms.field(forms.TRAINING_PLAN_ARN)] | None = None
    """Reserved capacity (`aws sagemaker create-training-plan`), billed by the plan."""
    capacity: Literal["on_demand", "spot"] = "on_demand"
    """Spot is for nodes whose jobs may be interrupted; needs continuous provisioning."""
    image_id: Annotated[str, forms.field(forms.IMAGE_ID)] | None = None
    """Null is HyperPod's current image."""
    auto_patch: Literal["none", "when_idle", "when_all_idle"] = "none"
    """When the service may replace a node's image by one with security patches."""

    @property
    def runs_jobs(self) -> bool:
        """Whether jobs are placed on its nodes."""
        return True


class Budget(Section):
    """Alarm by mail when this cluster's tag costs more, or is forecast to."""

    monthly_usd: Annotated[int, Field(ge=1)]
    """Whole dollars for a calendar month."""
    email: Annotated[str, forms.field(forms.EMAIL)]
    """Who is told."""


class Cluster(Section):
    """One HyperPod cluster and all it depends on, whatever places its jobs.

    A cluster file is a ``SlurmCluster`` or an ``EksCluster``.
    """

    scheduler: Literal["slurm", "eks"]
    """What places jobs."""
    name: ClusterName
    """Every stack, bucket and repository carries it; fixed at creation."""
    region: str
    """AWS region of all stacks, as us-west-2; config/facts/regions.py lists the regions with HyperPod."""
    tags: dict[str, str] = Field(default={})
    """On every resource, beside the project's own; 40 at most, with values of 1 to 255 characters. Keys that
    differ only in case are the same."""
    network: Network
    """A new VPC or an existing one."""
    storage: Storage = Storage()
    """File systems, data bucket and their key."""
    instance_groups: Sequence[InstanceGroup]
    """Nodes, by type and purpose."""
    node_recovery: Literal["automatic", "none"] = "automatic"
    """Automatic replaces or reboots nodes with hardware faults."""
    continuous_provisioning: bool = True
    """The cluster takes the nodes that there are and waits for the rest; fixed at creation."""
    prometheus: bool = True
    """An Amazon Managed Prometheus workspace, in the storage stack, and on the nodes what writes to it. It
    bills by samples."""
    mlflow: Mlflow | None = None
    """SageMaker's managed MLflow, in the storage stack, which runs on the cluster log to; runs elsewhere, and
    everywhere with null, log to a folder, ``mlruns``."""
    budget: Budget | None = None
    """Null sets no alarm."""
    studio: Studio | None = None
    """SageMaker Studio for people's work, with the Lustre file system; a stack of its own. Null has none."""
    observability: Observability | None = None
    """Alerts, alarms and dashboards of what Prometheus has. Null has none."""

    @property
    def grafana(self) -> Grafana | None:
        return self.observability.grafana if self.observability else None


ZONES_WITHOUT_CONTROL_PLANE = frozenset({"use1-az3", "usw1-az2", "cac1-az3"})
"""Where EKS puts no network interface of a control plane (EKS user guide, "View Amazon EKS networking
requirements for VPC and subnets")."""


def zone_ids(cluster: Cluster) -> list[str]:
    """The network's zones in the file's order; FSx and groups without a zone go to the first."""
    network = cluster.network
    if isinstance(network, NewVpc):
        return network.availability_zone_ids
    return [subnet.availability_zone_id for subnet in network.private_subnets]


def zone_of(cluster: Cluster, group: InstanceGroup) -> str:
    return group.availability_zone_id or zone_ids(cluster)[0]


def control_plane_zones(cluster: Cluster) -> list[str]:
    """The two zones of EKS's control plane, which wants no fewer: the network's first that it can be in.

    A new VPC has small subnets there for it alone: in those of the nodes, pods that take the last addresses
    would keep EKS from updating it (EKS best practices guide, "VPC and Subnet Considerations"). In an
    existing VPC it shares the private subnets, where its addresses are counted.
    """
    possible = [zone for zone in dict.fromkeys(zone_ids(cluster)) if zone not in ZONES_WITHOUT_CONTROL_PLANE]
    return possible[:2]
