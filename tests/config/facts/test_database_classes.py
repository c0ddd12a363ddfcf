"""Database classes of cluster files match those of RDS."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from config.facts.regions import ZONE_ID_PREFIXES
from config.rules.slurm import DATABASE_SIZES

VERSION = "11.4"


def rules_of(name: str) -> Any:
    """Return cfn-lint's data about AWS::RDS::DBInstance."""
    spec = find_spec("cfnlint")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent / "data" / "schemas" / "extensions" / "aws_rds_dbinstance"
    return json.loads((folder / name).read_text())


def classes(rule: dict[str, Any]) -> set[str]:
    return set(rule["then"]["properties"]["DBInstanceClass"]["enum"])


@pytest.fixture(scope="module")
def of_the_version() -> set[str]:
    return set().union(
        *(
            classes(rule)
            for rule in rules_of("db_instance_class.json")["allOf"]
            if rule["if"]["properties"]["EngineVersion"]["pattern"].endswith(
                VERSION.replace(".", r"\.") + ")$"
            )
        )
    )


def test_classes_run_mariadb(of_the_version: set[str]) -> None:
    regional = rules_of("dbinstanceclass_enum.json")
    of_mariadb = set().union(
        *(
            classes(rule)
            for region in ZONE_ID_PREFIXES
            for rule in regional[region]["allOf"]
            if rule["if"]["properties"]["Engine"] == {"const": "mariadb"}
        )
    )
    ours = {f"db.{family}.{size}" for family, sizes in DATABASE_SIZES.items() for size in sizes}
    assert ours == of_mariadb & of_the_version
