"""The HyperPod cluster of Slurm, and how a shell on its nodes starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aws_cdk import aws_kms as kms
from aws_cdk import aws_sagemaker as sagemaker
from aws_cdk import aws_ssm as ssm

from config.node_settings import HOME_MOUNT_PATH
from config.resource_names import shell_document
from config.slurm_cluster import SlurmCluster as Settings
from config.slurm_cluster import SlurmInstanceGroup
from constructs import Construct, IDependable
from constructs.nodes.instance_group import Group, StorageConfig, common_properties, volumes, vpc_config
from constructs.nodes.instance_role import InstanceRole
from constructs.storage.accounting_database import PORT, AccountingDatabase
from constructs.vpc.network import Network

ON_INIT_COMPLETE = "on_init_complete.sh"
"""Runs once on each new node, after the image has set up Slurm and the mounts."""
NODE_USER = "ubuntu"
"""The user of HyperPod's Slurm images."""
IDLE_MINUTES = "20"

_NODE_TYPES = {"controller": "Controller", "login": "Login", "worker": "Compute"}


@dataclass(frozen=True, kw_only=True)
class Mounts:
    """The file systems that every node mounts."""

    lustre_dns_name: str
    lustre_mount_name: str
    lustre_mount_path: str
    home_dns_name: str | None


class SlurmCluster(Construct):
    """A cluster whose Slurm the service configures: node types, partitions and mounts are given to its API.

    There is no ``OnCreate`` and no ``provisioning_parameters.json``: with either, the image would leave the
    set-up to scripts.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: Settings,
        network: Network,
        roles: Mapping[str, InstanceRole],
        lifecycle_s3_uri: str,
        mounts: Mounts,
        key: kms.IKey | None,
        database: AccountingDatabase | None,
        depends_on: list[IDependable],
    ) -> None:
        super().__init__(scope, construct_id)
        self.resource = sagemaker.CfnCluster(
            self,
            "Resource",
            cluster_name=settings.name,
            instance_groups=[
                _group(group, network, roles[group.role], lifecycle_s3_uri, mounts, key)
                for group in settings.instance_groups
            ],
            vpc_config=vpc_config(network, None),
            node_recovery="Automatic" if settings.node_recovery == "automatic" else "None",
            node_provisioning_mode="Continuous" if settings.continuous_provisioning else None,
            orchestrator=sagemaker.CfnCluster.OrchestratorProperty(
                slurm=sagemaker.CfnCluster.ClusterOrchestratorSlurmConfigProperty(
                    slurm_config_strategy=settings.slurm_config_strategy.capitalize(),
                    accounting_database=_accounting(database),
                )
            ),
        )
        self.resource.node.add_dependency(*roles.values(), *depends_on)


def _accounting(
    database: AccountingDatabase | None,
) -> sagemaker.CfnCluster.ClusterAccountingDatabaseProperty | None:
    if database is None:
        return None
    return sagemaker.CfnCluster.ClusterAccountingDatabaseProperty(
        endpoint=database.instance.db_instance_endpoint_address,
        port=PORT,
        secret_arn=database.secret.secret_arn,
    )


def _group(
    group: SlurmInstanceGroup,
    network: Network,
    role: InstanceRole,
    lifecycle_s3_uri: str,
    mounts: Mounts,
    key: kms.IKey | None,
) -> Group:
    return Group(
        **common_properties(group, network=network, role=role),
        slurm_config=sagemaker.CfnCluster.ClusterSlurmConfigProperty(
            node_type=_NODE_TYPES[group.role],
            partition_names=[group.partition] if group.partition else None,
        ),
        life_cycle_config=sagemaker.CfnCluster.ClusterLifeCycleConfigProperty(
            source_s3_uri=lifecycle_s3_uri, on_init_complete=ON_INIT_COMPLETE
        ),
        instance_storage_configs=_storage(group, mounts, key),
    )


def _storage(group: SlurmInstanceGroup, mounts: Mounts, key: kms.IKey | None) -> list[StorageConfig]:
    """At most four, as many as the service takes: a volume, the root volume's key, and the file systems."""
    cluster = sagemaker.CfnCluster
    configs = volumes(group, key)
    configs.append(
        StorageConfig(
            fsx_lustre_config=cluster.ClusterFsxLustreConfigProperty(
                dns_name=mounts.lustre_dns_name,
                mount_name=mounts.lustre_mount_name,
                mount_path=mounts.lustre_mount_path,
            )
        )
    )
    if mounts.home_dns_name is not None:
        configs.append(
            StorageConfig(
                fsx_open_zfs_config=cluster.ClusterFsxOpenZfsConfigProperty(
                    dns_name=mounts.home_dns_name, mount_path=HOME_MOUNT_PATH
                )
            )
        )
    return configs


class RunAsDocument(Construct):
    """Session Manager document ``<cluster name>-shell``: a login shell as ubuntu instead of root.

    With a key, what is typed and shown is encrypted with it on its way, on top of TLS.
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, cluster: Settings, key: kms.IKey | None
    ) -> None:
        super().__init__(scope, construct_id)
        inputs: dict[str, Any] = {
            "runAsEnabled": True,
            "runAsDefaultUser": NODE_USER,
            "idleSessionTimeout": IDLE_MINUTES,
            "shellProfile": {"linux": "cd && exec bash --login"},
        }
        if key:
            inputs["kmsKeyId"] = key.key_arn
        self.name = shell_document(cluster)
        ssm.CfnDocument(
            self,
            "Document",
            name=self.name,
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
