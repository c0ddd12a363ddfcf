"""Where the nodes' metrics go."""

from __future__ import annotations

from aws_cdk import aws_aps as aps
from aws_cdk import aws_kms as kms

from config.cluster import Cluster
from config.resource_names import metrics_log_group
from constructs import Construct
from constructs.log_group import log_group

LOG_DAYS = 30


class MetricsWorkspace(Construct):
    """Amazon Managed Service for Prometheus workspace, named as the cluster, with its own log."""

    def __init__(
        self, scope: Construct, construct_id: str, *, cluster: Cluster, key: kms.IKey | None
    ) -> None:
        super().__init__(scope, construct_id)
        log = log_group(
            self,
            "Log",
            key=key,
            retention_days=LOG_DAYS,
            # The prefix under which CloudWatch lets AWS services deliver without a policy for each group.
            log_group_name=metrics_log_group(cluster),
        )
        self.workspace = aps.CfnWorkspace(
            self,
            "Workspace",
            alias=cluster.name,
            kms_key_arn=key.key_arn if key else None,
            logging_configuration=aps.CfnWorkspace.LoggingConfigurationProperty(log_group_arn=log.attr_arn),
        )
        # The endpoint ends with a slash.
        self.remote_write_url = f"{self.workspace.attr_prometheus_endpoint}api/v1/remote_write"
