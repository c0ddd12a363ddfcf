"""Every member of HyperPod's requests has an entry in the table, and the entries are true."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from botocore.loaders import create_loader

from config.cluster import RollingUpdate
from config.slurm_cluster import SlurmInstanceGroup
from tests.stacks.eks_variants import eks_variant_templates
from tests.stacks.synthesized import resources
from tests.stacks.variants import variant_templates
from tools.hyperpod_api.__main__ import END, PAGE, START, main, news, with_tables
from tools.hyperpod_api.coverage import WHOLE, Way, differences
from tools.hyperpod_api.members import (
    CDK_MODULE,
    Member,
    cdk_members,
    request_members,
    service_model,
    type_properties,
)
from tools.hyperpod_api.table import CREATED_BY, REQUESTS
from tools.make_variables import TARGETS
from tools.nodes.patch import Update, update_request

REPOSITORY = Path(__file__).parents[3]
CLUSTER = "AWS::SageMaker::Cluster"


@cache
def requests() -> dict[str, list[Member]]:
    return request_members(service_model())


def test_every_request_has_entries() -> None:
    assert REQUESTS.keys() == requests().keys()


@pytest.mark.parametrize("name", REQUESTS)
def test_every_member_has_an_entry_and_every_entry_a_member(name: str) -> None:
    inherited = REQUESTS[CREATED_BY[name]] if name in CREATED_BY else {}
    found = differences(requests()[name], REQUESTS[name], inherited)
    assert found.without_entry == ()
    assert found.without_member == ()


def _fields(schema: dict[str, Any], node: dict[str, Any], path: list[str]) -> bool:
    """Whether the schema of cluster files has a field, in any of the alternatives."""
    alternatives = [node, *node.get("anyOf", []), *node.get("oneOf", [])]
    for found in alternatives:
        if "$ref" in found:
            name = found["$ref"].rpartition("/")[2]
            if _fields(schema, schema["$defs"][name], path):
                return True
        if "items" in found and _fields(schema, found["items"], path):
            return True
        properties = found.get("properties", {})
        if path and path[0] in properties and _fields(schema, properties[path[0]], path[1:]):
            return True
    return not path


def test_fields_exist_in_cluster_files() -> None:
    schema = json.loads((REPOSITORY / "clusters/cluster.schema.json").read_text())
    fields = [
        entry.text
        for entries in REQUESTS.values()
        for entry in entries.values()
        if entry.way is Way.FIELD
    ]
    assert [name for name in fields if not _fields(schema, schema, name.split("."))] == []
    assert not _fields(schema, schema, ["instance_groups", "colour"])


def test_commands_are_targets_of_make() -> None:
    commands = {
        entry.text
        for entries in REQUESTS.values()
        for entry in entries.values()
        if entry.way is Way.COMMAND
    }
    assert [text for text in commands if text.split()[1] not in TARGETS] == []


def _set_members(value: Any, path: str = "") -> Iterator[str]:
    """Paths of what a template sets, down to values, functions of CloudFormation and empty structures."""
    is_function = isinstance(value, dict) and any(
        key == "Ref" or key.startswith("Fn::") for key in value
    )
    if isinstance(value, dict) and value and not is_function:
        for key, below in value.items():
            yield from _set_members(below, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for item in value:
            is_structure = not any(key == "Ref" or key.startswith("Fn::") for key in item)
            yield from _set_members(item, f"{path}[]") if is_structure else [path]
    else:
        yield path


def test_requests_that_change_something_list_their_members() -> None:
    """A new member of such a request needs an entry, unless the project never sends the request."""
    changing = ("Create", "Update", "Extend", "Batch", "Start", "Move", "Attach", "Detach")
    whole = {
        name: entries[WHOLE].way
        for name, entries in REQUESTS.items()
        if name.startswith(changing) and WHOLE in entries
    }
    assert whole
    assert set(whole.values()) == {Way.LEFT_OUT}


def test_a_patch_sets_what_the_table_says() -> None:
    batches = RollingUpdate(max_nodes=2, wait_seconds=60, rollback_alarms=["gpu-errors"])
    group = SlurmInstanceGroup(
        name="workers", role="worker", instance_type="ml.g5.8xlarge", num_instances=2
    )
    update = Update([group], image_id="ami-0123456789abcdef0", release="1.2.3", batches=batches)
    found = set(_set_members(update_request("esm2-slurm", update)))
    assert found == set(REQUESTS["UpdateClusterSoftware"])


LABELS = "InstanceGroups[].KubernetesConfig.Labels"


@pytest.mark.long
def test_stacks_set_what_the_table_says() -> None:
    """Clusters with every option set each member that a field or the project sets, and no other."""
    found = set()
    for templates in (variant_templates("every_option"), eks_variant_templates("eks_every_option")):
        for template in templates.values():
            for cluster in resources(template, CLUSTER).values():
                found |= set(_set_members(cluster["Properties"]))
    found = {LABELS if path.startswith(f"{LABELS}.") else path for path in found}
    entries = REQUESTS["CreateCluster"]
    said = {path for path, entry in entries.items() if entry.way in (Way.FIELD, Way.FIXED)}
    assert found == said


def test_the_page_is_current() -> None:
    page = (REPOSITORY / PAGE).read_text()
    assert with_tables(page) == page, "run python -m tools.hyperpod_api"


def test_the_page_marks_what_only_the_api_has() -> None:
    page = (REPOSITORY / PAGE).read_text()
    tables = page[page.index(START) : page.index(END)]
    rows = {line.split("`")[1]: line for line in tables.splitlines() if line.startswith("| `")}
    group = "InstanceGroups[]"
    assert rows[f"{group}.AutoPatchConfig.DrainPolicy"].endswith("| **no** |")
    assert rows[f"{group}.AutoPatchConfig.PatchingStrategy"].endswith("**without DrainFirst** |")
    assert rows[f"{group}.InstanceType"].endswith("| yes |")


def test_schema_with_references_and_read_only_properties() -> None:
    schema = {
        "properties": {
            "Groups": {"type": "array", "items": {"$ref": "#/definitions/Group"}},
            "Checks": {"type": "array", "items": {"$ref": "#/definitions/Check"}},
        },
        "definitions": {
            "Group": {"properties": {"Count": {"type": "integer"}, "Id": {"type": "string"}}},
            "Check": {"enum": ["Stress", "Network"]},
        },
        "readOnlyProperties": ["/properties/Groups/*/Id"],
    }
    found = type_properties(schema)
    assert set(found) == {"Groups", "Groups[].Count", "Groups[].Id", "Checks"}
    assert found["Checks"].values == ("Stress", "Network")
    assert found["Groups[].Id"].is_read_only and not found["Groups[].Count"].is_read_only


CDK_TEXT = """
@jsii.data_type(
    jsii_type="aws-cdk-lib.aws_sagemaker.CfnClusterProps",
    jsii_struct_bases=[],
    name_mapping={
        "cluster_name": "clusterName",
        "brand_new": "brandNew",
    },
)
@jsii.data_type(
    jsii_type="aws-cdk-lib.aws_sagemaker.CfnModelProps",
    jsii_struct_bases=[],
    name_mapping={"model_name": "modelName"},
)
"""


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages in which a request, a member, a value and a property of the CDK are new."""
    folder = tmp_path_factory.mktemp("newest")
    model = copy.deepcopy(create_loader().load_service_model("sagemaker", "service-2"))
    model["operations"]["PauseCluster"] = copy.deepcopy(model["operations"]["DeleteCluster"])
    model["shapes"]["CreateClusterRequest"]["members"]["Pace"] = {"shape": "ClusterNodeRecovery"}
    model["shapes"]["ClusterNodeRecovery"]["enum"].append("Manual")
    data = folder / "botocore/data/sagemaker/2017-07-24"
    data.mkdir(parents=True)
    (data / "service-2.json.gz").write_bytes(gzip.compress(json.dumps(model).encode(), 1))
    module = folder / CDK_MODULE
    module.parent.mkdir(parents=True)
    module.write_text(CDK_TEXT)
    return folder


def test_news_of_newer_packages(newer: Path) -> None:
    assert set(news(newer)) == {
        "botocore: request PauseCluster is new",
        "botocore: CreateCluster.Pace is new",
        "botocore: CreateCluster.NodeRecovery accepts Manual",
        "botocore: UpdateCluster.NodeRecovery accepts Manual",
        "aws-cdk-lib: CfnClusterProps.brandNew is new",
    }


def test_news_fail_nothing(
    newer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["hyperpod_api", "--newest", str(newer)])
    assert main() == 0
    assert "request PauseCluster is new" in capsys.readouterr().out


def test_a_folder_without_the_packages_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no botocore; unpack its wheel there"):
        list(news(tmp_path))
    with pytest.raises(ValueError, match=r"has no aws-cdk-lib"):
        cdk_members(tmp_path)
