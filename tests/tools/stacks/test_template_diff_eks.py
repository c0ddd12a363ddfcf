"""make diff on EKS: changes of the approved templates that would take the control plane, or be refused."""

from __future__ import annotations

import copy
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from manifests.charts import chart_folder
from tools.stacks import diff
from tools.stacks.diff import Pair, describe, find_precious_losses
from tools.stacks.service_limits import find_notices

GOLDEN = Path(__file__).parents[2] / "golden" / "eks"
STACKS = ("EksStorageStack", "EksHyperPodStack")
OLD = {stack: json.loads((GOLDEN / f"{stack}.json").read_text()) for stack in STACKS}
TOP = "EksHyperPodStack"
KEY = {
    "Provider": {"KeyArn": "arn:aws:kms:us-west-2:123456789012:key/0123"},
    "Resources": ["secrets"],
}


def changed(resource_type: str, **properties: Any) -> dict[str, Any]:
    """The cluster's stack with other properties of the one resource of a type."""
    template = copy.deepcopy(OLD[TOP])
    (resource,) = [
        found for found in template["Resources"].values() if found["Type"] == resource_type
    ]
    resource["Properties"] |= properties
    return template


def paragraphs(new: dict[str, Any]) -> list[str]:
    return [
        describe(loss)
        for loss in find_precious_losses([Pair(TOP, OLD[TOP], new)], region="us-west-2")
    ]


def notices(new: dict[str, Any]) -> list[str]:
    found = list(find_notices(TOP, OLD[TOP], new))
    assert all(notice.is_certain for notice in found)
    return [notice.text for notice in found]


def test_nothing_changed_is_nothing_lost() -> None:
    pairs = [Pair(stack, OLD[stack], copy.deepcopy(OLD[stack])) for stack in STACKS]
    assert find_precious_losses(pairs, region="us-west-2") == []
    assert notices(copy.deepcopy(OLD[TOP])) == []


def test_a_key_for_secrets_replaces_the_control_plane_and_the_cluster_on_it() -> None:
    control_plane, cluster = paragraphs(changed("AWS::EKS::Cluster", EncryptionConfig=[KEY]))
    assert control_plane.startswith("!!! WARNING: the control plane is replaced: ")
    assert (
        "CloudFormation will refuse; undo the change, or run `make destroy` first" in control_plane
    )
    assert cluster.startswith("!!! WARNING: the cluster is replaced: ")


def test_another_name_is_another_control_plane() -> None:
    assert (
        "CloudFormation will refuse"
        not in paragraphs(changed("AWS::EKS::Cluster", Name="another"))[0]
    )


@pytest.mark.parametrize(
    ("version", "refused"), [("1.33", True), ("1.34", False), ("1.35", False), ("1.36", True)]
)
def test_kubernetes_goes_up_by_one(version: str, refused: bool) -> None:
    new = changed("AWS::EKS::Cluster", Version=version)
    assert paragraphs(new) == []
    expected = (
        f"EKS refuses to go from Kubernetes 1.34 to {version}: it goes up by one version at a time, "
        "and"
    )
    assert [text.partition(" never down")[0] for text in notices(new)] == (
        [expected] if refused else []
    )


def test_a_group_keeps_its_kind_of_capacity() -> None:
    (cluster,) = [
        r for r in OLD[TOP]["Resources"].values() if r["Type"] == "AWS::SageMaker::Cluster"
    ]
    groups = copy.deepcopy(cluster["Properties"]["InstanceGroups"])
    groups[1]["CapacityRequirements"] = {"Spot": {}}
    (text,) = notices(changed("AWS::SageMaker::Cluster", InstanceGroups=groups))
    assert text.startswith(
        "HyperPod refuses to change the capacity of group workers (spot or on demand)"
    )


def test_a_missing_chart_is_one_line_before_the_cdk_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "EksHyperPodStack.template.json").write_text("{}")
    monkeypatch.setattr(
        "sys.argv", ["diff", "--cluster", "clusters/eks.yaml", "--against", str(tmp_path)]
    )
    monkeypatch.setattr(diff, "CDK", tmp_path)
    monkeypatch.setattr(diff, "bring_missing", lambda cluster: None)
    monkeypatch.setattr(diff, "chart_folder", partial(chart_folder, cache=tmp_path))
    monkeypatch.setattr(diff, "_run_cdk", lambda *_: pytest.fail("the CDK ran"))
    with pytest.raises(ValueError, match=r"^chart hyperpod is not in .*; run make charts, [^\n]*$"):
        diff.main()
