"""Slurm cluster, with everything that is deleted when it is destroyed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aws_cdk import CfnOutput, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sagemaker as sagemaker

from config.cluster_files import DEFAULT_CLUSTER_FILE
from config.node_settings import HOME_MOUNT_PATH, node_settings_text
from config.resource_names import ResourceNames
from config.slurm_cluster import SlurmCluster
from constructs import Construct
from constructs.monitoring.cost_budget import CostBudget
from constructs.monitoring.health_log import HealthLog
from constructs.nodes import node_roles
from constructs.nodes.instance_group import HyperPodCluster, StorageConfig, instance_group, volumes
from constructs.nodes.lifecycle_entry import lifecycle_entry
from constructs.nodes.shell_document import ShellDocument
from constructs.policy.statement_role import Statement, statement_role
from constructs.storage.hashed_upload import HashedUpload, UploadedFiles, UploadTarget
from constructs.storage.log_group import log_group
from constructs.vpc.network import Network
from stacks.remaining_costs import remaining_costs
from stacks.storage_stack import StorageStack
from stacks.studio_stack import StudioStack

REPOSITORY = Path(__file__).parents[1]
SETTINGS = "settings.json"
"""File with the settings of the cluster file, which is part of the scripts' hash."""
DEPLOYMENT = "deployment.json"
"""File with values that exist only at deployment.

It is written with tokens, which contain no quotes or backslashes, which makes them valid within JSON.
"""
ON_INIT_COMPLETE = "on_init_complete.sh"
"""Script that runs once on each new node, after the image has set up Slurm and the mounts."""
_NODE_TYPES = {"controller": "Controller", "login": "Login", "worker": "Compute"}
"""HyperPod's node types by role in the cluster file."""


class SlurmHyperPodStack(Stack):
    """Nodes, their roles and scripts, session document and budget, which can be destroyed overnight."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        cluster: SlurmCluster,
        network: Network,
        storage: StorageStack,
        studio: StudioStack | None,
        **stack_arguments: Any,
    ) -> None:
        super().__init__(scope, construct_id, **stack_arguments)
        # The dependency covers the data repository association, to which no property refers.
        self.add_stack_dependency(storage)
        key = storage.key
        names = ResourceNames(cluster)
        prefixes = [node_roles.LIFECYCLE_PREFIX, node_roles.WORKLOAD_PREFIX]
        if cluster.node_setup.downloads == "artifact_bucket":
            prefixes.append(node_roles.MIRROR_PREFIX)
        common = node_roles.node_statements(
            self,
            cluster,
            network=network,
            prefixes=prefixes,
            repository=storage.image_repository,
            key=key,
        )
        if cluster.storage.data_bucket.mount_path:
            common += node_roles.mounted_bucket_statements(_bucket_arn(cluster, storage), key)
        roles: dict[str, iam.Role] = {}
        created_roles = {
            group.role for group in cluster.instance_groups if not group.execution_role
        }
        for role in sorted(created_roles):
            statements = list(common)
            if role == "controller":
                statements += _controller_statements(storage, studio)
            construct_id = f"{role.capitalize()}Role"
            created = node_roles.NodeRole(
                self, construct_id, cluster=cluster, statements=statements
            )
            roles[role] = created.role
        role_of = {
            group.name: node_roles.existing_node_role(
                self, f"ExistingRole-{group.name}", group=group
            )
            or roles[group.role]
            for group in cluster.instance_groups
        }
        files = Construct(self, "NodeFiles")
        log = log_group(files, "Log", key=key)
        target = UploadTarget(storage.artifact_bucket, key, log)
        workloads = HashedUpload(
            files,
            "Workloads",
            target=target,
            prefix=node_roles.WORKLOAD_PREFIX,
            files=UploadedFiles(REPOSITORY / "workloads"),
        )
        deployment = {
            "artifact_bucket": workloads.bucket_name,
            "data_bucket": storage.data_bucket.bucket_name
            if cluster.storage.data_bucket.mount_path
            else None,
            "mlflow": self._mlflow(cluster, storage, role_of),
            "remote_write_url": storage.metrics.remote_write_url if storage.metrics else None,
            "studio": studio.controller_settings() if studio else None,
            "workload_s3_uri": workloads.s3_uri,
        }
        lifecycle = HashedUpload(
            files,
            "Lifecycle",
            target=target,
            prefix=node_roles.LIFECYCLE_PREFIX,
            files=UploadedFiles(
                REPOSITORY / "lifecycle" / "slurm",
                extra={SETTINGS: node_settings_text(cluster)},
                deployment={DEPLOYMENT: json.dumps(deployment, indent=2, sort_keys=True) + "\n"},
            ),
        )
        entry = lifecycle_entry(
            files,
            "Current",
            scripts=lifecycle,
            region=cluster.region,
            script=ON_INIT_COMPLETE,
            after=[workloads],
        )
        hyperpod = self._hyperpod(cluster, network, storage, role_of, entry.source_s3_uri)
        # CloudWatch's agent would create this group without a key. The group also exists if the agent is off,
        # because nodes with earlier settings would create it again.
        node_log = log_group(self, "NodeLog", key=key, log_group_name=names.node_log_group)
        hyperpod.node.add_dependency(*roles.values(), entry.upload, node_log)
        ShellDocument(
            self, "Session", name=names.shell_document, cluster_name=cluster.name, key=key
        )
        if cluster.observability:
            HealthLog(
                self,
                "HealthLog",
                cluster_name=cluster.name,
                cluster_arn=hyperpod.attr_cluster_arn,
                key=key,
                log=log,
            )
        if cluster.budget:
            CostBudget(
                self, "Budget", cluster=cluster, budget=cluster.budget, alerts=storage.alerts
            )
        outputs = {
            "ClusterName": cluster.name,
            "ClusterArn": hyperpod.attr_cluster_arn,
            "ConnectCommand": self._make("connect"),
            "ApplyLifecycleCommand": self._make("apply-lifecycle"),
            "LifecycleSourceS3Uri": lifecycle.s3_uri,
            "WorkloadSourceS3Uri": workloads.s3_uri,
            "DataBucketName": storage.data_bucket.bucket_name,
            "ArtifactBucketName": lifecycle.bucket_name,
            **_lustre_outputs(storage),
            "ImageUri": storage.image_repository.repository_uri,
            "SessionDocumentName": names.shell_document,
            "BillsUntilTeardown": ", ".join(remaining_costs(cluster)),
        }
        if storage.metrics:
            outputs["PrometheusRemoteWriteUrl"] = storage.metrics.remote_write_url
        for output, value in outputs.items():
            CfnOutput(self, output, value=value)

    def _hyperpod(
        self,
        cluster: SlurmCluster,
        network: Network,
        storage: StorageStack,
        role_of: Mapping[str, iam.IRole],
        lifecycle_s3_uri: str,
    ) -> sagemaker.CfnCluster:
        """Create a cluster for which the service configures Slurm from node types, partitions and mounts.

        It has no ``OnCreate`` and no ``provisioning_parameters.json``, because with either, the image would
        leave the setup to scripts.
        """
        mounts = _mounts(storage)
        database = storage.accounting_database
        groups = [
            instance_group(
                group,
                network,
                role_of[group.name],
                slurm_config={
                    "nodeType": _NODE_TYPES[group.role],
                    "partitionNames": [group.partition] if group.partition else None,
                },
                life_cycle_config={
                    "sourceS3Uri": lifecycle_s3_uri,
                    "onInitComplete": ON_INIT_COMPLETE,
                },
                # At most four storage configurations, which is the service's limit.
                instance_storage_configs=[*volumes(group, storage.key), *mounts],
            )
            for group in cluster.instance_groups
        ]
        slurm = {
            "slurmConfigStrategy": cluster.slurm_config_strategy.capitalize(),
            "accountingDatabase": database.for_slurm if database else None,
        }
        created = HyperPodCluster(
            self,
            "Cluster",
            settings=cluster,
            network=network,
            groups=groups,
            orchestrator={"slurm": slurm},
        )
        return created.resource

    def _mlflow(
        self, cluster: SlurmCluster, storage: StorageStack, role_of: Mapping[str, iam.IRole]
    ) -> dict[str, str] | None:
        """Return MLflow's address and the role of jobs that log to it; None without MLflow.

        Workers assume the role for their jobs, because the workers' own role has more permissions.
        """
        if storage.mlflow is None:
            return None
        workers = [role_of[group.name] for group in cluster.instance_groups if group.runs_jobs]
        arns = list(dict.fromkeys(role.role_arn for role in workers))
        principals: list[iam.IPrincipal] = [iam.ArnPrincipal(arn) for arn in arns]
        jobs = statement_role(
            self,
            "JobRole",
            description="Jobs that log to MLflow",
            # The trust policy names the workers' roles, which then need no statement to assume this role.
            assumed_by=principals[0]
            if len(principals) == 1
            else iam.CompositePrincipal(*principals),
            policy_name="LogRuns",
            statements=[storage.mlflow.to_log_runs],
        )
        return {"tracking_uri": storage.mlflow.arn, "role_arn": jobs.role_arn}

    def _make(self, target: str) -> str:
        """Return the command for this cluster, with its file unless it is the default."""
        file = self.node.try_get_context("cluster")
        if file in (None, str(DEFAULT_CLUSTER_FILE)):
            return f"make {target}"
        return f"make {target} CLUSTER={file}"


def _controller_statements(storage: StorageStack, studio: StudioStack | None) -> list[Statement]:
    """Return the controller's permissions for Studio, the accounting database, and metrics of all nodes."""
    statements = studio.controller_statements() if studio else []
    if storage.accounting_database:
        secret = storage.accounting_database.secret.secret_arn
        statements.append(
            Statement("ReadDatabaseSecret", ["secretsmanager:GetSecretValue"], [secret])
        )
    if storage.metrics:
        statements.append(storage.metrics.to_write)
    return statements


def _bucket_arn(cluster: SlurmCluster, storage: StorageStack) -> str:
    """Return the data bucket's ARN, for a new bucket as its export, whose name a finding contains."""
    arn = storage.data_bucket.bucket_arn
    return arn if cluster.storage.data_bucket.existing else storage.export_value(arn)


def _lustre_outputs(storage: StorageStack) -> dict[str, str]:
    """Return what people need to mount the file system elsewhere, if there is one."""
    if storage.lustre is None:
        return {}
    return {
        "LustreFileSystemId": storage.lustre.file_system_id,
        "LustreMountName": storage.lustre.mount_name,
    }


def _mounts(storage: StorageStack) -> list[StorageConfig]:
    """Return the mounts of every node that HyperPod makes."""
    mounts = []
    if lustre := storage.lustre:
        lustre_config = {
            "dnsName": lustre.dns_name,
            "mountName": lustre.mount_name,
            "mountPath": lustre.mount_path,
        }
        mounts.append(StorageConfig(fsx_lustre_config=lustre_config))
    if storage.home:
        home_config = {"dnsName": storage.home.dns_name, "mountPath": HOME_MOUNT_PATH}
        mounts.append(StorageConfig(fsx_open_zfs_config=home_config))
    return mounts
