"""Check of the Kubernetes version: EKS's support for it, and the upgrade of a deployed cluster."""

from collections.abc import Iterator

from config.eks_cluster import EksCluster
from config.kubernetes import version_warning
from config.resource_names import ResourceNames
from tools.preflight.finding import Finding, Subject
from tools.preflight.read_only_aws import ReadOnlyAws
from tools.preflight.stacks import is_deployed


def check_version(aws: ReadOnlyAws, cluster: EksCluster) -> Iterator[Finding]:
    if cluster.kubernetes.existing:
        return  # checked with the existing cluster
    wanted = cluster.kubernetes.version
    subject = Subject(f"Kubernetes {wanted}")
    versions = {
        version["clusterVersion"]: version
        for version in aws.items("eks", "describe_cluster_versions", "clusterVersions")
    }
    version = versions.get(wanted, {})
    status = version.get("versionStatus")
    if status in (None, "UNSUPPORTED"):
        offered = sorted(
            (
                name
                for name, found in versions.items()
                if found.get("versionStatus") != "UNSUPPORTED"
            ),
            key=_minor,
        )
        yield subject.fail(
            f"EKS does not offer it in {cluster.region}; offered are {', '.join(offered) or 'none'}",
            "set kubernetes.version to one of those that HyperPod also supports (docs/deploy-on-eks.md)",
        )
    elif status == "EXTENDED_SUPPORT":
        end = version.get("endOfExtendedSupportDate")
        yield subject.warn(
            "in extended support, for which EKS bills six times the price per hour"
            + (f", until {end:%Y-%m-%d}" if end else ""),
            "set a newer kubernetes.version",
        )
    else:
        end = version.get("endOfStandardSupportDate")
        yield subject.ok("offered, in standard support" + (f" until {end:%Y-%m-%d}" if end else ""))
    if warning := version_warning(wanted):
        yield subject.warn(
            warning,
            'look for it in the SageMaker developer guide, "Getting started with Amazon EKS support"',
        )
    yield from _upgrade(aws, cluster)


def _upgrade(aws: ReadOnlyAws, cluster: EksCluster) -> Iterator[Finding]:
    """Check the upgrade of a deployed cluster: EKS raises one minor version at a time and never lowers it."""
    if not is_deployed(aws, cluster, "hyperpod"):
        return
    found = aws.find("eks", "describe_cluster", name=ResourceNames(cluster).kubernetes_cluster)
    if found is None:
        return
    running = found["cluster"]["version"]
    wanted = cluster.kubernetes.version
    if not 0 <= _minor(wanted) - _minor(running) <= 1:
        yield Subject(f"Kubernetes {wanted}").fail(
            f"the cluster runs {running}, which can be raised by one version at a time and never lowered",
            f'set kubernetes.version to "{running}" or the next one',
        )


def _minor(version: str) -> int:
    """Return the minor version, which is 34 for 1.34."""
    return int(version.partition(".")[2])
