"""The HyperPod cluster of Slurm, and how a shell on its nodes starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sagemaker as sagemaker
from aws_cdk import aws_ssm as ssm

from config.node_settings import HOME_MOUNT_PATH
from config.resource_names import shell_document
from config.slurm_cluster import SlurmCluster as Settings
from constructs import Construct, IDependable
from constructs.nodes.instance_group import Group, StorageConfig, common_properties, volumes, vpc_config
from constructs.storage.accounting_database import AccountingDatabase
from constructs.storage.file_systems import HomeFileSystem, LustreFileSystem
from constructs.vpc.network import Network

ON_INIT_COMPLETE = "on_init_complete.sh"
"""Runs once on each new node, after the image has set up Slurm and the mounts."""
NODE_USER = "ubuntu"
"""The user of HyperPod's Slurm images."""
IDLE_MINUTES = "20"

_NODE_TYPES = {"controller": "Controller", "login": "Login", "worker": "Compute"}


class SlurmCluster(Construct):
    """Cluster whose Slurm the service configures from node types, partitions and mounts in its API.

    There is no ``OnCreate`` and no ``provisioning_parameters.json``. With either, the image would leave the
    setup to scripts.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: Settings,
        network: Network,
        roles: Mapping[str, iam.Role],
        lifecycle_s3_uri: str,
        lustre: LustreFileSystem,
        home: HomeFileSystem | None,
        key: kms.IKey | None,
        database: AccountingDatabase | None,
        depends_on: list[IDependable],
    ) -> None:
        super().__init__(scope, construct_id)
        mounts = _mounts(lustre, home)
        self.resource = sagemaker.CfnCluster(
            self,
            "Resource",
            cluster_name=settings.name,
            instance_groups=[
                Group(
                    **common_properties(group, network=network, role=roles[group.role]),
                    slurm_config={
                        "nodeType": _NODE_TYPES[group.role],
                        "partitionNames": [group.partition] if group.partition else None,
                    },
                    life_cycle_config={"sourceS3Uri": lifecycle_s3_uri, "onInitComplete": ON_INIT_COMPLETE},
                    # At most four, as many as the service takes.
                    instance_storage_configs=[*volumes(group, key), *mounts],
                )
                for group in settings.instance_groups
            ],
            vpc_config=vpc_config(network, None),
            node_recovery="Automatic" if settings.node_recovery == "automatic" else "None",
            node_provisioning_mode="Continuous" if settings.continuous_provisioning else None,
            orchestrator={
                "slurm": {
                    "slurmConfigStrategy": settings.slurm_config_strategy.capitalize(),
                    "accountingDatabase": database.for_slurm if database else None,
                }
            },
        )
        self.resource.node.add_dependency(*roles.values(), *depends_on)


def _mounts(lustre: LustreFileSystem, home: HomeFileSystem | None) -> list[StorageConfig]:
    """Mounts of every node."""
    mounts = [
        StorageConfig(
            fsx_lustre_config={
                "dnsName": lustre.dns_name,
                "mountName": lustre.mount_name,
                "mountPath": lustre.mount_path,
            }
        )
    ]
    if home:
        config = {"dnsName": home.dns_name, "mountPath": HOME_MOUNT_PATH}
        mounts.append(StorageConfig(fsx_open_zfs_config=config))
    return mounts


def run_as_document(
    scope: Construct, construct_id: str, *, cluster: Settings, key: kms.IKey | None
) -> ssm.CfnDocument:
    """Create Session Manager's document ``<cluster name>-shell``: a login shell as ubuntu instead of root.

    With a key, what is typed and shown is encrypted with it on its way, on top of TLS.
    """
    inputs: dict[str, Any] = {
        "runAsEnabled": True,
        "runAsDefaultUser": NODE_USER,
        "idleSessionTimeout": IDLE_MINUTES,
        "shellProfile": {"linux": "cd && exec bash --login"},
    }
    if key:
        inputs["kmsKeyId"] = key.key_arn
    return ssm.CfnDocument(
        Construct(scope, construct_id),
        "Document",
        name=shell_document(cluster),
        document_type="Session",
        content={
            "schemaVersion": "1.0",
            "description": f"Shell on a node of HyperPod cluster {cluster.name} as {NODE_USER}",
            "sessionType": "Standard_Stream",
            "inputs": inputs,
        },
        # A document with a name of its own cannot be replaced; a change makes a version of it.
        update_method="NewVersion",
    )
