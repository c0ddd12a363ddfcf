"""Checks of the EKS control plane: its version, its access entries, and the quota of clusters."""

from collections.abc import Iterator

from config.eks_cluster import EksCluster
from config.kubernetes import NO_USERS
from config.resource_names import kubernetes_cluster
from tools.aws_session import if_present
from tools.preflight.finding import Finding, fail, ok, unknown, warn
from tools.preflight.planned import Planned
from tools.preflight.read_only_aws import ReadOnlyAws
from tools.preflight.service_quotas import Quota, judge_quota
from tools.preflight.stacks import is_deployed

CLUSTERS = Quota("eks", "Amazon Elastic Kubernetes Service (Amazon EKS)", "Clusters")
"""Quota of clusters per region (AWS General Reference, "Amazon EKS endpoints and quotas")."""


def check_synthesis(planned: Planned, aws: ReadOnlyAws, cluster: EksCluster) -> Iterator[Finding]:
    """Check the synthesis, because a failure would leave only the other stacks, which bill."""
    for error in planned.errors:
        yield fail("synthesis", error, "correct this first; `make synth` shows it too")
    if not planned.errors:
        yield ok("synthesis", "the cluster's stack is complete, with HyperPod's chart")


def check_version(aws: ReadOnlyAws, cluster: EksCluster) -> Iterator[Finding]:
    wanted = cluster.kubernetes.version
    subject = f"Kubernetes {wanted}"
    versions = {
        version["clusterVersion"]: version
        for version in aws.items("eks", "describe_cluster_versions", "clusterVersions")
    }
    version = versions.get(wanted, {})
    status = version.get("versionStatus")
    if status in (None, "UNSUPPORTED"):
        offered = sorted(
            (name for name, found in versions.items() if found.get("versionStatus") != "UNSUPPORTED"),
            key=_minor,
        )
        yield fail(
            subject,
            f"EKS does not offer it in {cluster.region}; offered are {', '.join(offered) or 'none'}",
            "set kubernetes.version to one of those that HyperPod also supports (docs/deploy-on-eks.md)",
        )
    elif status == "EXTENDED_SUPPORT":
        end = version.get("endOfExtendedSupportDate")
        yield warn(
            subject,
            "in extended support, for which EKS bills six times the price per hour"
            + (f", until {end:%Y-%m-%d}" if end else ""),
            "set a newer kubernetes.version",
        )
    else:
        end = version.get("endOfStandardSupportDate")
        yield ok(subject, "offered, in standard support" + (f" until {end:%Y-%m-%d}" if end else ""))
    yield from _upgrade(aws, cluster)


def _upgrade(aws: ReadOnlyAws, cluster: EksCluster) -> Iterator[Finding]:
    """Check the upgrade of a deployed cluster: EKS raises one minor version at a time and never lowers it."""
    if not is_deployed(aws, cluster, "hyperpod"):
        return
    found = if_present(aws.call, "eks", "describe_cluster", name=kubernetes_cluster(cluster))
    if found is None:
        return
    there = found["cluster"]["version"]
    wanted = cluster.kubernetes.version
    if not 0 <= _minor(wanted) - _minor(there) <= 1:
        yield fail(
            f"Kubernetes {wanted}",
            f"the cluster runs {there}, which can be raised by one version at a time and never lowered",
            f"set kubernetes.version to {there} or the next one",
        )


def _minor(version: str) -> int:
    return int(version.partition(".")[2])


def check_cluster_quota(aws: ReadOnlyAws, cluster: EksCluster) -> Iterator[Finding]:
    if is_deployed(aws, cluster, "hyperpod"):
        return
    used = len(aws.items("eks", "list_clusters", "clusters"))
    yield judge_quota(aws, CLUSTERS, used=used, subject="quota EKS clusters per Region")


def check_access(aws: ReadOnlyAws, cluster: EksCluster) -> Iterator[Finding]:
    """Check that the roles and users exist; otherwise EKS rejects the entry an hour into the deployment."""
    if not cluster.kubernetes.access:
        yield fail("kubernetes.access", *NO_USERS.removeprefix("kubernetes.access ").split("; "))
    for entry in cluster.kubernetes.access:
        yield _principal(aws, entry.principal_arn)


def _principal(aws: ReadOnlyAws, arn: str) -> Finding:
    _, _, _, _, account, path = arn.split(":", 5)
    kind, name = path.split("/")[0], path.rpartition("/")[2]
    subject = f"{kind} {name}"
    if account != aws.account:
        return unknown(
            subject,
            f"it belongs to account {account}, and these credentials to {aws.account}",
            "verify there that it exists, or replace the example in kubernetes.access with your own",
        )
    found = if_present(aws.call, "iam", f"get_{kind}", **{f"{kind.title()}Name": name})
    if found is None:
        return fail(subject, f"{arn} does not exist", "set kubernetes.access to roles and users that exist")
    there = found[kind.title()]["Arn"]
    if there != arn:
        return fail(subject, f"the file says {arn}, it is {there}", f"set principal_arn to {there}")
    return ok(subject, "exists")
