"""HyperPod's chart, or what stands in for it, with values of several kinds of clusters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from manifests.chart_patches import OPERATOR, RELEASE
from manifests.charts import CACHE, chart_folder, load_charts, problem_of
from tests.manifests.helm_runs import STAND_INS, HelmRefusedError, lint, render

VALUES = sorted((Path(__file__).parent / "values").glob("*.yaml"))
WRONG = sorted((Path(__file__).parent / "values" / "wrong").glob("*.yaml"))
STAND_IN = STAND_INS / "hyperpod"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"


@pytest.fixture
def upstream() -> Path:
    problem = problem_of("hyperpod", load_charts()["hyperpod"], CACHE)
    if problem:
        pytest.skip(f"{problem}: make charts")
    return chart_folder("hyperpod")


def read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(path.read_text())
    return values


def objects(chart: Path, values: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Rendered objects by kind and name."""
    rendered = render(chart, read(Path(__file__).parent / "values" / f"{values}.yaml"))
    return {(each["kind"], each["metadata"]["name"]): each for each in rendered}


def daemon_sets(values: str) -> set[str]:
    return {name for kind, name in objects(STAND_IN, values) if kind == "DaemonSet"}


@pytest.mark.parametrize("path", VALUES, ids=lambda path: path.stem)
def test_stand_in_takes_the_values(path: Path) -> None:
    lint(STAND_IN, read(path))
    assert render(STAND_IN, read(path))


@pytest.mark.parametrize("path", VALUES, ids=lambda path: path.stem)
def test_upstream_takes_the_values(path: Path, upstream: Path) -> None:
    assert render(upstream, read(path))


@pytest.mark.parametrize("path", WRONG, ids=lambda path: path.stem)
def test_wrong_values_are_refused(path: Path) -> None:
    message = path.read_text().splitlines()[0].removeprefix("# ")
    with pytest.raises(HelmRefusedError) as refusal:
        render(STAND_IN, read(path))
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    "path", [path for path in WRONG if path.stem != "no_region"], ids=lambda path: path.stem
)
def test_lint_refuses_what_the_schema_does(path: Path) -> None:
    with pytest.raises(HelmRefusedError, match=r"1 chart\(s\) failed"):
        lint(STAND_IN, read(path))


def test_device_plugins_are_where_the_values_say() -> None:
    agents = {"health-monitoring-agent", "health-monitoring-agent-non-nvidia"}
    nvidia = "hyperpod-nvidia-device-plugin"
    efa = "hyperpod-aws-efa-k8s-device-plugin"
    assert daemon_sets("cpu") == agents
    assert daemon_sets("g5") == {*agents, nvidia, efa}
    assert daemon_sets("trn1") == {*agents, efa, "neuron-device-plugin-daemonset"}


def test_the_efa_plugin_is_on_the_types_named_alone() -> None:
    plugin = objects(STAND_IN, "g5")["DaemonSet", "hyperpod-aws-efa-k8s-device-plugin"]
    affinity = plugin["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    [term] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [
        {"key": INSTANCE_TYPE, "operator": "In", "values": ["ml.g5.8xlarge"]}
    ]


def test_tolerations_reach_the_plugins() -> None:
    found = objects(STAND_IN, "p5")
    for name in ("nvidia", "aws-efa-k8s"):
        pod = found["DaemonSet", f"hyperpod-{name}-device-plugin"]["spec"]["template"]["spec"]
        assert pod["tolerations"] == [{"key": "team", "operator": "Exists"}]


def test_the_agents_image_is_of_the_region() -> None:
    agent = objects(STAND_IN, "trn1")["DaemonSet", "health-monitoring-agent"]
    [container] = agent["spec"]["template"]["spec"]["containers"]
    assert (
        ".dkr.ecr.us-east-2.amazonaws.com/hyperpod-health-monitoring-agent:" in container["image"]
    )


def test_the_training_operator_is_a_choice() -> None:
    assert ("Deployment", "hyperpod-training-operators") in objects(STAND_IN, "g5")
    assert ("Deployment", "hyperpod-training-operators") not in objects(STAND_IN, "p5")


def test_the_training_operator_has_the_name_that_is_patched(upstream: Path) -> None:
    rendered = render(upstream, read(Path(__file__).parent / "values" / "g5.yaml"), release=RELEASE)
    found = {
        (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"])
        for each in rendered
    }
    assert ("Deployment", "kubeflow", OPERATOR) in found


def test_schema_knows_every_default() -> None:
    schema = json.loads((STAND_IN / "values.schema.json").read_text())["properties"]
    assert schema.keys() == read(STAND_IN / "values.yaml").keys()


def test_every_part_of_upstream_has_its_switch_here(upstream: Path) -> None:
    """Every part of the chart is listed, so that none is installed unnoticed."""
    conditions = [each["condition"] for each in read(upstream / "Chart.yaml")["dependencies"]]
    ours = read(STAND_IN / "values.yaml")
    for condition in conditions:
        section: Any = ours
        for key in condition.split("."):
            assert key in section, condition
            section = section[key]
        assert isinstance(section, bool), condition


def test_the_stand_in_is_named_as_upstream(upstream: Path) -> None:
    assert read(STAND_IN / "Chart.yaml")["name"] == read(upstream / "Chart.yaml")["name"]


def test_a_missing_chart_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"chart hyperpod is not in .*; run make charts"):
        chart_folder("hyperpod", cache=tmp_path)
