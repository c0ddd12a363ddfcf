"""The regions are CloudFormation's, the zone prefixes EC2's."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import botocore.session
from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend

from config.regions import HEALTH_MONITORING_REGIONS, ZONE_ID_PREFIXES


def test_regions_are_those_of_the_registry() -> None:
    """As cfn-lint records it; other partitions than ``aws`` are no part of this project."""
    spec = find_spec("cfnlint")
    assert spec is not None and spec.origin is not None
    registry = Path(spec.origin).parent / "data" / "schemas" / "providers"
    public = set(botocore.session.get_session().get_available_regions("ec2"))
    found = {
        path.stem
        for path in registry.glob("*.json")
        if "AWS::SageMaker::Cluster" in json.loads(path.read_text())
    }
    assert found & public == set(ZONE_ID_PREFIXES)


def test_zone_ids_begin_with_their_prefix() -> None:
    for region, prefix in ZONE_ID_PREFIXES.items():
        zones = RegionsAndZonesBackend.zones[region]
        assert zones
        assert all(zone.zone_id.startswith(f"{prefix}-az") for zone in zones)


def test_health_is_monitored_in_regions_that_there_are() -> None:
    assert set(ZONE_ID_PREFIXES) > HEALTH_MONITORING_REGIONS
