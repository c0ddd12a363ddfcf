"""The JSON schema is current, and an editor that knows it tells good files from bad ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from config.schema import SCHEMA, schema_text
from tests.config.cluster_documents import document


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft7Validator:
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def test_the_file_is_current() -> None:
    assert SCHEMA.read_text() == schema_text(), "the model changed: make schema"


@pytest.mark.parametrize("path", sorted(Path("clusters").glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_files_name_and_follow_it(path: Path, validator: jsonschema.Draft7Validator) -> None:
    assert path.read_text().splitlines()[0] == f"# yaml-language-server: $schema={SCHEMA.name}"
    assert not list(validator.iter_errors(yaml.safe_load(path.read_text())))


def test_an_existing_vpc_follows_it(validator: jsonschema.Draft7Validator) -> None:
    assert not list(validator.iter_errors(document("existing")))


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
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_mistakes_are_seen(changes: dict[str, Any], validator: jsonschema.Draft7Validator) -> None:
    assert list(validator.iter_errors(document("small", changes)))


def test_every_setting_is_explained() -> None:
    schema = json.loads(SCHEMA.read_text())
    sections = [schema, *schema["$defs"].values()]
    assert len(sections) > 10
    unexplained = [
        f"{section['title']}.{name}"
        for section in sections
        for name, setting in section["properties"].items()
        if not setting.get("description")
    ]
    assert not unexplained
