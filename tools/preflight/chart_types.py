"""Check that the fetched HyperPod chart supports the file's instance types.

The chart's Neuron plugin and health monitoring have their own lists of types, which no chart value changes.
"""

from collections.abc import Iterator
from typing import Any

import yaml

from config.eks_cluster import EksCluster
from config.facts.instance_catalogue import instance_type
from manifests.chart_values import TYPE_LABEL, chart_values
from manifests.charts import CACHE, chart_folder
from tools.kubernetes.kubectl import find_program, run_helm
from tools.preflight.finding import Finding, fail, ok, unknown, warn
from tools.preflight.read_only_aws import ReadOnlyAws

SUBJECT = "HyperPod's chart"
NEURON, HEALTH = "neuron-device-plugin", "health-monitoring-agent"
"""Prefixes of the names of the chart's DaemonSets."""
NEWER = "use a newer chart (docs/charts.md), or another instance type"


def check_types(aws: ReadOnlyAws, cluster: EksCluster) -> Iterator[Finding]:
    try:
        folder = chart_folder("hyperpod")
    except ValueError:  # the synthesis check reports it
        return
    helm = find_program("helm", CACHE)
    if helm is None:
        yield unknown(SUBJECT, "helm is not on the PATH", "install helm 3, and run it again")
        return
    rendered = run_helm(helm, "template", "hyperpod", str(folder), values=chart_values(cluster))
    if rendered.returncode != 0:
        said = " ".join(rendered.stderr.split())
        yield fail(SUBJECT, f"helm cannot render it for this file: {said}", "run `make charts` again")
        return
    documents = [made for made in yaml.safe_load_all(rendered.stdout) if made]
    daemons = [made for made in documents if made["kind"] == "DaemonSet"]
    found = list(_unknown_types(cluster, daemons))
    yield from found
    if not found:
        yield ok(SUBJECT, "supports the accelerated types of the file")


def _unknown_types(cluster: EksCluster, daemons: list[dict[str, Any]]) -> Iterator[Finding]:
    for name in sorted({group.instance_type for group in cluster.instance_groups}):
        hardware = instance_type(name)
        if hardware.accelerator is None:
            continue
        if hardware.is_neuron and not _is_on(name, NEURON, daemons):
            yield fail(
                SUBJECT, f"its Neuron plugin does not support {name}, so no job would get a device", NEWER
            )
        if not _is_on(name, HEALTH, daemons):
            yield warn(
                SUBJECT,
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
