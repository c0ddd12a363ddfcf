"""The Slurm cluster and what goes with it when it is destroyed."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from aws_cdk import CfnOutput, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sagemaker as sagemaker
from aws_cdk import aws_ssm as ssm

from config.cluster_files import DEFAULT_CLUSTER_FILE
from config.node_settings import HOME_MOUNT_PATH, node_settings_text
from config.resource_names import ResourceNames
from config.slurm_cluster import SlurmCluster
from constructs import Construct
from constructs.monitoring.cost_budget import cost_budget
from constructs.nodes import node_roles
from constructs.nodes.instance_group import StorageConfig, hyperpod_cluster, instance_group, volumes
from constructs.nodes.lifecycle_entry import lifecycle_entry
from constructs.policy.statement_role import Statement, statement_role
from constructs.storage.hashed_upload import HashedUpload
from constructs.storage.log_group import log_group
from constructs.vpc.network import Network
from stacks.remaining_costs import remaining_costs
from stacks.storage_stack import StorageStack
from stacks.studio_stack import StudioStack

REPOSITORY = Path(__file__).parents[1]
SETTINGS = "settings.json"
"""Settings of the cluster file, which are part of the scripts' hash."""
DEPLOYMENT = "deployment.json"
"""Values that only the deployment knows; tokens are texts without quotes or backslashes."""
ON_INIT_COMPLETE = "on_init_complete.sh"
"""Runs once on each new node, after the image has set up Slurm and the mounts."""
NODE_USER = "ubuntu"
"""The user of HyperPod's Slurm images."""
IDLE_MINUTES = "20"
_NODE_TYPES = {"controller": "Controller", "login": "Login", "worker": "Compute"}


class SlurmHyperPodStack(Stack):
    """Nodes, their roles and scripts, session document and budget: what can be destroyed over night."""

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
        # Also for what no property refers to: the data repository association.
        self.add_stack_dependency(storage)
        key = storage.key
        common = node_roles.node_statements(
            self,
            cluster,
            network=network,
            prefixes=[
                node_roles.LIFECYCLE_PREFIX,
                node_roles.WORKLOAD_PREFIX,
                *([node_roles.MIRROR_PREFIX] if cluster.node_setup.downloads == "artifact_bucket" else []),
            ],
            repository=storage.image_repository,
            key=key,
        )
        own = {"controller": self._controller_statements(storage, studio)}
        roles: dict[str, iam.Role] = {
            role: node_roles.node_role(
                self, f"{role.capitalize()}Role", cluster, [*common, *own.get(role, [])]
            )
            for role in sorted({group.role for group in cluster.instance_groups})
        }
        files = Construct(self, "NodeFiles")
        log = log_group(files, "Log", key=key)
        upload = partial(HashedUpload, files, artifact_bucket=storage.artifact_bucket, key=key, log=log)
        workloads = upload("Workloads", prefix=node_roles.WORKLOAD_PREFIX, folder=REPOSITORY / "workloads")
        deployment = {
            "artifact_bucket": workloads.bucket_name,
            "mlflow": self._mlflow(storage, roles),
            "remote_write_url": storage.metrics.remote_write_url if storage.metrics else None,
            "studio": studio.for_controller() if studio else None,
            "workload_s3_uri": workloads.s3_uri,
        }
        lifecycle = upload(
            "Lifecycle",
            prefix=node_roles.LIFECYCLE_PREFIX,
            folder=REPOSITORY / "lifecycle" / "slurm",
            extra_files={SETTINGS: node_settings_text(cluster)},
            deployment_files={DEPLOYMENT: json.dumps(deployment, indent=2, sort_keys=True) + "\n"},
        )
        entry, entry_uri = lifecycle_entry(files, lifecycle, cluster.region, ON_INIT_COMPLETE, [workloads])
        hyperpod = self._hyperpod(cluster, network, storage, roles, entry_uri)
        # CloudWatch's agent would create this group without a key. It also exists with the agent off, because
        # nodes with earlier settings would create it again.
        node_log = log_group(self, "NodeLog", key=key, log_group_name=ResourceNames(cluster).node_log_group)
        hyperpod.node.add_dependency(*roles.values(), entry, node_log)
        self._session_document(cluster, storage)
        if cluster.budget:
            cost_budget(self, cluster, cluster.budget, storage.alerts)
        metrics = {"PrometheusRemoteWriteUrl": storage.metrics.remote_write_url} if storage.metrics else {}
        outputs = {
            **metrics,
            "ClusterName": cluster.name,
            "ClusterArn": hyperpod.attr_cluster_arn,
            "ConnectCommand": self._make("connect"),
            "ApplyLifecycleCommand": self._make("apply-lifecycle"),
            "LifecycleSourceS3Uri": lifecycle.s3_uri,
            "WorkloadSourceS3Uri": workloads.s3_uri,
            "DataBucketName": storage.data_bucket.bucket_name,
            "ArtifactBucketName": lifecycle.bucket_name,
            "LustreFileSystemId": storage.lustre.file_system_id,
            "LustreMountName": storage.lustre.mount_name,
            "ImageUri": storage.image_repository.repository_uri,
            "SessionDocumentName": ResourceNames(cluster).shell_document,
            "BillsUntilTeardown": ", ".join(remaining_costs(cluster)),
        }
        for output, value in outputs.items():
            CfnOutput(self, output, value=value)

    def _hyperpod(
        self,
        cluster: SlurmCluster,
        network: Network,
        storage: StorageStack,
        roles: Mapping[str, iam.Role],
        lifecycle_s3_uri: str,
    ) -> sagemaker.CfnCluster:
        """Create a cluster whose Slurm the service configures from node types, partitions and mounts.

        There is no ``OnCreate`` and no ``provisioning_parameters.json``: with either, the image would leave
        the setup to scripts.
        """
        mounts, database = _mounts(storage), storage.accounting_database
        groups = [
            instance_group(
                group,
                network,
                roles[group.role],
                slurm_config={
                    "nodeType": _NODE_TYPES[group.role],
                    "partitionNames": [group.partition] if group.partition else None,
                },
                life_cycle_config={"sourceS3Uri": lifecycle_s3_uri, "onInitComplete": ON_INIT_COMPLETE},
                # At most four, as many as the service takes.
                instance_storage_configs=[*volumes(group, storage.key), *mounts],
            )
            for group in cluster.instance_groups
        ]
        slurm = {
            "slurmConfigStrategy": cluster.slurm_config_strategy.capitalize(),
            "accountingDatabase": database.for_slurm if database else None,
        }
        return hyperpod_cluster(self, cluster, network, groups, orchestrator={"slurm": slurm})

    def _controller_statements(self, storage: StorageStack, studio: StudioStack | None) -> list[Statement]:
        """Work for Studio, the accounting database, and the metrics of all nodes."""
        statements = studio.controller_statements() if studio else []
        if storage.accounting_database:
            secret = storage.accounting_database.secret.secret_arn
            statements.append(Statement("ReadDatabaseSecret", ["secretsmanager:GetSecretValue"], [secret]))
        if storage.metrics:
            statements.append(storage.metrics.to_write)
        return statements

    def _mlflow(self, storage: StorageStack, roles: Mapping[str, iam.Role]) -> dict[str, str] | None:
        """Its address, and the role that workers take on for their jobs, since the nodes' own may do more."""
        if storage.mlflow is None:
            return None
        jobs = statement_role(
            self,
            "JobRole",
            description="Jobs that log to MLflow",
            # Named here, the nodes' role needs no statement of its own.
            assumed_by=iam.ArnPrincipal(roles["worker"].role_arn),
            policy_name="LogRuns",
            statements=[storage.mlflow.to_log_runs],
        )
        return {"tracking_uri": storage.mlflow.arn, "role_arn": jobs.role_arn}

    def _session_document(self, cluster: SlurmCluster, storage: StorageStack) -> None:
        """Create Session Manager's document ``<cluster name>-shell``: a login shell as ubuntu, not as root.

        With a key, what is typed and shown is encrypted with it on its way, on top of TLS.
        """
        inputs: dict[str, Any] = {
            "runAsEnabled": True,
            "runAsDefaultUser": NODE_USER,
            "idleSessionTimeout": IDLE_MINUTES,
            "shellProfile": {"linux": "cd && exec bash --login"},
        }
        if storage.key:
            inputs["kmsKeyId"] = storage.key.key_arn
        ssm.CfnDocument(
            Construct(self, "Session"),
            "Document",
            name=ResourceNames(cluster).shell_document,
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

    def _make(self, target: str) -> str:
        """The command for this cluster; the default file need not be named."""
        file = self.node.try_get_context("cluster")
        is_default = file in (None, str(DEFAULT_CLUSTER_FILE))
        return f"make {target}" if is_default else f"make {target} CLUSTER={file}"


def _mounts(storage: StorageStack) -> list[StorageConfig]:
    """Mounts of every node."""
    lustre, home = storage.lustre, storage.home
    config = {"dnsName": lustre.dns_name, "mountName": lustre.mount_name, "mountPath": lustre.mount_path}
    mounts = [StorageConfig(fsx_lustre_config=config)]
    if home:
        config = {"dnsName": home.dns_name, "mountPath": HOME_MOUNT_PATH}
        mounts.append(StorageConfig(fsx_open_zfs_config=config))
    return mounts
