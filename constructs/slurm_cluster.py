"""The HyperPod cluster itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aws_cdk import aws_kms as kms
from aws_cdk import aws_sagemaker as sagemaker

from config.node_settings import HOME_MOUNT_PATH
from config.slurm_cluster import SlurmCluster as Settings
from config.slurm_cluster import SlurmInstanceGroup
from constructs import Construct, IDependable
from constructs.accounting_database import PORT, AccountingDatabase
from constructs.instance_role import InstanceRole
from constructs.network import Network

ON_INIT_COMPLETE = "on_init_complete.sh"
"""Runs once on each new node, after the image has set up Slurm and the mounts."""

_NODE_TYPES = {"controller": "Controller", "login": "Login", "worker": "Compute"}
_PATCHING = {"when_idle": "WhenIdle", "when_all_idle": "WhenAllIdle"}

Group = sagemaker.CfnCluster.ClusterInstanceGroupProperty
StorageConfig = sagemaker.CfnCluster.ClusterInstanceStorageConfigProperty


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
            vpc_config=_vpc_config(network, None),
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


def _vpc_config(network: Network, zone_id: str | None) -> sagemaker.CfnCluster.VpcConfigProperty:
    return sagemaker.CfnCluster.VpcConfigProperty(
        security_group_ids=[network.security_group.security_group_id],
        subnets=[network.subnet(zone_id).subnet_id],
    )


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
    cluster = sagemaker.CfnCluster
    return Group(
        instance_group_name=group.name,
        instance_type=group.instance_type,
        instance_count=group.num_instances,
        min_instance_count=group.min_instances,
        execution_role=role.role.role_arn,
        slurm_config=cluster.ClusterSlurmConfigProperty(
            node_type=_NODE_TYPES[group.role],
            partition_names=[group.partition] if group.partition else None,
        ),
        life_cycle_config=cluster.ClusterLifeCycleConfigProperty(
            source_s3_uri=lifecycle_s3_uri, on_init_complete=ON_INIT_COMPLETE
        ),
        instance_storage_configs=_storage(group, mounts, key),
        threads_per_core=group.threads_per_core,
        on_start_deep_health_checks=group.deep_health_checks or None,
        training_plan_arn=group.training_plan_arn,
        override_vpc_config=(
            _vpc_config(network, group.availability_zone_id) if group.availability_zone_id else None
        ),
        image_id=group.image_id,
        auto_patch_config=(
            cluster.AutoPatchConfigProperty(patching_strategy=_PATCHING[group.auto_patch])
            if group.auto_patch != "none"
            else None
        ),
        # On demand is what the service does without being told.
        capacity_requirements=(
            cluster.ClusterCapacityRequirementsProperty(spot={}) if group.capacity == "spot" else None
        ),
        network_interface=(
            cluster.ClusterNetworkInterfaceProperty(interface_type="efa-only") if group.efa_only else None
        ),
    )


def _storage(group: SlurmInstanceGroup, mounts: Mounts, key: kms.IKey | None) -> list[StorageConfig]:
    """At most four, as many as the service takes: a volume, the root volume's key, and the file systems."""
    cluster = sagemaker.CfnCluster
    configs = []
    if group.ebs_gib is not None:
        volume = cluster.ClusterEbsVolumeConfigProperty(
            volume_size_in_gb=group.ebs_gib, volume_kms_key_id=key.key_arn if key else None
        )
        configs.append(StorageConfig(ebs_volume_config=volume))
    if key is not None:
        # The service sets the root volume's size itself and rejects one given here.
        root = cluster.ClusterEbsVolumeConfigProperty(root_volume=True, volume_kms_key_id=key.key_arn)
        configs.append(StorageConfig(ebs_volume_config=root))
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
