"""The node_setup of a cluster file: what our scripts do on nodes, beside what HyperPod's image does."""

from __future__ import annotations

from typing import Literal

from config.section import Section


class NodeSetup(Section):
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
