"""What SageMaker Studio takes from the account: who lets people in, and who tells of new profiles."""

from __future__ import annotations

from collections.abc import Iterator

from config.cluster import Cluster
from tools.preflight.finding import Finding, fail, ok, warn
from tools.preflight.instance_quotas import SERVICE
from tools.preflight.read_only_aws import ReadOnlyAws
from tools.preflight.service_quotas import Quota, judge_quota, quotas_by_name
from tools.preflight.stacks import is_deployed

RUNNING = "Studio JupyterLab Apps running on {} instances"
"""As Service Quotas names it."""
DOMAINS = Quota("sagemaker", SERVICE, "Total domains", "L-B683BCB0")
PROFILES = Quota(
    "sagemaker", SERVICE, "Maximum number of Studio user profiles allowed per account", "L-AC46C40F"
)


def check_domains(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    """Room for the domain and its profiles, until it is there."""
    if not cluster.studio or is_deployed(aws, cluster, "studio"):
        return
    domains = aws.items("sagemaker", "list_domains", "Domains")
    profiles = aws.items("sagemaker", "list_user_profiles", "UserProfiles")
    yield judge_quota(aws, DOMAINS, used=len(domains))
    if needed := len(cluster.studio.profiles):
        yield judge_quota(aws, PROFILES, used=len(profiles), needed=needed)


def check_spaces(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    """A warning, as all but the spaces is there without; a new account has no room for ones with a GPU."""
    if not cluster.studio:
        return
    people, name = max(1, len(cluster.studio.profiles)), RUNNING.format(cluster.studio.instance_type)
    value = quotas_by_name(aws, "sagemaker").get(name)
    if value is None:
        return
    said = f"{people} spaces of {cluster.studio.instance_type} may run at once, the quota is {value:,.10g}"
    if value < people:
        yield warn("Studio", said, f"request {people} for '{name}' in Service Quotas, {SERVICE}")
    else:
        yield ok("Studio", said)


def check_sign_in(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    """A domain takes users of an instance of IAM Identity Center in its own region (SageMaker's guide)."""
    if not cluster.studio or cluster.studio.sign_in != "identity_center":
        return
    instances = [
        instance
        for instance in aws.items("sso-admin", "list_instances", "Instances")
        if instance.get("Status", "ACTIVE") == "ACTIVE"
    ]
    if instances:
        yield ok("Studio", f"people sign in by IAM Identity Center, which is in {cluster.region}")
    else:
        yield fail(
            "Studio",
            f"people sign in by IAM Identity Center, of which there is no instance in {cluster.region}",
            "enable it there (console, IAM Identity Center), or set studio.sign_in to iam",
        )


def check_trail(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    """EventBridge gets calls of SageMaker's API from trails; without, the clock finds new profiles."""
    if not cluster.studio or cluster.studio.partitions != "per_profile":
        return
    trails = aws.call("cloudtrail", "describe_trails")["trailList"]
    for trail in trails:
        if aws.call("cloudtrail", "get_trail_status", Name=trail["TrailARN"]).get("IsLogging"):
            yield ok("Studio", f"trail {trail['Name']} tells of new profiles")
            return
    yield warn(
        "Studio",
        "no trail of CloudTrail logs here, so a new profile waits up to 15 minutes for its partition, and "
        "that of a deleted one is kept",
        "create a trail of management events, if that is not enough",
    )
