"""Where Prometheus' alerts go: the definition that Amazon Managed Service for Prometheus takes.

Its only receiver is SNS (user guide, "Alert manager definition file").
"""

from __future__ import annotations

from typing import Any

import yaml

from config.cluster import Cluster

_MESSAGE = (
    "{{ range .Alerts }}{{ .Status }} ({{ .Labels.severity }}): {{ .Annotations.summary }}\n"
    "What to do: {{ .Annotations.action }}\n"
    "Since {{ .StartsAt }}\n\n{{ end }}"
)


def alert_manager_config(cluster: Cluster, topic_arn: str) -> dict[str, Any]:
    """Alertmanager's own configuration: alerts of a name together, again each day while they last."""
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
    """The service's file, which holds Alertmanager's as a text.

    ``topic_arn`` may be a token: no line is broken.
    """
    inner = yaml.safe_dump(alert_manager_config(cluster, topic_arn), sort_keys=False, width=10_000)
    return yaml.safe_dump({"alertmanager_config": inner}, default_style="|", width=10_000)
