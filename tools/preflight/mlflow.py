"""Whether the account has room for managed MLflow, and its name is free."""

from __future__ import annotations

import re
from collections.abc import Iterator

from config.cluster import Cluster
from config.resource_names import mlflow
from tools.preflight.finding import Finding, fail, ok
from tools.preflight.read_only_aws import ReadOnlyAws
from tools.preflight.service_quotas import Quota, judge_quota, quotas_by_name
from tools.preflight.stacks import is_deployed

QUOTAS = {
    "app": re.compile(r"(?!Rate\b).*\bMLflow Apps?\b.*", re.IGNORECASE),
    "tracking_server": re.compile(r"(?!Rate\b).*\bTracking Servers?\b.*", re.IGNORECASE),
}
"""Names of the quotas of how many there may be: no public list of quotas has them."""


def check_mlflow(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    """What is there under the name is the cluster's own if its stack is, too: there is one in it."""
    if not cluster.mlflow:
        return
    name, kind = mlflow(cluster), cluster.mlflow.kind
    names = _names(aws, kind)
    subject = f"MLflow {kind.replace('_', ' ')} {name}"
    if name in names and is_deployed(aws, cluster, "storage"):
        yield ok(subject, "this cluster's own")
        return
    # Apps are told apart by ids, and may have a name in common.
    if name in names and kind == "tracking_server":
        yield fail(
            subject,
            "taken, and not by this cluster's stacks",
            f"change `name`; or, if nobody needs its runs (look into it), `aws sagemaker "
            f"delete-mlflow-tracking-server --tracking-server-name {name}`",
        )
    quotas = [quota for quota in quotas_by_name(aws, "sagemaker") if QUOTAS[kind].fullmatch(quota)]
    for quota in quotas:
        yield judge_quota(aws, Quota("sagemaker", "Amazon SageMaker", quota), used=len(names))
    if not quotas:
        yield ok(subject, f"{len(names)} of the kind are here; Service Quotas has no bound of them")


def _names(aws: ReadOnlyAws, kind: str) -> list[str]:
    if kind == "app":
        apps = aws.items("sagemaker", "list_mlflow_apps", "Summaries")
        return [app["Name"] for app in apps if app.get("Status") != "Deleted"]
    servers = aws.items("sagemaker", "list_mlflow_tracking_servers", "TrackingServerSummaries")
    return [server["TrackingServerName"] for server in servers]
