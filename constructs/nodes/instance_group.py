"""HyperPod cluster with its instance groups: properties that both schedulers share."""

from collections.abc import Sequence
from typing import Any

from aws_cdk import Annotations
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sagemaker as sagemaker

from config.cluster import Cluster, InstanceGroup, RollingUpdate, zone_ids, zone_of
from config.facts.instance_catalogue import any_of
from config.facts.registry import has_list_price
from constructs import Construct
from constructs.policy.findings import acknowledge
from constructs.vpc.network import Network

Group = sagemaker.CfnCluster.ClusterInstanceGroupProperty
StorageConfig = sagemaker.CfnCluster.ClusterInstanceStorageConfigProperty

PRICED_TYPES = "CloudFormation-Validate::E3644"
"""Check of aws-cdk-lib that refuses types which HyperPod's price list lacks in the region. It lacks the types
of training plans and of private offers."""
_PATCHING = {"when_idle": "WhenIdle", "when_all_idle": "WhenAllIdle"}


class HyperPodCluster(Construct):
    """HyperPod cluster in the first zone of a network; its groups may be in others."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: Cluster,
        network: Network,
        groups: Sequence[Group],
        **scheduler_properties: Any,
    ) -> None:
        super().__init__(scope, construct_id)
        self.resource = sagemaker.CfnCluster(
            self,
            "Resource",
            cluster_name=settings.name,
            instance_groups=groups,
            vpc_config=_vpc_config(network, None),
            node_recovery="Automatic" if settings.node_recovery == "automatic" else "None",
            node_provisioning_mode="Continuous" if settings.continuous_provisioning else None,
            **scheduler_properties,
        )
        reason = "types without a list price are warned about here, and checked by make preflight"
        acknowledge(self.resource, {PRICED_TYPES: reason})
        for group in settings.instance_groups:
            if warning := price_warning(settings, group):
                Annotations.of(self).add_warning_v2(f"hyperpod-esm2:price-{group.name}", warning)
            if warning := zone_warning(settings, group):
                Annotations.of(self).add_warning_v2(f"hyperpod-esm2:zone-{group.name}", warning)


def price_warning(cluster: Cluster, group: InstanceGroup) -> str | None:
    """Return a warning if a type without a list price in the region is not reserved by a training plan."""
    unpriced = [name for name in group.types if not has_list_price(name, cluster.region)]
    if group.training_plan_arn or not unpriced:
        return None
    field = "instance_types" if group.instance_types else "instance_type"
    return (
        f"instance_groups[{group.name}].{field}: HyperPod's price list has no {any_of(unpriced)} in "
        f"{cluster.region}, so that it may need a training plan or a private offer; `make preflight` checks "
        "the offers of the account"
    )


def zone_warning(cluster: Cluster, group: InstanceGroup) -> str | None:
    """Return a warning if a group that runs jobs is in another zone than the file systems."""
    first = zone_ids(cluster)[0]
    if not group.runs_jobs or zone_of(cluster, group) == first:
        return None
    return (
        f"instance_groups[{group.name}].availability_zone_id: the group is in {zone_of(cluster, group)}, "
        f"and FSx in {first}. Everything that its jobs read and write crosses zones: it takes longer, and "
        "AWS bills about 0.01 USD per GB in each zone (EC2 pricing, data transfer within a region). A fault "
        "of either zone stops its jobs"
    )


def instance_group(
    group: InstanceGroup, network: Network, role: iam.IRole, **properties: Any
) -> Group:
    """Return the properties of a group.

    Args:
        group: group of the cluster file.
        network: network of the cluster.
        role: role of the group's nodes.
        properties: storage, scripts, and properties of the scheduler.
    """
    override_vpc_config = None
    if group.availability_zone_id:
        override_vpc_config = _vpc_config(network, group.availability_zone_id)
    return Group(
        instance_group_name=group.name,
        instance_type=group.instance_type,
        instance_requirements=(
            {"instanceTypes": group.instance_types} if group.instance_types else None
        ),
        instance_count=group.num_instances,
        min_instance_count=group.min_instances,
        execution_role=role.role_arn,
        threads_per_core=group.threads_per_core,
        on_start_deep_health_checks=group.deep_health_checks or None,
        training_plan_arn=group.training_plan_arn,
        override_vpc_config=override_vpc_config,
        image_id=group.image_id,
        auto_patch_config=_auto_patch_config(group),
        scheduled_update_config=_scheduled_update_config(group),
        # Without capacity requirements the service provides on-demand capacity.
        capacity_requirements={"spot": {}} if group.capacity == "spot" else None,
        network_interface={"interfaceType": "efa-only"} if group.efa_only else None,
        **properties,
    )


def _auto_patch_config(group: InstanceGroup) -> dict[str, Any] | None:
    """Return what patches the group automatically; batches apply to nodes that are patched one by one."""
    if group.auto_patch == "none":
        return None
    config: dict[str, Any] = {"patchingStrategy": _PATCHING[group.auto_patch]}
    if group.rolling_update and group.auto_patch == "when_idle":
        config["deploymentConfig"] = _deployment_config(group.rolling_update)
    return config


def _scheduled_update_config(group: InstanceGroup) -> dict[str, Any] | None:
    if group.scheduled_update is None:
        return None
    config: dict[str, Any] = {"scheduleExpression": group.scheduled_update}
    if group.rolling_update:
        config["deploymentConfig"] = _deployment_config(group.rolling_update)
    return config


def _deployment_config(batches: RollingUpdate) -> dict[str, Any]:
    size = {"type": batches.batch_size.unit, "value": batches.batch_size.value}
    config: dict[str, Any] = {
        "rollingUpdatePolicy": {"maximumBatchSize": size, "rollbackMaximumBatchSize": size},
        "waitIntervalInSeconds": batches.wait_seconds,
    }
    if batches.rollback_alarms:
        alarms = [{"alarmName": name} for name in batches.rollback_alarms]
        config["autoRollbackConfiguration"] = alarms
    return config


def _vpc_config(network: Network, zone_id: str | None) -> sagemaker.CfnCluster.VpcConfigProperty:
    return sagemaker.CfnCluster.VpcConfigProperty(
        security_group_ids=network.security_group_ids,
        subnets=[network.subnet(zone_id).subnet_id],
    )


def volumes(group: InstanceGroup, key: kms.IKey | None) -> list[StorageConfig]:
    """Return an additional volume and the root volume's key, each if the file requests it.

    They are at most two of the four storage configurations that a group may have.
    """
    key_arn = key.key_arn if key else None
    configs = []
    if group.ebs_gib is not None:
        volume = {"volumeSizeInGb": group.ebs_gib, "volumeKmsKeyId": key_arn}
        configs.append(StorageConfig(ebs_volume_config=volume))
    if key_arn:
        # The service sets the root volume's size itself and rejects one given here.
        configs.append(
            StorageConfig(ebs_volume_config={"rootVolume": True, "volumeKmsKeyId": key_arn})
        )
    return configs
