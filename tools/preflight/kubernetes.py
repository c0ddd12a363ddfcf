"""Checks of EKS: the control plane's version, access entries and quota, and the chart's instance types."""

from collections.abc import Iterator
from typing import Any

import yaml

from config.eks_cluster import EksCluster
from config.facts.instance_catalogue import instance_type
from config.kubernetes import NO_USERS
from config.resource_names import ResourceNames
from manifests.chart_values import TYPE_LABEL, chart_values
from manifests.charts import CACHE, chart_folder
from tools.kubernetes.kubectl import find_program, run_helm
from tools.preflight.finding import Finding, Subject
from tools.preflight.planned import Planned
from tools.preflight.read_only_aws import ReadOnlyAws
from tools.preflight.service_quotas import Quota, judge_quota
from tools.preflight.stacks import is_deployed

SYNTHESIS = Subject("synthesis")

CLUSTERS = Quota("eks", "Amazon Elastic Kubernetes Service (Amazon EKS)", "Clusters")
"""Quota of clusters per region (AWS General Reference, "Amazon EKS endpoints and quotas")."""
CHART = Subject("HyperPod's chart")
NEURON = "neuron-device-plugin"
HEALTH = "health-monitoring-agent"
"""Prefixes of the names of the chart's DaemonSets."""
NEWER = "use a newer chart (docs/charts.md), or another instance type"


def check_synthesis(planned: Planned, aws: ReadOnlyAws, cluster: EksCluster) -> Iterator[Finding]:
    """Check the synthesis, because a failure would leave only the other stacks, which bill."""
    for error in planned.errors:
        yield SYNTHESIS.fail(error, "correct this first; `make synth` shows it too")
    if not planned.errors:
        yield SYNTHESIS.ok("the cluster's stack is complete, with HyperPod's chart")


def check_version(aws: ReadOnlyAws, cluster: EksCluster) -> Iterator[Finding]:
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
            (name for name, found in versions.items() if found.get("versionStatus") != "UNSUPPORTED"),
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
    yield from _upgrade(aws, cluster)


def _upgrade(aws: ReadOnlyAws, cluster: EksCluster) -> Iterator[Finding]:
    """Check the upgrade of a deployed cluster: EKS raises one minor version at a time and never lowers it."""
    if not is_deployed(aws, cluster, "hyperpod"):
        return
    found = aws.find("eks", "describe_cluster", name=ResourceNames(cluster).kubernetes_cluster)
    if found is None:
        return
    there = found["cluster"]["version"]
    wanted = cluster.kubernetes.version
    if not 0 <= _minor(wanted) - _minor(there) <= 1:
        yield Subject(f"Kubernetes {wanted}").fail(
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
        yield Subject("kubernetes.access").fail(*NO_USERS.removeprefix("kubernetes.access ").split("; "))
    for entry in cluster.kubernetes.access:
        yield _principal(aws, entry.principal_arn)


def _principal(aws: ReadOnlyAws, arn: str) -> Finding:
    _, _, _, _, account, path = arn.split(":", 5)
    kind = path.split("/")[0]
    name = path.rpartition("/")[2]
    subject = Subject(f"{kind} {name}")
    if account != aws.account:
        return subject.unknown(
            f"it belongs to account {account}, and these credentials to {aws.account}",
            "verify there that it exists, or replace the example in kubernetes.access with your own",
        )
    found = aws.find("iam", f"get_{kind}", **{f"{kind.title()}Name": name})
    if found is None:
        return subject.fail(f"{arn} does not exist", "set kubernetes.access to roles and users that exist")
    there = found[kind.title()]["Arn"]
    if there != arn:
        return subject.fail(f"the file says {arn}, it is {there}", f"set principal_arn to {there}")
    return subject.ok("exists")


def check_types(aws: ReadOnlyAws, cluster: EksCluster) -> Iterator[Finding]:
    try:
        folder = chart_folder("hyperpod")
    except ValueError:  # the synthesis check reports it
        return
    helm = find_program("helm", CACHE)
    if helm is None:
        yield CHART.unknown("helm is not on the PATH", "install helm 3, and run it again")
        return
    rendered = run_helm(helm, "template", "hyperpod", str(folder), values=chart_values(cluster))
    if rendered.returncode != 0:
        said = " ".join(rendered.stderr.split())
        yield CHART.fail(f"helm cannot render it for this file: {said}", "run `make charts` again")
        return
    documents = [made for made in yaml.safe_load_all(rendered.stdout) if made]
    daemons = [made for made in documents if made["kind"] == "DaemonSet"]
    found = list(_unknown_types(cluster, daemons))
    yield from found or [CHART.ok("supports the accelerated types of the file")]


def _unknown_types(cluster: EksCluster, daemons: list[dict[str, Any]]) -> Iterator[Finding]:
    for name in sorted({group.instance_type for group in cluster.instance_groups}):
        hardware = instance_type(name)
        if hardware.accelerator is None:
            continue
        if hardware.is_neuron and not _is_on(name, NEURON, daemons):
            yield CHART.fail(
                f"its Neuron plugin does not support {name}, so no job would get a device", NEWER
            )
        if not _is_on(name, HEALTH, daemons):
            yield CHART.warn(
                f"its health monitoring does not support {name}: faults of its accelerators are not detected",
                NEWER,
            )


def _is_on(name: str, prefix: str, daemons: list[dict[str, Any]]) -> bool:
    return any(_admits(each, name) for each in daemons if each["metadata"]["name"].startswith(prefix))


def _admits(daemon_set: dict[str, Any], name: str) -> bool:
    """Return whether the affinity admits the type: by a term, or because it restricts no types."""
    affinity = daemon_set["spec"]["template"]["spec"].get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    terms = required.get("nodeSelectorTerms", [{}])
    return any(
        all(
            name in expression.get("values", [])
            for expression in term.get("matchExpressions", [])
            if expression["key"] == TYPE_LABEL and expression["operator"] == "In"
        )
        for term in terms
    )
