"""The values that cluster files with divided GPUs give NVIDIA's GPU Operator, rendered by a real helm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from config.eks_cluster import EksCluster
from config.facts.regions import ZONE_ID_PREFIXES
from manifests.chart_values import chart_values
from manifests.charts import CACHE, chart_folder, load_charts, problem_of
from manifests.gpu_operator import CHART, IMAGE_ACCOUNTS, gpu_operator_values
from manifests.public_images import (
    FEATURE_DISCOVERY,
    images_of,
    is_known,
    is_regional,
    needed_images,
)
from tests.config.cluster_documents import document
from tests.manifests.helm_runs import (
    IMAGE_REPOSITORY,
    STAND_INS,
    HelmRefusedError,
    lint,
    render,
)


def divided(profile: str | None = "1g.10gb", **kubernetes: Any) -> EksCluster:
    changes: dict[Any, Any] = {
        "region": "us-west-2",
        "task_governance": None,
        "instance_groups[p5].mig_profile": profile,
    }
    changes |= {f"kubernetes.{name}": value for name, value in kubernetes.items()}
    return EksCluster.model_validate(document("eks-p5", changes))


@pytest.fixture(params=["stand-in", "upstream"])
def chart(request: pytest.FixtureRequest) -> Path:
    if request.param == "stand-in":
        return STAND_INS / CHART
    problem = problem_of(CHART, load_charts()[CHART], CACHE)
    if problem:
        pytest.skip(f"{problem}: make charts ARGS='--cluster <file with mig_profile>'")
    return chart_folder(CHART)


def test_the_layout_of_the_label_divides_each_gpu(chart: Path) -> None:
    cluster = divided("3g.40gb")
    values = gpu_operator_values(cluster, IMAGE_REPOSITORY)
    lint(chart, values)
    objects = render(chart, values, release=CHART)
    (policy,) = [found for found in objects if found["kind"] == "ClusterPolicy"]
    assert policy["spec"]["mig"] == {"strategy": "mixed"}
    assert policy["spec"]["driver"]["enabled"] is False
    manager = policy["spec"]["migManager"]
    assert {"name": "WITH_REBOOT", "value": "true"} in manager["env"]
    (layouts,) = [
        found for found in objects if found["metadata"]["name"] == manager["config"]["name"]
    ]
    known = yaml.safe_load(layouts["data"]["config.yaml"])["mig-configs"]
    assert manager["config"]["default"] in known
    (label,) = cluster.instance_groups[-1].node_labels.values()
    assert known[label] == [{"devices": "all", "mig-enabled": True, "mig-devices": {"3g.40gb": 2}}]


def test_a_wrong_value_is_refused() -> None:
    values = gpu_operator_values(divided(), IMAGE_REPOSITORY)
    with pytest.raises(HelmRefusedError):
        lint(STAND_INS / CHART, values | {"mig": {"strategy": "mixd"}})


def test_each_region_has_the_operator_s_images() -> None:
    assert set(IMAGE_ACCOUNTS) == set(ZONE_ID_PREFIXES)


@pytest.mark.parametrize("images", ["internet", "image_repository"])
def test_nodes_reach_all_images(chart: Path, images: str) -> None:
    cluster = divided(images=images)
    objects = render(chart, gpu_operator_values(cluster, IMAGE_REPOSITORY), release=CHART)
    found = images_of(objects)
    assert FEATURE_DISCOVERY in needed_images(cluster)
    assert [image for image in found if not is_known(image, cluster.region)] == []
    if images == "image_repository":
        assert all(is_regional(image, cluster.region) for image in found)
        assert FEATURE_DISCOVERY.copy_in(IMAGE_REPOSITORY) in found


def test_one_device_plugin_runs_on_a_node() -> None:
    """The operator has its own, and two would offer the same GPUs."""
    switches = [
        chart_values(divided(profile), IMAGE_REPOSITORY)["nvidia-device-plugin"]["devicePlugin"]
        for profile in ("1g.10gb", None)
    ]
    assert switches == [{"enabled": False}, {"enabled": True}]
    assert FEATURE_DISCOVERY not in needed_images(divided(None))
