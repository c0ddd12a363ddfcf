"""The Slurm cluster and what goes with it when it is destroyed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aws_cdk import CfnOutput, Stack
from aws_cdk import aws_iam as iam

from config import resource_names
from config.slurm_cluster import SlurmCluster as Settings
from constructs import Construct, IDependable
from constructs.monitoring.cost_budget import CostBudget
from constructs.nodes.node_files import NodeFiles
from constructs.nodes.node_roles import (
    LIFECYCLE_PREFIX,
    MIRROR_PREFIX,
    WORKLOAD_PREFIX,
    node_role,
    node_statements,
)
from constructs.nodes.slurm_cluster import SlurmCluster, run_as_document
from constructs.policy.statement_role import Statement, statement_role
from constructs.storage.log_group import log_group
from constructs.vpc.network import Network
from stacks.remaining_costs import remaining_costs
from stacks.storage_stack import StorageStack
from stacks.studio_stack import StudioStack

DEFAULT_CLUSTER = "clusters/slurm.yaml"
"""The file that app and make take when none is named."""


class SlurmHyperPodStack(Stack):
    """Nodes, their roles and scripts, session document and budget: what can be destroyed over night."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        cluster: Settings,
        network: Network,
        storage: StorageStack,
        studio: StudioStack | None,
        **stack_arguments: Any,
    ) -> None:
        super().__init__(scope, construct_id, **stack_arguments)
        # Also for what no property refers to: the data repository association.
        self.add_stack_dependency(storage)
        key = storage.key
        common = node_statements(
            self,
            cluster_name=cluster.name,
            network=network,
            bucket_name=resource_names.artifact_bucket(cluster, self.account),
            prefixes=[
                LIFECYCLE_PREFIX,
                WORKLOAD_PREFIX,
                *([MIRROR_PREFIX] if cluster.node_setup.downloads == "artifact_bucket" else []),
            ],
            repository=storage.image_repository,
            key=key,
        )
        own = {"controller": self._controller_statements(storage, studio)}
        roles: dict[str, iam.Role] = {
            role: node_role(self, f"{role.capitalize()}Role", cluster.name, [*common, *own.get(role, [])])
            for role in sorted({group.role for group in cluster.instance_groups})
        }
        files = NodeFiles(
            self,
            "NodeFiles",
            cluster=cluster,
            artifact_bucket=storage.artifact_bucket,
            key=key,
            deployment={
                "remote_write_url": storage.metrics.remote_write_url if storage.metrics else None,
                "mlflow": self._mlflow(storage, roles),
                "studio": studio.for_controller() if studio else None,
            },
        )
        hyperpod = SlurmCluster(
            self,
            "Cluster",
            settings=cluster,
            network=network,
            roles=roles,
            lifecycle_s3_uri=files.lifecycle.s3_uri,
            lustre=storage.lustre,
            home=storage.home,
            key=key,
            database=storage.accounting_database,
            depends_on=[files.lifecycle, files.workloads, self._node_log(cluster, storage)],
        )
        run_as_document(self, "Session", cluster=cluster, key=key)
        if cluster.budget:
            CostBudget(self, "Budget", cluster=cluster, budget=cluster.budget, alerts=storage.alerts)
        metrics = {"PrometheusRemoteWriteUrl": storage.metrics.remote_write_url} if storage.metrics else {}
        self._outputs(
            **metrics,
            ClusterName=cluster.name,
            ClusterArn=hyperpod.resource.attr_cluster_arn,
            ConnectCommand=self._make("connect"),
            ApplyLifecycleCommand=self._make("apply-lifecycle"),
            LifecycleSourceS3Uri=files.lifecycle.s3_uri,
            WorkloadSourceS3Uri=files.workloads.s3_uri,
            DataBucketName=storage.data_bucket.bucket_name,
            ArtifactBucketName=files.lifecycle.bucket_name,
            LustreFileSystemId=storage.lustre.file_system_id,
            LustreMountName=storage.lustre.mount_name,
            ImageUri=storage.image_repository.repository_uri,
            SessionDocumentName=resource_names.shell_document(cluster),
            BillsUntilTeardown=", ".join(remaining_costs(cluster)),
        )

    def _controller_statements(self, storage: StorageStack, studio: StudioStack | None) -> list[Statement]:
        """Work for Studio, the accounting database, and the metrics of all nodes."""
        statements = studio.controller_statements() if studio else []
        if storage.accounting_database:
            secret = storage.accounting_database.secret.secret_arn
            statements.append(Statement("ReadDatabaseSecret", ["secretsmanager:GetSecretValue"], [secret]))
        if storage.metrics:
            statements.append(storage.metrics.to_write)
        return statements

    def _node_log(self, cluster: Settings, storage: StorageStack) -> IDependable:
        """Create the log group of CloudWatch's agent before nodes, because the agent's has no key.

        It also exists with the agent switched off, because nodes with earlier settings would create it again.
        """
        name = resource_names.node_log_group(cluster)
        return log_group(self, "NodeLog", key=storage.key, log_group_name=name)

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

    def _make(self, target: str) -> str:
        """The command for this cluster; the default file need not be named."""
        file = self.node.try_get_context("cluster")
        return f"make {target}" if file in (None, DEFAULT_CLUSTER) else f"make {target} CLUSTER={file}"

    def _outputs(self, **values: str) -> None:
        for name, value in values.items():
            CfnOutput(self, name, value=value)
