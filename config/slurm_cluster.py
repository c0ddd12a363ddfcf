"""Typed cluster file for Slurm."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from config import text_forms as forms
from config.access import Access
from config.cluster import BoughtAs, Cluster, InstanceGroup
from config.scheduling import Scheduling
from config.section import Section
from config.storage import Removal
from config.studio import SlurmStudio


class NodeSetup(Section):
    """Node setup by the project's scripts, in addition to HyperPod's image."""

    container_storage: Literal["local_disk", "unchanged"] = "local_disk"
    """Storage of enroot and Docker images and containers. ``local_disk`` is the node's largest disk: NVMe, or
    the volume of ``ebs_gib`` on nodes without NVMe. ``unchanged`` keeps them on the root volume, which has
    100 GiB and fills up."""
    pam_slurm_adopt: bool = False
    """Users can log in by ssh only to workers on which they have a job, and the job is charged for it."""
    cloudwatch_agent: bool = False
    """Send logs of the system and of Slurm, and memory and disk metrics, to CloudWatch, which bills for them.
    They are kept for 30 days."""
    health_check_prolog: bool = True
    """Check GPUs, root volume and Lustre mount before each job. A faulty node accepts no more jobs. A file
    server that does not answer does not count as a fault of the node."""
    workload_code: bool = True
    """Store this repository's training code below the Lustre mount, under the hash of its content."""
    downloads: Literal["internet", "artifact_bucket"] = "internet"
    """Source of the software that ``prometheus`` needs and the image lacks. ``artifact_bucket`` is for
    networks without internet access: deploy SlurmStorageStack, run `make mirror-downloads`, then deploy the
    rest."""


DEFAULT_WEIGHTS: Mapping[BoughtAs, int] = {"plan": 10, "on_demand": 20, "spot": 30}
"""Slurm's weights of nodes without ``weight``: what is paid for already is used first."""


class SlurmInstanceGroup(InstanceGroup):
    """Nodes of one role, named <name>-1, <name>-2, ...; the group's name must not be head."""

    role: Literal["controller", "login", "worker"]
    """Role of the nodes: one controller runs Slurm, workers run jobs, optional login nodes are for people."""
    partition: Annotated[str, forms.field(forms.PARTITION, max_length=1024)] | None = None
    """Slurm partition of a worker group (`sbatch --partition`); groups may share one."""
    weight: Annotated[int, Field(ge=1, le=1000000)] | None = None
    """Order within the partition: jobs take worker nodes with lower weights first. Null is 10 with a training
    plan, 20 on demand and 30 for spot."""
    image_id: Annotated[str, forms.field(forms.IMAGE_ID)] | None = None
    """Machine image; null is HyperPod's current image. With ``accounting_database`` it must have been
    released after 2026-08-30; `aws ec2 describe-images` prints the date."""

    @property
    def runs_jobs(self) -> bool:
        """Return whether jobs are placed on the group's nodes, which are the workers."""
        return self.role == "worker"


def node_weights(cluster: "SlurmCluster") -> dict[str, int]:
    """Return Slurm's weight of the nodes of each worker group.

    It is empty if the groups do not differ in it: then nodes keep Slurm's weight and features.
    """
    weights = {
        group.name: DEFAULT_WEIGHTS[group.bought_as] if group.weight is None else group.weight
        for group in cluster.instance_groups
        if group.runs_jobs
    }
    kinds = {group.bought_as for group in cluster.instance_groups if group.runs_jobs}
    return weights if len(kinds) > 1 or len(set(weights.values())) > 1 else {}


MARIADB_VERSION = "11.4.10"
"""Version with long-term support; slurmdbd works with MariaDB 5.5 and later."""


class ExistingDatabase(Section):
    """Database that an earlier deployment kept, or that several clusters share."""

    endpoint: Annotated[str, forms.field(forms.HOST_NAME, max_length=255)]
    """DNS name of the database, compatible with MySQL, on port 3306."""
    secret_arn: Annotated[str, forms.field(forms.SECRET_ARN, max_length=2048)]
    """Secret with the keys ``username`` and ``password``."""
    security_group_id: Annotated[str, forms.field(forms.SECURITY_GROUP_ID)] | None = None
    """Security group of the database, to which the storage stack adds one rule for the cluster. Null adds
    none, because the group admits the cluster already."""


class AccountingDatabase(Section):
    """MariaDB on RDS for Slurm's accounting, which keeps the job history if the controller is lost.

    HyperPod images released after 2026-08-30 can use it. A cluster with this database cannot return to a
    database on its controller.
    """

    existing: ExistingDatabase | None = None
    """Database to use instead of a new one. The other fields then describe it. `make teardown` prints this
    section for a database that it keeps."""
    schema_name: Annotated[str, forms.field(forms.DATABASE_SCHEMA, max_length=64)] | None = None
    """Schema in the database, which HyperPod creates. Null is slurm_acct_<cluster>, so that a redeployed
    cluster finds its history and fair share, and clusters that share a database do not mix theirs."""
    instance_class: Annotated[str, forms.field(forms.DATABASE_CLASS)] = "db.t4g.medium"
    """RDS instance class that runs MariaDB."""
    storage_gib: Annotated[int, Field(ge=20, le=65536)] = 20
    """Size of the gp3 volume; it can grow."""
    multi_az: bool = False
    """Add a standby in the second zone, which doubles the price."""
    backup_days: Annotated[int, Field(ge=1, le=35)] = 7
    """Days for which daily backups are kept."""
    removal: Removal = "retain"
    """Effect of `cdk destroy` of the storage stack on the database."""


def accounting_schema(cluster_name: str, database: AccountingDatabase) -> str:
    """Return the schema of the cluster's accounting.

    AWS's documents give two defaults for a missing name, of which one is the same for all clusters.
    """
    return database.schema_name or f"slurm_acct_{cluster_name.replace('-', '_')}"


class SlurmCluster(Cluster):
    """One HyperPod cluster with Slurm, and all it depends on."""

    scheduler: Literal["slurm"]
    """Scheduler, which places jobs; slurm for this kind of file."""
    instance_groups: Annotated[list[SlurmInstanceGroup], Field(min_length=1, max_length=100)]
    """One controller group, worker groups, and an optional login group."""
    access: Access = Access()
    """Users of the cluster, their groups and Slurm accounts."""
    scheduling: Scheduling | None = None
    """Slurm's QOS, limits and options of partitions. Null leaves them to HyperPod and `sacctmgr`."""
    node_setup: NodeSetup = NodeSetup()
    """Setup of the nodes by the project's scripts."""
    continuous_provisioning: bool = True
    """The cluster is up as soon as its controller and, if there are any, a login node run. Workers follow
    when capacity is available. Fixed at creation. Required for ``storage.kms`` other than aws,
    ``accounting_database``, ``min_instances`` and spot."""
    slurm_config_strategy: Literal["managed", "overwrite", "merge"] = "managed"
    """Effect of an update on partitions that were edited manually on the controller."""
    studio: SlurmStudio | None = None
    """SageMaker Studio with the Lustre file system, in its own stack. Null creates none."""
    accounting_database: AccountingDatabase | None = None
    """Accounting database in the storage stack. Null keeps accounting in a database on the controller, which
    is lost with it. A database cannot be removed from an existing cluster."""
    prometheus: bool = True
    """Amazon Managed Prometheus workspace in the storage stack, and software on the nodes that measures
    machines, GPUs, EFA and Slurm and writes to it. It bills by samples."""
