"""The typed form of a cluster file: what a deployment consists of, one YAML file per deployment.

Only facts about single values stand here (types, lengths, ranges: editors learn them from the JSON schema);
what holds between values is in ``rules``. Sizes are in GiB, throughput in MB/s, as the services bill them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from config import text_forms as forms
from config.access import Access
from config.node_setup import NodeSetup
from config.section import Section
from config.storage import Removal, Storage

ClusterName = Annotated[str, forms.field(forms.CLUSTER_NAME, max_length=24)]
"""24 characters, so that ``sagemaker-<name>-<account>-<region>`` is a bucket's name (63 at most)."""
GroupName = Annotated[str, forms.field(forms.GROUP_NAME, max_length=63)]
PartitionName = Annotated[str, forms.field(forms.PARTITION, max_length=64)]
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
    other zone, go to the first; a database needs a second one."""
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
    """Subnets without public addresses; FSx, and nodes whose group names no other zone, go to the first."""
    s3_gateway_endpoint: bool = False
    """Add a gateway endpoint for S3 to the subnets' route tables; false if the VPC has one."""
    interface_endpoints: bool = False
    """Add endpoints for the AWS services that nodes call; false if the VPC has them or reaches them."""


Network = Annotated[NewVpc | ExistingVpc, Field(discriminator="vpc")]


class InstanceGroup(Section):
    """Nodes of one type and role."""

    name: GroupName
    """Its nodes are called <name>-1, <name>-2, ...; fixed at creation, and not head."""
    role: Literal["controller", "login", "worker"]
    """One controller runs Slurm, workers run jobs, login nodes (optional) are for people."""
    instance_type: str
    """A type that HyperPod offers, with its ml. prefix; config/instance_types.csv lists them."""
    num_instances: Annotated[int, Field(ge=0, le=6758)]
    """Nodes to have; 0 keeps a worker group for later."""
    min_instances: Annotated[int, Field(ge=1, le=6758)] | None = None
    """The group is not in service before this many nodes are; without them after 3 hours it goes back to what
    it was, which is no nodes for a new group. Null takes the nodes that there are and waits for the rest.
    Needs continuous provisioning."""
    partition: PartitionName | None = None
    """Slurm partition of a worker group (`sbatch --partition`); groups may share one."""
    availability_zone_id: AvailabilityZoneId | None = None
    """Null is the network's first zone, where FSx is; accelerated groups stay there."""
    ebs_gib: Annotated[int, Field(ge=1, le=16384)] | None = 500
    """Volume at /opt/sagemaker for containers and caches; null adds none. The root volume's size, 100 GiB, is
    the service's."""
    threads_per_core: Literal[1, 2] | None = None
    """1 turns hyper-threading off; null leaves the instance type's default."""
    efa_only: bool = False
    """EFA interfaces without an address each: a P5 takes 1 address instead of 32."""
    deep_health_checks: list[Literal["InstanceStress", "InstanceConnectivity"]] = Field(default=[])
    """Run on accelerated nodes before they take jobs; up to two hours."""
    training_plan_arn: Annotated[str, forms.field(forms.TRAINING_PLAN_ARN)] | None = None
    """Reserved capacity (`aws sagemaker create-training-plan`), billed by the plan."""
    capacity: Literal["on_demand", "spot"] = "on_demand"
    """Spot is for workers whose jobs may be interrupted; needs continuous provisioning."""
    image_id: Annotated[str, forms.field(forms.IMAGE_ID)] | None = None
    """Null is HyperPod's current image. With ``accounting_database`` it must have been released after
    2026-08-30, which its id does not tell: `aws ec2 describe-images` does."""
    auto_patch: Literal["none", "when_idle", "when_all_idle"] = "none"
    """When the service may replace a node's image by one with security patches."""


class AccountingDatabase(Section):
    """MariaDB on RDS for Slurm's accounting, so that its history outlives the controller.

    HyperPod's images released after 2026-08-30 can use it. A cluster that has it cannot go back to the
    database on its controller.
    """

    instance_class: Annotated[str, forms.field(forms.DATABASE_CLASS)] = "db.t4g.medium"
    """Class of RDS that runs MariaDB."""
    storage_gib: Annotated[int, Field(ge=20, le=65536)] = 20
    """gp3; it can grow."""
    multi_az: bool = False
    """A standby in the second zone, at twice the price."""
    backup_days: Annotated[int, Field(ge=1, le=35)] = 7
    """How long daily backups are kept."""
    removal: Removal = "retain"
    """What `cdk destroy` of the storage stack does to it."""


class Budget(Section):
    """Alarm by mail when this cluster's tag costs more, or is forecast to."""

    monthly_usd: Annotated[int, Field(ge=1)]
    """Whole dollars for a calendar month."""
    email: Annotated[str, forms.field(forms.EMAIL)]
    """Who is told."""


class SlurmCluster(Section):
    """One HyperPod cluster with Slurm, and all it depends on."""

    scheduler: Literal["slurm"]
    """What places jobs."""
    name: ClusterName
    """Every stack, bucket and repository carries it; fixed at creation."""
    region: str
    """Where everything is, as us-west-2; config/regions.py lists the regions with HyperPod."""
    tags: dict[str, str] = Field(default={})
    """On every resource, beside the project's own; 40 at most, with values of 1 to 255 characters. Keys that
    differ only in case are the same."""
    network: Network
    """A new VPC or an existing one."""
    storage: Storage = Storage()
    """File systems, data bucket and their key."""
    instance_groups: Annotated[list[InstanceGroup], Field(min_length=1, max_length=100)]
    """One controller group, worker groups, and a login group if wanted."""
    access: Access = Access()
    """Who uses the cluster: users, their groups and Slurm accounts."""
    node_setup: NodeSetup = NodeSetup()
    """What our scripts set up on the nodes, beside what HyperPod's image does."""
    node_recovery: Literal["automatic", "none"] = "automatic"
    """Automatic replaces or reboots nodes with hardware faults."""
    continuous_provisioning: bool = True
    """The cluster is up as soon as its controller is (and a login node, if there are any), workers follow
    with capacity; fixed at creation. Needed for ``storage.kms`` other than aws, ``accounting_database``,
    ``min_instances`` and spot."""
    slurm_config_strategy: Literal["managed", "overwrite", "merge"] = "managed"
    """What an update does to partitions that were edited on the controller by hand."""
    accounting_database: AccountingDatabase | None = None
    """In the storage stack. Null keeps accounting in a database on the controller, which is lost with it; one
    that was added cannot be removed from a cluster that exists."""
    prometheus: bool = True
    """An Amazon Managed Prometheus workspace, in the storage stack, and on the nodes what measures machines,
    GPUs, EFA and Slurm and writes to it. It bills by samples."""
    budget: Budget | None = None
    """Null sets no alarm."""
