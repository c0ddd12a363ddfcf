"""Checks of SageMaker's MLflow and Studio: quotas, free names, and sign-in."""

import re
from collections.abc import Iterator

from config.cluster import Cluster
from tools.preflight.finding import Finding, Subject
from tools.preflight.observability import active_instances
from tools.preflight.read_only_aws import ReadOnlyAws
from tools.preflight.service_quotas import SAGEMAKER, Quota, judge_quota, quotas_by_name
from tools.preflight.stacks import is_deployed

STUDIO = Subject("Studio")

MLFLOW_QUOTAS = {
    "app": re.compile(r"(?!Rate\b).*\bMLflow Apps?\b.*", re.IGNORECASE),
    "tracking_server": re.compile(r"(?!Rate\b).*\bTracking Servers?\b.*", re.IGNORECASE),
}
"""Patterns for the names of the quotas of MLflow, which are not in any public list."""
RUNNING = "Studio JupyterLab Apps running on {} instances"
"""Name in Service Quotas."""
DOMAINS = Quota("sagemaker", SAGEMAKER, "Total domains", "L-B683BCB0")
PROFILES = Quota(
    "sagemaker",
    SAGEMAKER,
    "Maximum number of Studio user profiles allowed per account",
    "L-AC46C40F",
)


def check_mlflow(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    """Check name and quota; an existing resource belongs to a deployed storage stack."""
    if not cluster.mlflow:
        return
    name = cluster.name
    kind = cluster.mlflow.kind
    names = _names(aws, kind)
    subject = Subject(f"MLflow {kind.replace('_', ' ')} {name}")
    if name in names and is_deployed(aws, cluster, "storage"):
        yield subject.ok("this cluster's own")
        return
    # Apps are identified by ids, and several may have the same name.
    if name in names and kind == "tracking_server":
        yield subject.fail(
            "taken, and not by this cluster's stacks",
            f"change `name`; or, if its runs are no longer needed (inspect it), `aws sagemaker "
            f"delete-mlflow-tracking-server --tracking-server-name {name}`",
        )
    quotas = [
        quota for quota in quotas_by_name(aws, "sagemaker") if MLFLOW_QUOTAS[kind].fullmatch(quota)
    ]
    for quota in quotas:
        yield judge_quota(aws, Quota("sagemaker", "Amazon SageMaker", quota), used=len(names))
    if not quotas:
        yield subject.ok(f"{len(names)} exist; Service Quotas has no limit for this kind")


def _names(aws: ReadOnlyAws, kind: str) -> list[str]:
    if kind == "app":
        apps = aws.items("sagemaker", "list_mlflow_apps", "Summaries")
        return [app["Name"] for app in apps if app.get("Status") != "Deleted"]
    servers = aws.items("sagemaker", "list_mlflow_tracking_servers", "TrackingServerSummaries")
    return [server["TrackingServerName"] for server in servers]


def check_domains(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    """Check the quotas of domains and profiles before the domain exists."""
    if not cluster.studio or is_deployed(aws, cluster, "studio"):
        return
    domains = aws.items("sagemaker", "list_domains", "Domains")
    profiles = aws.items("sagemaker", "list_user_profiles", "UserProfiles")
    yield judge_quota(aws, DOMAINS, used=len(domains))
    if needed := len(cluster.studio.profiles):
        yield judge_quota(aws, PROFILES, used=len(profiles), needed=needed)


def check_spaces(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    """Warn about the quota of spaces, because the rest works; new accounts allow none with a GPU."""
    if not cluster.studio:
        return
    num_spaces = max(1, len(cluster.studio.profiles))
    space_type = cluster.studio.instance_type
    name = RUNNING.format(space_type)
    value = quotas_by_name(aws, "sagemaker").get(name)
    if value is None:
        return
    message = f"{num_spaces} spaces of {space_type} may run at once, the quota is {value:,.10g}"
    if value < num_spaces:
        yield STUDIO.warn(
            message, f"request {num_spaces} for '{name}' in Service Quotas, {SAGEMAKER}"
        )
    else:
        yield STUDIO.ok(message)


def check_sign_in(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    """Check for IAM Identity Center in the region, which a domain requires (SageMaker's guide)."""
    if not cluster.studio or cluster.studio.sign_in != "identity_center":
        return
    if active_instances(aws):
        yield STUDIO.ok(f"people sign in through IAM Identity Center, which is in {cluster.region}")
    else:
        yield STUDIO.fail(
            f"people sign in through IAM Identity Center, which has no instance in {cluster.region}",
            "enable it there (console, IAM Identity Center), or set studio.sign_in to iam",
        )


def check_trail(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    """Check for a trail, which sends API calls to EventBridge; a timer finds new profiles otherwise."""
    if not cluster.studio or cluster.studio.partitions != "per_profile":
        return
    for trail in aws.call("cloudtrail", "describe_trails")["trailList"]:
        if aws.call("cloudtrail", "get_trail_status", Name=trail["TrailARN"]).get("IsLogging"):
            yield STUDIO.ok(f"trail {trail['Name']} reports new profiles")
            return
    yield STUDIO.warn(
        "no CloudTrail trail logs here, so a new profile waits up to 15 minutes for its partition, and "
        "that of a deleted one is kept",
        "create a trail of management events, if this is too slow",
    )
