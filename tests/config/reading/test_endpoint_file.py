"""Shipped endpoint files are valid, and mistakes are reported with their fixes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from config.endpoint import Limits
from config.reading.endpoint_file import load_endpoint
from config.reading.schema import ENDPOINT_SCHEMA, endpoint_schema_text
from seqlm.proteins.serving.settings import ServeSettings
from tests.config.cluster_documents import mistakes

FILES = sorted(Path("endpoints").glob("*.yaml"))
IMAGE = f"123456789012.dkr.ecr.us-west-2.amazonaws.com/esm2/training@sha256:{'a' * 64}"
GIVEN = {"image": IMAGE, "model": "s3://models/localization/"}


def told(tmp_path: Path, given: dict[str, str] | None = None, **changes: Any) -> list[str]:
    """Return the mistakes in the small file with changes."""
    path = tmp_path / "endpoint.yaml"
    path.write_text(
        yaml.safe_dump(yaml.safe_load(Path("endpoints/esm2.yaml").read_text()) | changes)
    )
    with pytest.raises(ValueError) as error:
        load_endpoint(path, GIVEN if given is None else given)
    return mistakes(error.value)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_shipped_files_are_valid_and_follow_the_schema(path: Path) -> None:
    document = yaml.safe_load(path.read_text())
    load_endpoint(path, {} if "image" in document else GIVEN)
    assert (
        path.read_text().splitlines()[0]
        == f"# yaml-language-server: $schema={ENDPOINT_SCHEMA.name}"
    )
    jsonschema.Draft7Validator(json.loads(ENDPOINT_SCHEMA.read_text())).validate(document)


def test_schema_is_current() -> None:
    assert ENDPOINT_SCHEMA.read_text() == endpoint_schema_text(), "the model changed: make schema"


def test_given_values_take_precedence_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "endpoint.yaml"
    path.write_text(
        Path("endpoints/esm2.yaml").read_text() + f"\nimage: {IMAGE}\nmodel: s3://models/old/\n"
    )
    assert load_endpoint(path, {"model": "s3://models/new/"}).model == "s3://models/new/"
    assert load_endpoint(path, {"model": None}).model == "s3://models/old/"


def test_a_missing_image_is_reported_with_the_way_to_give_it(tmp_path: Path) -> None:
    assert told(tmp_path, {}) == [
        f"{key}: got nothing; it is required; give it at deployment, -c {key}=..., or add {key}"
        for key in ("image", "model")
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"instance_type": "ml.g4dn.xlarge"},
            "instance_type: got ml.g4dn.xlarge; types of the families",
        ),
        ({"region": "mars-north-1"}, "region: got mars-north-1"),
        ({"region": "us-east-1"}, "SageMaker requires an image in its own region, us-east-1"),
        ({"instances": {"min": 3, "max": 2}}, "instances.max: got 2; instances.min (3) or more"),
        ({"instances": {"mim": 3}}, "instances.mim: got 3; there is no such key; set min"),
        ({"storage": {}}, "storage: got a mapping; there is no such key"),
        ({"image": "esm2:latest"}, "an image is given by digest"),
        ({"model": "/fsx/model"}, "model: got /fsx/model; SageMaker reads s3://"),
        ({"model": "here"}, "a model is given as s3://"),
        ({"model": "s3://models/model.zip"}, "a model is given as s3://"),
        ({"kms": "alias/mine"}, "kms: got alias/mine"),
        (
            {"model_key_arn": f"arn:aws:kms:us-east-2:123456789012:key/{'0' * 36}"},
            "the key must be in the endpoint's region",
        ),
        ({"limits": {"timeout_seconds": 90}}, "SageMaker waits 60 s"),
        ({"capture": {"to": "here"}}, "a folder of a bucket is given as"),
        ({"kubernetes": {"gpus": 2}}, "kubernetes.gpus: got 2; 1 or less is allowed"),
    ],
)
def test_mistakes_are_reported(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    given = {key: value for key, value in GIVEN.items() if key not in changes}
    assert any(said in line for line in told(tmp_path, given, **changes)), told(
        tmp_path, given, **changes
    )


def test_limits_match_the_server_s() -> None:
    """Each limit is a setting of the server and accepts only values that the server accepts."""
    for name, field in Limits.model_json_schema()["properties"].items():
        numbers = field["anyOf"][0]
        for value in (numbers["minimum"], numbers["maximum"]):
            environment = Limits(**{name: value}).environment
            if name == "max_waiting_residues" and value == 1:
                continue  # less than a protein may have
            if name == "max_residues" and value == numbers["maximum"]:
                environment["ESM2_SERVE_MAX_WAITING_RESIDUES"] = str(value)
            assert getattr(ServeSettings.of(environment), name) == value
