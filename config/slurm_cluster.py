"""The typed form of a cluster file for Slurm."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from config import text_forms as forms
from config.access import Access
from config.cluster import Cluster, InstanceGroup
from config.section import Section
from config.storage import Removal
from config.studio import SlurmStudio


class NodeSetup(Section):
    """Work of our scripts on the nodes, besides what HyperPod's image does."""

    container_storage: Literal["local_disk", "unchanged"] = "local_disk"
    """Where images and containers of enroot and Docker go. local_disk is the node's largest: NVMe, else the
    volume of ``ebs_gib``; their place on the root volume's 100 GiB fills up. ``unchanged`` leaves them where
    the image has them."""
    pam_slurm_adopt: bool = False
    """Users log in by ssh only to workers on which they have a job, and the login is counted to the job."""
    cloudwatch_agent: bool = False
    """Sends the system's and Slurm's logs, memory and disks to CloudWatch, which bills for them; kept 30
    days."""
    health_check_prolog: bool = True
    """Looks at GPUs, root volume and Lustre's mount before each job; a node with a fault takes no more jobs.
    A file server that does not answer is no fault of the node's."""
    workload_code: bool = True
    """Keeps the training code of this repository below the Lustre mount, by its content's hash."""
    downloads: Literal["internet", "artifact_bucket"] = "internet"
    """Where nodes get what ``prometheus`` needs and the image lacks. ``artifact_bucket`` is for networks
    without a way to the internet: deploy SlurmStorageStack, then `make mirror-downloads`, then the rest."""


PartitionName = Annotated[str, forms.field(forms.PARTITION, max_length=64)]


class SlurmInstanceGroup(InstanceGroup):
    """Nodes of one type and role; they are called <name>-1, <name>-2, ..., and the name is not head."""

    role: Literal["controller", "login", "worker"]
    """One controller runs Slurm, workers run jobs, login nodes (optional) are for people."""
    partition: PartitionName | None = None
    """Slurm partition of a worker group (`sbatch --partition`); groups may share one."""
    image_id: Annotated[str, forms.field(forms.IMAGE_ID)] | None = None
    """Null is HyperPod's current image. With ``accounting_database`` it must have been released after
    2026-08-30, which its id does not tell: `aws ec2 describe-images` does."""

    @property
    def runs_jobs(self) -> bool:
        """Workers do, alone."""
        return self.role == "worker"


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


class SlurmCluster(Cluster):
    """One HyperPod cluster with Slurm, and all it depends on."""

    scheduler: Literal["slurm"]
    """What places jobs: slurm here."""
    instance_groups: Annotated[list[SlurmInstanceGroup], Field(min_length=1, max_length=100)]
    """One controller group, worker groups, and a login group if wanted."""
    access: Access = Access()
    """Who uses the cluster: users, their groups and Slurm accounts."""
    node_setup: NodeSetup = NodeSetup()
    """What our scripts set up on the nodes, beside what HyperPod's image does."""
    continuous_provisioning: bool = True
    """The cluster is up as soon as its controller is (and a login node, if there are any), workers follow
    with capacity; fixed at creation. Needed for ``storage.kms`` other than aws, ``accounting_database``,
    ``min_instances`` and spot."""
    slurm_config_strategy: Literal["managed", "overwrite", "merge"] = "managed"
    """What an update does to partitions that were edited on the controller by hand."""
    studio: SlurmStudio | None = None
    """SageMaker Studio for people's work, with the Lustre file system; a stack of its own. Null has none."""
    accounting_database: AccountingDatabase | None = None
    """In the storage stack. Null keeps accounting in a database on the controller, which is lost with it; one
    that was added cannot be removed from a cluster that exists."""
    prometheus: bool = True
    """An Amazon Managed Prometheus workspace, in the storage stack, and on the nodes what measures machines,
    GPUs, EFA and Slurm and writes to it. It bills by samples."""
