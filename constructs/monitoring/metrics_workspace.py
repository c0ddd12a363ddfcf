"""Amazon Managed Service for Prometheus: the workspace of a cluster, and its alert manager."""

from typing import Any

import yaml
from aws_cdk import aws_aps as aps
from aws_cdk import aws_kms as kms

from config.cluster import Cluster
from config.resource_names import ResourceNames
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
    """Amazon Managed Service for Prometheus workspace, named as the cluster, with its own log.

    Its alerts go to the topic, if there is one.
    """

    def __init__(
        self, scope: Construct, *, cluster: Cluster, key: kms.IKey | None, alerts: AlertTopic | None
    ) -> None:
        super().__init__(scope, "Metrics")
        log = log_group(
            self,
            "Log",
            key=key,
            # The prefix under which CloudWatch lets AWS services deliver without a policy for each group.
            log_group_name=ResourceNames(cluster).metrics_log_group,
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
            # The alert manager of one workspace (user guide of Amazon Managed Service for Prometheus).
            source = {"ArnEquals": {"aws:SourceArn": self.workspace.attr_arn}}
            let_publish(alerts.topic, "Prometheus", PROMETHEUS, source, "sns:GetTopicAttributes")
        self.to_write = Statement("WriteMetrics", ["aps:RemoteWrite"], [self.workspace.attr_arn])
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
        # 100 characters at most, which SNS takes.
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
    """Return the service's file, which holds Alertmanager's configuration as text.

    ``topic_arn`` may be a token, so no line is broken.
    """
    inner = yaml.safe_dump(alert_manager_config(cluster, topic_arn), sort_keys=False, width=10_000)
    return yaml.safe_dump({"alertmanager_config": inner}, default_style="|", width=10_000)
