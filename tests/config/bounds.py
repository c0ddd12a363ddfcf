"""Sources of the bounds of cluster and endpoint files: a shape of AWS's API, or a reason."""

from __future__ import annotations

SAGEMAKER = "sagemaker"
_COUNT = (SAGEMAKER, "ClusterInstanceCount")
_GROUPS = (SAGEMAKER, "ClusterInstanceGroupSpecifications")
_BACKUPS = ("fsx", "AutomaticBackupRetentionDays")
_SPACE_SIZE = (SAGEMAKER, "SpaceEbsVolumeSizeInGb")
_ASSERTION = ("grafana", "AssertionAttribute")

AWS_BOUNDS: dict[str, tuple[str, str]] = {
    "AccountingDatabase.schema_name": (SAGEMAKER, "ClusterAccountingDatabaseName"),
    "EksCluster.instance_groups": _GROUPS,
    "EksCluster.autoscaling_role": (SAGEMAKER, "RoleArn"),
    "EksInstanceGroup.image_release_version": (SAGEMAKER, "ImageReleaseVersion"),
    "EksInstanceGroup.labels": (SAGEMAKER, "ClusterKubernetesLabels"),
    "EksInstanceGroup.max_instances": _COUNT,
    "EksInstanceGroup.taints": (SAGEMAKER, "ClusterKubernetesTaints"),
    "Endpoint.image": (SAGEMAKER, "ContainerImage"),
    "Endpoint.startup_seconds": (
        SAGEMAKER,
        "ProductionVariantContainerStartupHealthCheckTimeoutInSeconds",
    ),
    "EndpointVpc.subnet_ids": (SAGEMAKER, "Subnets"),
    "ExistingDatabase.endpoint": (SAGEMAKER, "ClusterAccountingDatabaseEndpoint"),
    "ExistingDatabase.secret_arn": (SAGEMAKER, "ClusterAccountingDatabaseSecretArn"),
    "ExistingVpc.security_group_ids": (SAGEMAKER, "VpcSecurityGroupIds"),
    "ExistingVpc.private_subnets": (SAGEMAKER, "Subnets"),
    "HomeFileSystem.backup_days": _BACKUPS,
    "Iam.permissions_boundary": ("iam", "arnType"),
    "Iam.role_path": ("iam", "pathType"),
    "InstanceGroup.ebs_gib": (SAGEMAKER, "ClusterEbsVolumeSizeInGB"),
    "InstanceGroup.execution_role": (SAGEMAKER, "RoleArn"),
    "InstanceGroup.instance_types": (SAGEMAKER, "ClusterInstanceTypes"),
    "InstanceGroup.min_instances": _COUNT,
    "InstanceGroup.name": (SAGEMAKER, "ClusterInstanceGroupName"),
    "InstanceGroup.num_instances": _COUNT,
    "InstanceGroup.scheduled_update": (SAGEMAKER, "CronScheduleExpression"),
    "LustreFileSystem.backup_days": _BACKUPS,
    "RollingUpdate.max_nodes": _COUNT,
    "RollingUpdate.rollback_alarms": (SAGEMAKER, "AutoRollbackAlarms"),
    "RollingUpdate.wait_seconds": (SAGEMAKER, "WaitTimeIntervalInSeconds"),
    "PriorityClass.weight": (SAGEMAKER, "PriorityWeight"),
    "Quota.num_accelerators": (SAGEMAKER, "AcceleratorsAmount"),
    "Quota.num_instances": (SAGEMAKER, "InstanceCount"),
    "Quota.num_slices": (SAGEMAKER, "AcceleratorPartitionConfigCountInteger"),
    "Quota.memory_gib": (SAGEMAKER, "MemoryInGiBAmount"),
    "Quota.vcpus": (SAGEMAKER, "VCpuAmount"),
    "Saml.email_attribute": _ASSERTION,
    "Saml.login_attribute": _ASSERTION,
    "Saml.name_attribute": _ASSERTION,
    "Saml.role_attribute": _ASSERTION,
    "SlurmCluster.instance_groups": _GROUPS,
    "PartitionOptions.name": (SAGEMAKER, "ClusterPartitionName"),
    "SlurmInstanceGroup.partition": (SAGEMAKER, "ClusterPartitionName"),
    "Studio.idle_minutes": (SAGEMAKER, "IdleTimeoutInMinutes"),
    "Studio.max_space_gib": _SPACE_SIZE,
    "Studio.space_gib": _SPACE_SIZE,
    "StudioProfile.name": (SAGEMAKER, "UserProfileName"),
    "Kubernetes.existing": ("eks", "ClusterName"),
    "Taint.key": (SAGEMAKER, "ClusterKubernetesTaintKey"),
    "TaskGovernance.priority_classes": (SAGEMAKER, "PriorityClassList"),
    "Team.borrow_limits": (SAGEMAKER, "AbsoluteBorrowLimitResourceList"),
    "Team.fair_share_weight": (SAGEMAKER, "FairShareWeight"),
    "Team.quota": (SAGEMAKER, "ComputeQuotaResourceConfigList"),
}
"""Service and shape of botocore's model with the same bounds, by class and field."""

_USER_NAME = "useradd accepts names of up to 32 characters"
_ACCOUNT_NAME = "Slurm's database stores names of accounts and QOS as TINYTEXT, of 255 bytes"
_LABEL = "a name of Kubernetes is a DNS label of 63 characters"
_LIMIT = "Slurm gives the two largest numbers of 32 bits the meanings none and infinite"
_PRINCIPALS = "UpdateInstructionBatch of Grafana's API takes 20 instructions, one for each person"
_TARGET = (
    "Application Auto Scaling documents no maximum; more than 1000 instances are a typing error"
)
_SERVER = (
    "environment variable of our server, which refuses values outside of this range at its start"
)

REASONS: dict[str, str] = {
    "AccessEntry.namespaces": _LABEL,
    "AccessEntry.principal_arn": "longest ARN of a role or user in IAM's API reference, 2048 characters",
    "Account.default_qos": _ACCOUNT_NAME,
    "Account.fairshare": "Slurm's next number means fairshare=parent (SLURMDB_FS_USE_PARENT)",
    "Account.name": _ACCOUNT_NAME,
    "Account.parent": _ACCOUNT_NAME,
    "Account.qos": _ACCOUNT_NAME,
    "AccountingDatabase.backup_days": "RDS keeps automated backups for 0 to 35 days; 0 would disable them",
    "AccountingDatabase.storage_gib": "RDS user guide, gp3 storage of MariaDB: 20 GiB to 64 TiB",
    "Alarms.latency_seconds": "SageMaker ends a request to a real-time endpoint after 60 seconds",
    "Budget.monthly_usd": "a budget of zero would send its alarm with the first cent",
    "Capture.percent": "SageMaker's InitialSamplingPercentage is 0 to 100, and 0 would capture nothing",
    "Cluster.name": "sagemaker-<name>-<account>-<region> is a bucket name of at most 63 characters",
    "Cluster.wait_minutes": "a waiting deployment needs one poll at least, and ends within a day",
    "DataBucket.lustre_path": "it is a folder below the mount path, with the same bound",
    "DataBucket.mount_path": "systemd runs the mount, and its names have up to 255 characters",
    "DataBucket.noncurrent_days": (
        "S3's lifecycle rules begin at one day; more than ten years are a typing error"
    ),
    "Endpoint.model": "SageMaker's shapes of model data, Url and S3ModelUri, have 1024 characters",
    "Endpoint.name": "SageMaker's EndpointName has 63 characters, and our stacks add words to the name",
    "ExistingVpc.other_cidrs": "a VPC has at most 50 ranges (VPC user guide, quotas), of which cidr is one",
    "Grafana.admins": _PRINCIPALS,
    "Grafana.editors": _PRINCIPALS,
    "Grafana.viewers": _PRINCIPALS,
    "HomeFileSystem.capacity_gib": "FSx for OpenZFS user guide, quotas: 64 to 524288 GiB of SSD",
    "Iam.role_name_prefix": "IAM's names of roles have 64 characters, and CloudFormation needs the rest",
    "IdRange.first": "the system and the image's user own the numbers up to 1000",
    "IdRange.last": "numbers from 2**31 on are negative for programs with signed 32 bits",
    "IdRange.owner": "it is shown in one line of messages about numbers",
    "Instances.invocations_per_minute": "a target of zero would scale without end",
    "Instances.max": _TARGET,
    "Instances.min": _TARGET,
    "Instances.scale_in_seconds": (
        "it documents no maximum; with more than an hour, scaling no longer follows the load"
    ),
    "Instances.scale_out_seconds": (
        "it documents no maximum; with more than an hour, scaling no longer follows the load"
    ),
    "JobLimits.max_gpus": _LIMIT,
    "JobLimits.max_jobs": _LIMIT,
    "JobLimits.max_nodes": _LIMIT,
    "JobLimits.max_submitted_jobs": _LIMIT,
    "Kubernetes.entries_in_cluster_stack": "160 always fit beside 60 teams, and deployed stacks have them",
    "Kubernetes.public_access_cidrs": "EKS user guide, service quotas: 40 public ranges for a cluster",
    "Kubernetes.role": "longest ARN of a role in IAM's API reference, 2048 characters",
    "KubernetesService.cpus": "the largest node that serves has 192 processors",
    "KubernetesService.gpus": "the server computes on one device; replicas use more",
    "KubernetesService.memory_gib": "the server needs 2 GiB without a model; the largest node has 2048",
    "KubernetesService.replicas": "one Service of Kubernetes has endpoints in slices of up to 1000",
    "Limits.drain_seconds": _SERVER,
    "Limits.max_body_bytes": "SageMaker's real-time endpoints take payloads of up to 25 MiB",
    "Limits.max_proteins": _SERVER,
    "Limits.max_residues": _SERVER,
    "Limits.max_waiting_residues": _SERVER,
    "Limits.timeout_seconds": _SERVER,
    "Limits.tokens_per_pack": _SERVER,
    "LustreFileSystem.mount_path": (
        "systemd escapes the path into the name of a mount unit, which has 255 characters"
    ),
    "MemoryStates.percent": (
        "HyperPod's guide requires 20 of 100 percent; a pod of a job needs the rest, less 15 for Kubernetes"
    ),
    "NewVpc.availability_zone_ids": "the plan of addresses has small subnets for three zones",
    "NewVpc.private_prefix_length": "a /16 with three zones; below /26 no file system and node fit",
    "Observability.emails": (
        "each address confirms its subscription by hand; a mailing list reaches more people"
    ),
    "Observability.free_space_percent": "above half, the alarm would stand from the first day",
    "Observability.idle_gpu_hours": (
        "after three days of idle GPUs, the money is spent before the alarm comes"
    ),
    "PartitionOptions.allow_accounts": _ACCOUNT_NAME,
    "PartitionOptions.allow_qos": _ACCOUNT_NAME,
    "PartitionOptions.max_nodes": _LIMIT,
    "PartitionOptions.priority_tier": "slurm.conf manual, PriorityTier: at most 65533",
    "PartitionOptions.qos": _ACCOUNT_NAME,
    "PriorityClass.name": "pattern of SageMaker's ClusterSchedulerPriorityClassName has 40 characters",
    "Proxy.no_proxy": "longest name of DNS, 255 characters; a longer list belongs into domains",
    "Proxy.url": "longest name of DNS, 255 characters, which includes scheme and port here",
    "Qos.name": _ACCOUNT_NAME,
    "Qos.priority": "Slurm stores 32 bits; half of them hold in programs with a sign",
    "RollingUpdate.max_percent": "a batch has one part in a hundred at least, and all nodes at most",
    "Saml.metadata_url": "IdpMetadataUrl of Grafana's API has up to 2048 characters",
    "SlurmInstanceGroup.weight": "orders need few numbers; Slurm itself stores 32 bits",
    "SlurmStudio.profiles": "as in Studio, which has the reason for both",
    "SlurmStudioProfile.cluster_user": _USER_NAME,
    "Studio.profiles": "each has up to six resources, and a stack of CloudFormation holds 500",
    "StudioProfile.sign_in_name": "names of IAM Identity Center have up to 256 characters here",
    "Team.borrow_limit_percent": "API reference of ResourceSharingConfig: 1 to 500 percent",
    "Team.name": "pattern of SageMaker's ComputeQuotaTargetTeamName has 40 characters",
    "User.account": _ACCOUNT_NAME,
    "User.group": _USER_NAME,
    "User.groups": _USER_NAME,
    "User.name": _USER_NAME,
    "User.ssh_keys": "twenty machines of one person; a longer list is usually of several people",
    "UserGroup.name": _USER_NAME,
}
"""Limits that no shape of the API has, and bounds that are narrower than AWS's, with the reason."""
