"""Amazon Managed Service for Prometheus: the workspace of a cluster, and its alert manager."""

from typing import Any

import yaml
from aws_cdk import aws_aps as aps
from aws_cdk import aws_kms as kms

from config.cluster import Cluster
from constructs import Construct
from constructs.monitoring.alert_topic import PROMETHEUS, AlertTopic, let_publish
from constructs.policy.statement_role import Statement
from constructs.storage.log_group import log_group

_MESSAGE = (
    "{{ range .Alerts }}{{ .Status }} ({{ .Labels.severity }}): {{ .Annotations.summary }}\n"
    "What to do: {{ .Annotations.action }}\n"
    "Since {{ .StartsAt }}\n\n{{ end }}"
)


class MetricsWorkspace(Construct):
    """Workspace of Amazon Managed Service for Prometheus, with its own log.

    Its alerts go to the topic, if there is one.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        cluster: Cluster,
        log_group_name: str,
        key: kms.IKey | None,
        alerts: AlertTopic | None,
    ) -> None:
        """Create the workspace and its log.

        Args:
            scope: parent construct.
            construct_id: id within the parent.
            cluster: cluster file; its name is the workspace's alias.
            log_group_name: name below /aws/vendedlogs/. Services deliver there without a policy per group.
            key: key of the cluster, if it has one.
            alerts: topic of the alerts, if there is one.
        """
        super().__init__(scope, construct_id)
        log = log_group(self, "Log", key=key, log_group_name=log_group_name)
        self.workspace = aps.CfnWorkspace(
            self,
            "Workspace",
            alias=cluster.name,
            alert_manager_definition=(
                alert_manager_definition(cluster, alerts.topic.topic_arn) if alerts else None
            ),
            kms_key_arn=key.key_arn if key else None,
            logging_configuration=aps.CfnWorkspace.LoggingConfigurationProperty(
                log_group_arn=log.attr_arn
            ),
        )
        if alerts:
            # Actions and conditions for one workspace (user guide of Amazon Managed Service for Prometheus,
            # "Giving Amazon Managed Service for Prometheus permission to send alert messages").
            let_publish(
                alerts.topic,
                "Prometheus",
                PROMETHEUS,
                actions=["sns:Publish", "sns:GetTopicAttributes"],
                conditions={"ArnEquals": {"aws:SourceArn": self.workspace.attr_arn}},
            )
        self.to_write = Statement("WriteMetrics", ["aps:RemoteWrite"], [self.workspace.attr_arn])
        """Statement for roles that write metrics."""
        # The endpoint ends with a slash.
        self.remote_write_url = f"{self.workspace.attr_prometheus_endpoint}api/v1/remote_write"


def alert_manager_config(cluster: Cluster, topic_arn: str) -> dict[str, Any]:
    """Return Alertmanager's own configuration: alerts grouped by name, repeated daily while they last.

    SNS is the only receiver of the service (user guide, "Alert manager definition file").
    """
    topic = {
        "topic_arn": topic_arn,
        "sigv4": {"region": cluster.region},
        "send_resolved": True,
        # SNS accepts 100 characters at most.
        "subject": f"{cluster.name}: {{{{ .GroupLabels.alertname }}}} ({{{{ .Status }}}})",
        "message": _MESSAGE,
    }
    return {
        "route": {
            "receiver": "topic",
            "group_by": ["alertname"],
            "group_wait": "1m",
            "group_interval": "10m",
            "repeat_interval": "24h",
        },
        "receivers": [{"name": "topic", "sns_configs": [topic]}],
    }


def alert_manager_definition(cluster: Cluster, topic_arn: str) -> str:
    """Return the service's file, which contains Alertmanager's configuration as text.

    No line is broken, because ``topic_arn`` may be a token.
    """
    inner = yaml.safe_dump(alert_manager_config(cluster, topic_arn), sort_keys=False, width=10_000)
    return yaml.safe_dump({"alertmanager_config": inner}, default_style="|", width=10_000)
