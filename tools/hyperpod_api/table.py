"""Table of HyperPod's requests: how each member is set, or why it cannot be set.

A member without an entry, and an entry without a member, fail the tests with the pinned botocore.
"""

from collections.abc import Mapping

from tools.hyperpod_api.coverage import WHOLE, Entries, command, field, fixed, left_out, whole_field

_GROUP = "InstanceGroups[]"
_QUOTA = "ComputeQuotaConfig.ComputeQuotaResources[]"
_STORAGE = f"{_GROUP}.InstanceStorageConfigs[]"
_CHECKS = "DeepHealthCheckConfigurations[]"
_ACCOUNTING = "Orchestrator.Slurm.AccountingDatabase"
_DATABASE = "the database of accounting_database"
_BATCH_IDS = "for nodes without an instance id, which run no jobs yet"
_BATCHES = "DeploymentConfig.RollingUpdatePolicy"
_SEARCH = "make plans-search"
_BUY = "make plans-buy"
_PATCH = "make patch"
_LIST_PLANS = "make plans-list"
_EXTENSIONS = "the project's own exporters measure Slurm (docs/slurm-metrics.md has the reasons)"
_ATTACHED = (
    "nodes have the volumes and interfaces of their group, so that a replacement has them too"
)


def _rolling(parent: str = "") -> Entries:
    """Return the entries of a DeploymentConfig, which a group's rolling_update sets.

    Args:
        parent: path of the structure that contains it; empty for the request itself.
    """
    section = "instance_groups.rolling_update"
    prefix = f"{parent}." if parent else ""
    return {
        f"{prefix}{_BATCHES}.MaximumBatchSize.Type": fixed("the unit of the field that is set"),
        f"{prefix}{_BATCHES}.MaximumBatchSize.Value": field(f"{section}.max_nodes"),
        f"{prefix}{_BATCHES}.RollbackMaximumBatchSize.Type": fixed("as MaximumBatchSize"),
        f"{prefix}{_BATCHES}.RollbackMaximumBatchSize.Value": fixed("as MaximumBatchSize"),
        f"{prefix}DeploymentConfig.WaitIntervalInSeconds": field(f"{section}.wait_seconds"),
        f"{prefix}DeploymentConfig.AutoRollbackConfiguration[].AlarmName": field(
            f"{section}.rollback_alarms"
        ),
    }


REQUESTS: Mapping[str, Entries] = {
    "CreateCluster": {
        "ClusterName": field("name"),
        f"{_GROUP}.InstanceGroupName": field("instance_groups.name"),
        f"{_GROUP}.InstanceType": field("instance_groups.instance_type"),
        f"{_GROUP}.InstanceRequirements.InstanceTypes": field("instance_groups.instance_types"),
        f"{_GROUP}.InstanceCount": field("instance_groups.num_instances"),
        f"{_GROUP}.MinInstanceCount": field("instance_groups.min_instances"),
        f"{_GROUP}.LifeCycleConfig.SourceS3Uri": fixed("the uploaded scripts of this repository"),
        f"{_GROUP}.LifeCycleConfig.OnCreate": fixed("the script of nodes on EKS"),
        f"{_GROUP}.LifeCycleConfig.OnInitComplete": fixed("the script of nodes on Slurm"),
        f"{_GROUP}.ExecutionRole": field("instance_groups.execution_role"),
        f"{_GROUP}.ThreadsPerCore": field("instance_groups.threads_per_core"),
        f"{_STORAGE}.EbsVolumeConfig.VolumeSizeInGB": field("instance_groups.ebs_gib"),
        f"{_STORAGE}.EbsVolumeConfig.VolumeKmsKeyId": field("storage.kms"),
        f"{_STORAGE}.EbsVolumeConfig.RootVolume": fixed("true, for the key of storage.kms"),
        f"{_STORAGE}.FsxLustreConfig.DnsName": fixed("the file system of storage.lustre"),
        f"{_STORAGE}.FsxLustreConfig.MountName": fixed("the file system of storage.lustre"),
        f"{_STORAGE}.FsxLustreConfig.MountPath": field("storage.lustre.mount_path"),
        f"{_STORAGE}.FsxOpenZfsConfig.DnsName": fixed("the file system of storage.home"),
        f"{_STORAGE}.FsxOpenZfsConfig.MountPath": fixed("/home"),
        f"{_GROUP}.OnStartDeepHealthChecks": field("instance_groups.deep_health_checks"),
        f"{_GROUP}.TrainingPlanArn": field("instance_groups.training_plan_arn"),
        f"{_GROUP}.OverrideVpcConfig.SecurityGroupIds": fixed("the cluster's security group"),
        f"{_GROUP}.OverrideVpcConfig.Subnets": field("instance_groups.availability_zone_id"),
        f"{_GROUP}.ScheduledUpdateConfig.ScheduleExpression": field(
            "instance_groups.scheduled_update"
        ),
        **_rolling(f"{_GROUP}.ScheduledUpdateConfig"),
        f"{_GROUP}.ImageId": field("instance_groups.image_id"),
        f"{_GROUP}.ImageReleaseVersion": field("instance_groups.image_release_version"),
        f"{_GROUP}.AutoPatchConfig.PatchingStrategy": field("instance_groups.auto_patch"),
        f"{_GROUP}.AutoPatchConfig.PatchSchedule": left_out("the service chooses the date"),
        **_rolling(f"{_GROUP}.AutoPatchConfig"),
        f"{_GROUP}.AutoPatchConfig.IdleWaitWindowInSeconds": left_out(
            "the service's time of waiting for idle nodes applies"
        ),
        f"{_GROUP}.AutoPatchConfig.DrainPolicy": left_out(
            "for DrainFirst only, which auto_patch does not offer"
        ),
        f"{_GROUP}.KubernetesConfig.Labels": field("instance_groups.labels"),
        f"{_GROUP}.KubernetesConfig.Taints[].Key": field("instance_groups.taints.key"),
        f"{_GROUP}.KubernetesConfig.Taints[].Value": field("instance_groups.taints.value"),
        f"{_GROUP}.KubernetesConfig.Taints[].Effect": field("instance_groups.taints.effect"),
        f"{_GROUP}.SlurmConfig.NodeType": field("instance_groups.role"),
        f"{_GROUP}.SlurmConfig.PartitionNames": field("instance_groups.partition"),
        f"{_GROUP}.CapacityRequirements.Spot": field("instance_groups.capacity"),
        f"{_GROUP}.CapacityRequirements.OnDemand": left_out("the default of the service"),
        f"{_GROUP}.NetworkInterface.InterfaceType": field("instance_groups.efa_only"),
        "RestrictedInstanceGroups": left_out("for the customization of Amazon Nova models"),
        "RestrictedInstanceGroupsConfig": left_out("for the customization of Amazon Nova models"),
        "VpcConfig.SecurityGroupIds": field("network.security_group_ids"),
        "VpcConfig.Subnets": field("network"),
        "Tags[].Key": field("tags"),
        "Tags[].Value": field("tags"),
        "Orchestrator.Eks.ClusterArn": fixed(
            "the EKS cluster of the section kubernetes, new or existing"
        ),
        "Orchestrator.Slurm.SlurmConfigStrategy": field("slurm_config_strategy"),
        f"{_ACCOUNTING}.Endpoint": fixed(_DATABASE),
        f"{_ACCOUNTING}.Port": fixed(_DATABASE),
        f"{_ACCOUNTING}.SecretArn": fixed(_DATABASE),
        f"{_ACCOUNTING}.Name": field("accounting_database.schema_name"),
        "NodeRecovery": field("node_recovery"),
        "NodeProvisioningMode": field("continuous_provisioning"),
        "TieredStorageConfig.Mode": field("memory_states.storage"),
        "TieredStorageConfig.InstanceMemoryAllocationPercentage": field("memory_states.percent"),
        "ClusterRole": fixed("a role of the stack, with autoscaling"),
        "AutoScaling.Mode": field("autoscaling"),
        "AutoScaling.AutoScalerType": field("autoscaling"),
    },
    "UpdateCluster": {
        "InstanceGroupsToDelete": fixed("groups that the cluster file no longer has"),
    },
    "DescribeCluster": {WHOLE: command("make connect")},
    "ListClusters": {WHOLE: command("make connect")},
    "DeleteCluster": {WHOLE: command("make destroy")},
    "UpdateClusterSoftware": {
        "ClusterName": command(_PATCH),
        f"{_GROUP}.InstanceGroupName": command(_PATCH),
        f"{_GROUP}.ImageReleaseVersion": command(_PATCH),
        **_rolling(),
        "ImageId": field("instance_groups.image_id"),
    },
    "ListClusterNodes": {WHOLE: command("make connect ARGS=--list")},
    "DescribeClusterNode": {WHOLE: left_out("ListClusterNodes has what the commands need")},
    "BatchAddClusterNodes": {
        WHOLE: left_out(
            "num_instances adds nodes, and the next update of the stack would undo this"
        )
    },
    "BatchDeleteClusterNodes": {
        WHOLE: left_out("num_instances removes nodes (docs/runbook.md, Grow or shrink a group)")
    },
    "BatchReplaceClusterNodes": {
        "ClusterName": command("make replace"),
        "NodeIds": command("make replace"),
        "NodeLogicalIds": left_out(_BATCH_IDS),
    },
    "BatchRebootClusterNodes": {
        "ClusterName": command("make reboot"),
        "NodeIds": command("make reboot"),
        "NodeLogicalIds": left_out(_BATCH_IDS),
    },
    "StartClusterHealthCheck": {
        "ClusterName": command("make health-check"),
        f"{_CHECKS}.InstanceGroupName": command("make health-check"),
        f"{_CHECKS}.InstanceIds": command("make health-check"),
        f"{_CHECKS}.DeepHealthChecks": command("make health-check"),
    },
    "MoveClusterNodes": {
        "SourceClusterArn": command("make move"),
        "SourceInstanceGroupName": command("make move"),
        "TargetClusterArn": command("make move"),
        "TargetInstanceGroupName": command("make move"),
        "NodeIds": command("make move"),
        "NodeLogicalIds": left_out(_BATCH_IDS),
        "InstanceCount": left_out("a move names its nodes, so that their jobs are known before"),
        "ClientToken": fixed("a new one per move, chosen by botocore"),
    },
    "AttachClusterNodeVolume": {WHOLE: left_out(_ATTACHED)},
    "DetachClusterNodeVolume": {WHOLE: left_out(_ATTACHED)},
    "AttachClusterNodeNetworkInterface": {WHOLE: left_out(_ATTACHED)},
    "ListClusterEvents": {
        "ClusterName": command("make status"),
        "SortBy": fixed("the newest event first"),
        "SortOrder": fixed("the newest event first"),
        "MaxResults": fixed("the newest five"),
        "NextToken": left_out("one page is enough for a report"),
        "InstanceGroupName": left_out("the report covers the whole cluster"),
        "NodeId": left_out("the report covers the whole cluster"),
        "EventTimeAfter": left_out("the newest events are shown at any age"),
        "EventTimeBefore": left_out("the newest events are shown at any age"),
        "ResourceType": left_out("the report covers the whole cluster"),
        "OperationId": left_out("the report covers the whole cluster"),
    },
    "DescribeClusterEvent": {WHOLE: left_out("ListClusterEvents has the description")},
    "ListClusterOperations": {
        "ClusterName": command("make status"),
        "SortBy": fixed("the newest operation first"),
        "SortOrder": fixed("the newest operation first"),
        "MaxResults": fixed("the newest five"),
        "NextToken": left_out("one page is enough for a report"),
        "Status": left_out("the report covers all states and types"),
        "Type": left_out("the report covers all states and types"),
        "CreationTimeAfter": left_out("the newest operations are shown at any age"),
        "CreationTimeBefore": left_out("the newest operations are shown at any age"),
    },
    "DescribeClusterOperation": {
        "ClusterName": command("make status"),
        "OperationId": command("make status"),
    },
    "CreateClusterExtension": {WHOLE: left_out(_EXTENSIONS)},
    "UpdateClusterExtension": {WHOLE: left_out(_EXTENSIONS)},
    "DeleteClusterExtension": {WHOLE: left_out(_EXTENSIONS)},
    "DescribeClusterExtension": {WHOLE: left_out(_EXTENSIONS)},
    "ListClusterExtensions": {WHOLE: left_out(_EXTENSIONS)},
    "ListClusterExtensionVersions": {WHOLE: left_out(_EXTENSIONS)},
    "CreateClusterSchedulerConfig": {
        "Name": field("name"),
        "ClusterArn": fixed("the cluster of the stack"),
        "SchedulerConfig.PriorityClasses[].Name": field("task_governance.priority_classes.name"),
        "SchedulerConfig.PriorityClasses[].Weight": field(
            "task_governance.priority_classes.weight"
        ),
        "SchedulerConfig.FairShare": field("task_governance.fair_share"),
        "SchedulerConfig.IdleResourceSharing": field("task_governance.lend_unallocated"),
        "Description": left_out("the cluster file describes the policy"),
        "Tags[].Key": field("tags"),
        "Tags[].Value": field("tags"),
    },
    "UpdateClusterSchedulerConfig": {
        "ClusterSchedulerConfigId": fixed("the id that the service chose"),
        "TargetVersion": fixed("the version that the service reports"),
    },
    "DescribeClusterSchedulerConfig": {WHOLE: command("make deploy")},
    "DeleteClusterSchedulerConfig": {WHOLE: command("make destroy")},
    "ListClusterSchedulerConfigs": {WHOLE: left_out("the stack knows its policy's id")},
    "CreateComputeQuota": {
        "Name": field("task_governance.teams.name"),
        "Description": left_out("the cluster file describes the quota"),
        "ClusterArn": fixed("the cluster of the stack"),
        f"{_QUOTA}.InstanceType": field("task_governance.teams.quota.instance_type"),
        f"{_QUOTA}.Count": field("task_governance.teams.quota.num_instances"),
        f"{_QUOTA}.Accelerators": field("task_governance.teams.quota.num_accelerators"),
        f"{_QUOTA}.VCpu": field("task_governance.teams.quota.vcpus"),
        f"{_QUOTA}.MemoryInGiB": field("task_governance.teams.quota.memory_gib"),
        f"{_QUOTA}.AcceleratorPartition.Type": field("task_governance.teams.quota.mig_profile"),
        f"{_QUOTA}.AcceleratorPartition.Count": field("task_governance.teams.quota.num_slices"),
        "ComputeQuotaConfig.ResourceSharingConfig.Strategy": field("task_governance.teams.sharing"),
        "ComputeQuotaConfig.ResourceSharingConfig.BorrowLimit": field(
            "task_governance.teams.borrow_limit_percent"
        ),
        "ComputeQuotaConfig.ResourceSharingConfig.AbsoluteBorrowLimits": whole_field(
            "task_governance.teams.borrow_limits"
        ),
        "ComputeQuotaConfig.PreemptTeamTasks": field("task_governance.teams.preemption"),
        "ComputeQuotaTarget.TeamName": field("task_governance.teams.name"),
        "ComputeQuotaTarget.FairShareWeight": field("task_governance.teams.fair_share_weight"),
        "ActivationState": fixed("Enabled"),
        "Tags[].Key": field("tags"),
        "Tags[].Value": field("tags"),
    },
    "UpdateComputeQuota": {
        "ComputeQuotaId": fixed("the id that the service chose"),
        "TargetVersion": fixed("the version that the service reports"),
    },
    "DescribeComputeQuota": {WHOLE: command("make deploy")},
    "DeleteComputeQuota": {WHOLE: command("make destroy")},
    "ListComputeQuotas": {WHOLE: left_out("the stack knows its quotas' ids")},
    "DescribeTrainingPlan": {WHOLE: command("make preflight")},
    "SearchTrainingPlanOfferings": {
        "InstanceType": command(_SEARCH),
        "InstanceCount": command(_SEARCH),
        "UltraServerType": command(_SEARCH),
        "UltraServerCount": command(_SEARCH),
        "StartTimeAfter": command(_SEARCH),
        "EndTimeBefore": command(_SEARCH),
        "DurationHours": command(_SEARCH),
        "TargetResources": fixed("hyperpod-cluster"),
        "TrainingPlanArn": command(_SEARCH),
    },
    "CreateTrainingPlan": {
        "TrainingPlanName": command(_BUY),
        "TrainingPlanOfferingId": command(_BUY),
        "SpareInstanceCountPerUltraServer": left_out("the service's default of one applies"),
        "Tags[].Key": field("tags"),
        "Tags[].Value": field("tags"),
    },
    "ExtendTrainingPlan": {"TrainingPlanExtensionOfferingId": command("make plans-extend")},
    "ListTrainingPlans": {
        "SortBy": fixed("the earliest start first"),
        "SortOrder": fixed("the earliest start first"),
        "NextToken": command(_LIST_PLANS),
        "MaxResults": left_out("all pages are read, in the size that the service chooses"),
        "StartTimeAfter": left_out("the list has all plans"),
        "StartTimeBefore": left_out("the list has all plans"),
        "Filters": left_out("the list has all plans"),
    },
    "DescribeTrainingPlanExtensionHistory": {WHOLE: command("make plans-extend")},
    "DescribeReservedCapacity": {WHOLE: left_out("DescribeTrainingPlan has what preflight needs")},
    "ListUltraServersByReservedCapacity": {
        WHOLE: left_out("a group of UltraServers names its plan only")
    },
}
"""Entries of each request. A request that updates also has those of the request that creates."""
CREATED_BY: Mapping[str, str] = {
    "UpdateCluster": "CreateCluster",
    "UpdateClusterSchedulerConfig": "CreateClusterSchedulerConfig",
    "UpdateComputeQuota": "CreateComputeQuota",
}
"""Requests that update, and the request that creates, from which members without an entry are taken."""
TYPES: Mapping[str, str] = {
    "CreateCluster": "AWS::SageMaker::Cluster",
    "CreateComputeQuota": "AWS::SageMaker::ComputeQuota",
}
"""CloudFormation's types of what a request creates. CloudFormation has none for the other requests, at least
in some regions, or the pinned registry lacks it."""
