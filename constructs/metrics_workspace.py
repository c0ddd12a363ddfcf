"""Where the nodes' metrics go."""

from __future__ import annotations

from aws_cdk import aws_aps as aps
from aws_cdk import aws_kms as kms

from config.alert_routes import alert_manager_definition
from config.cluster import Cluster
from config.resource_names import metrics_log_group
from constructs import Construct
from constructs.alert_topic import AlertTopic
from constructs.log_group import log_group

LOG_DAYS = 30


class MetricsWorkspace(Construct):
    """Amazon Managed Service for Prometheus workspace, named as the cluster, with its own log.

    Its alerts go to the topic, if there is one.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        cluster: Cluster,
        key: kms.IKey | None,
        alerts: AlertTopic | None,
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
            alert_manager_definition=(
                alert_manager_definition(cluster, alerts.topic.topic_arn) if alerts else None
            ),
            kms_key_arn=key.key_arn if key else None,
            logging_configuration=aps.CfnWorkspace.LoggingConfigurationProperty(log_group_arn=log.attr_arn),
        )
        if alerts:
            alerts.let_prometheus(self.workspace.attr_arn)
        # The endpoint ends with a slash.
        self.remote_write_url = f"{self.workspace.attr_prometheus_endpoint}api/v1/remote_write"
