"""The JSON schema is current, and editors that use it distinguish valid from invalid files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from config.reading.schema import SCHEMA, schema_text
from tests.config.cluster_documents import document


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft7Validator:
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def test_the_file_is_current() -> None:
    assert SCHEMA.read_text() == schema_text(), "the model changed: make schema"


@pytest.mark.parametrize(
    "path", sorted(Path("clusters").glob("*.yaml")), ids=lambda path: path.name
)
def test_shipped_files_name_and_follow_it(
    path: Path, validator: jsonschema.Draft7Validator
) -> None:
    assert path.read_text().splitlines()[0] == f"# yaml-language-server: $schema={SCHEMA.name}"
    assert not list(validator.iter_errors(yaml.safe_load(path.read_text())))


@pytest.mark.parametrize("base", ["existing", "eks-existing"])
def test_an_existing_vpc_follows_it(base: str, validator: jsonschema.Draft7Validator) -> None:
    assert not list(validator.iter_errors(document(base)))


@pytest.mark.parametrize("base", ["small", "eks"])
@pytest.mark.parametrize(
    "changes",
    [
        {"storage.lustre.capacity_gb": 2400},
        {"region": "us-west-3"},
        {"instance_groups[workers].instance_type": "ml.g5.8xlrage"},
        {"network.availability_zone_ids": ["us-west-2a"]},
        {"storage.lustre.throughput_mbps_per_tib": 300},
        {"network.vpc": "shared"},
        {"instance_groups[workers].num_instances": -1},
        {"scheduler": "nomad"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_rejects_mistakes(
    base: str, changes: dict[str, Any], validator: jsonschema.Draft7Validator
) -> None:
    assert list(validator.iter_errors(document(base, changes)))


@pytest.mark.parametrize(
    "changes",
    [
        {"kubernetes.version": 1.34},
        {"instance_groups[p5].labels": {"a b": "c"}},
        {"instance_groups[p5].role": "worker"},
        {"task_governance.teams[proteins].quota[0].instance_type": "ml.p5.48xlrage"},
        {"accounting_database": {}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_rejects_mistakes_on_eks(
    changes: dict[str, Any], validator: jsonschema.Draft7Validator
) -> None:
    assert list(validator.iter_errors(document("eks-p5", changes)))


def test_every_setting_is_explained() -> None:
    schema = json.loads(SCHEMA.read_text())
    sections = schema["$defs"].values()
    assert len(sections) > 20
    unexplained = [
        f"{section['title']}.{name}"
        for section in sections
        for name, setting in section["properties"].items()
        if not setting.get("description")
    ]
    assert not unexplained
