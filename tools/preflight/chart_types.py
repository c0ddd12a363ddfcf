"""Check that HyperPod's chart supports the accelerated types of the file, and that nodes reach its images."""

from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from config.eks_cluster import EksCluster
from config.facts.instance_catalogue import instance_type
from manifests.chart_patches import NAMESPACE, RELEASE, chart_patches, patched
from manifests.chart_values import TYPE_LABEL, chart_values
from manifests.charts import CACHE, chart_folder
from manifests.public_images import images_of, is_regional, repository_address, takes_copies
from tools.kubernetes.kubectl import find_program, run_helm
from tools.preflight.finding import Finding, Subject
from tools.preflight.read_only_aws import ReadOnlyAws

CHART = Subject("HyperPod's chart")
NEURON = "neuron-device-plugin"
"""Prefix of the names of the chart's DaemonSets with the Neuron plugin."""
HEALTH = "health-monitoring-agent"
"""Prefix of the names of the chart's DaemonSets with the health monitoring agent."""
CORRECT_TABLES = (
    "correct manifests/public_images.py and manifests/chart_patches.py (docs/charts.md)"
)
NEWER = "use a newer chart (docs/charts.md), or another instance type"


def check_chart(aws: ReadOnlyAws, cluster: EksCluster) -> Iterator[Finding]:
    if cluster.kubernetes.existing:
        return  # its chart is not this project's
    try:
        folder = chart_folder("hyperpod")
    except ValueError:  # the synthesis check reports it
        return
    helm = find_program("helm", CACHE)
    if helm is None:
        yield CHART.unknown("helm is not on the PATH", "install helm 3, and run it again")
        return
    repository = repository_address(cluster, aws.account)
    values = chart_values(cluster, repository)
    namespace = f"--namespace={NAMESPACE}"
    rendered = run_helm(helm, "template", RELEASE, str(folder), namespace, values=values)
    if rendered.returncode != 0:
        message = " ".join(rendered.stderr.split())
        yield CHART.fail(
            f"helm cannot render it for this file: {message}", "run `make charts` again"
        )
        return
    documents = [document for document in yaml.safe_load_all(rendered.stdout) if document]
    daemon_sets = [document for document in documents if document["kind"] == "DaemonSet"]
    found = list(_unknown_types(cluster, daemon_sets))
    yield from found or [CHART.ok("supports the accelerated types of the file")]
    if takes_copies(cluster):
        yield _judge_images(cluster, documents, repository)


def _judge_images(
    cluster: EksCluster, objects: Sequence[dict[str, Any]], repository: str
) -> Finding:
    """Judge whether nodes without internet access can pull all images of the chart."""
    try:
        images = images_of(patched(objects, chart_patches(cluster, repository)))
    except ValueError as error:
        return CHART.fail(str(error), CORRECT_TABLES)
    elsewhere = [image for image in images if not is_regional(image, cluster.region)]
    if elsewhere:
        return CHART.fail(f"nodes would pull {', '.join(elsewhere)} from elsewhere", CORRECT_TABLES)
    return CHART.ok(f"its {len(images)} images are in ECR of {cluster.region}")


def _unknown_types(cluster: EksCluster, daemon_sets: list[dict[str, Any]]) -> Iterator[Finding]:
    for name in sorted({name for group in cluster.instance_groups for name in group.types}):
        hardware = instance_type(name)
        if hardware.accelerator is None:
            continue
        if hardware.is_neuron and not _is_on(name, NEURON, daemon_sets):
            yield CHART.fail(
                f"its Neuron plugin does not support {name}, so no job would get a device", NEWER
            )
        if not _is_on(name, HEALTH, daemon_sets):
            yield CHART.warn(
                f"its health monitoring does not support {name}: faults of its accelerators are not detected",
                NEWER,
            )


def _is_on(instance_name: str, prefix: str, daemon_sets: list[dict[str, Any]]) -> bool:
    """Return whether a DaemonSet with a name that begins with ``prefix`` admits the instance type."""
    return any(
        _admits(daemon_set, instance_name)
        for daemon_set in daemon_sets
        if daemon_set["metadata"]["name"].startswith(prefix)
    )


def _admits(daemon_set: dict[str, Any], instance_name: str) -> bool:
    """Return whether the affinity admits the type: by a term, or because it restricts no types."""
    affinity = daemon_set["spec"]["template"]["spec"].get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    for term in required.get("nodeSelectorTerms", [{}]):
        lists_of_types = [
            expression.get("values", [])
            for expression in term.get("matchExpressions", [])
            if expression["key"] == TYPE_LABEL and expression["operator"] == "In"
        ]
        if all(instance_name in types for types in lists_of_types):
            return True
    return False
