"""The values that cluster files give HyperPod's chart, rendered by a real helm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from config.eks_cluster import EksCluster, Taint
from config.facts.instance_catalogue import INSTANCE_TYPES
from config.reading.loader import load_eks_cluster
from manifests.chart_values import TYPE_LABEL, chart_values
from manifests.charts import CACHE, chart_folder, load_charts, problem_of
from tests.manifests.helm_runs import IMAGE_REPOSITORY, STAND_INS, lint, render

STAND_IN = STAND_INS / "hyperpod"
NVIDIA = "nvidia-device-plugin"
EFA = "aws-efa-k8s-device-plugin"
NEURON = "neuron-device-plugin"
BASE = load_eks_cluster(Path("clusters/eks.yaml"))
SYSTEM = BASE.instance_groups[0]


def with_types(*names: str, **options: Any) -> EksCluster:
    """A cluster with a group of each of these types, and one for Kubernetes's own pods."""
    groups = [
        BASE.instance_groups[1].model_copy(
            update={"name": f"group-{index}", "instance_type": name, **options}
        )
        for index, name in enumerate(names)
    ]
    return BASE.model_copy(update={"instance_groups": [SYSTEM, *groups]})


def plugins(cluster: EksCluster, chart: Path = STAND_IN) -> dict[str, dict[str, Any]]:
    """Pod specs of the device plugins that are installed."""
    return {
        plugin: made["spec"]["template"]["spec"]
        for made in render(chart, chart_values(cluster, IMAGE_REPOSITORY))
        if made["kind"] == "DaemonSet"
        for plugin in (NVIDIA, EFA, NEURON)
        if plugin in made["metadata"]["name"]
    }


def placed_on(pods: dict[str, Any]) -> set[str]:
    """The instance types that a plugin's affinity names."""
    required = pods["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return {
        name
        for term in required["nodeSelectorTerms"]
        for expression in term["matchExpressions"]
        if expression["key"] == TYPE_LABEL and expression["operator"] == "In"
        for name in expression["values"]
    }


@pytest.mark.parametrize("file", ["clusters/eks.yaml", "clusters/eks-p5.yaml"])
def test_shipped_clusters_render(file: str) -> None:
    values = chart_values(load_eks_cluster(Path(file)), IMAGE_REPOSITORY)
    lint(STAND_IN, values)
    assert render(STAND_IN, values)


@pytest.mark.parametrize("file", ["clusters/eks.yaml", "clusters/eks-p5.yaml"])
def test_shipped_clusters_render_with_the_real_chart(file: str) -> None:
    problem = problem_of("hyperpod", load_charts()["hyperpod"], CACHE)
    if problem:
        pytest.skip(f"{problem}: make charts")
    assert render(
        chart_folder("hyperpod"), chart_values(load_eks_cluster(Path(file)), IMAGE_REPOSITORY)
    )


def test_no_efa_plugin_is_on_a_type_without_efa() -> None:
    """The agent must not run on types without EFA, where it would fail repeatedly."""
    values = chart_values(with_types(*INSTANCE_TYPES), IMAGE_REPOSITORY)[EFA]
    assert values["devicePlugin"]["enabled"]
    assert set(values["supportedInstanceLabels"]["values"]) == {
        name for name, found in INSTANCE_TYPES.items() if found.num_efa
    }
    assert values["supportedInstanceLabels"]["keys"] == [TYPE_LABEL]


def test_every_accelerator_has_its_plugin() -> None:
    cluster = with_types(*INSTANCE_TYPES)
    neuron = {
        name
        for name, found in INSTANCE_TYPES.items()
        if (found.accelerator or "").startswith("Trainium")
    }
    gpus = {name for name, found in INSTANCE_TYPES.items() if found.accelerator} - neuron
    assert set(plugins(cluster)) == {NVIDIA, EFA, NEURON}
    assert placed_on(plugins(cluster)[NVIDIA]) == gpus
    assert neuron and not neuron & gpus


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        (["ml.m5.2xlarge"], set()),
        (["ml.g5.2xlarge"], {NVIDIA}),
        (["ml.g5.2xlarge", "ml.g5.8xlarge"], {NVIDIA, EFA}),
        (["ml.p5.48xlarge"], {NVIDIA, EFA}),
        (["ml.trn1.32xlarge"], {NEURON, EFA}),
    ],
)
def test_plugins_are_for_hardware_that_is_there(types: list[str], expected: set[str]) -> None:
    found = plugins(with_types(*types))
    assert set(found) == expected
    if EFA in expected:
        assert placed_on(found[EFA]) == {name for name in types if INSTANCE_TYPES[name].num_efa}


def test_plugins_run_on_tainted_and_on_checked_nodes() -> None:
    tainted = with_types(
        "ml.p5.48xlarge", taints=[_taint("lab", "structure"), _taint("mine", None)]
    )
    for pods in plugins(tainted).values():
        tolerated = {(found["key"], found.get("value")) for found in pods["tolerations"]}
        assert tolerated >= {
            ("sagemaker.amazonaws.com/node-health-status", "Unschedulable"),
            ("lab", "structure"),
            ("mine", None),
        }


def _taint(key: str, value: str | None) -> Taint:
    return Taint(key=key, value=value, effect="NoSchedule")


def test_the_monitoring_agent_gets_its_region() -> None:
    """It would look at nodes, which do not exist yet, and then guess."""
    assert chart_values(BASE, IMAGE_REPOSITORY)["health-monitoring-agent"] == {
        "enabled": True,
        "region": "us-west-2",
    }


@pytest.mark.parametrize("operator", ["hyperpod", "kubeflow"])
def test_kubeflow_s_operator_is_there_when_it_is_wanted(operator: str) -> None:
    cluster = BASE.model_copy(update={"training_operator": operator})
    assert chart_values(cluster, IMAGE_REPOSITORY)["trainingOperators"] == {
        "enabled": operator == "kubeflow"
    }


def test_every_part_is_switched_on_purpose() -> None:
    """A part with a default of its own would come or go with another version of the chart."""
    parts = yaml.safe_load((STAND_IN / "values.yaml").read_text())
    switches = {name for name, part in parts.items() if "enabled" in part or "devicePlugin" in part}
    assert set(chart_values(BASE, IMAGE_REPOSITORY)) == switches
