"""Regions match CloudFormation's registry, and zone prefixes match EC2."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import botocore.session
from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend

from config.facts.optional_features import OPTIONAL_FEATURES
from config.facts.regions import HEALTH_MONITORING_REGIONS, ZONE_ID_PREFIXES


def regions_with(kind: str) -> set[str]:
    """Return the regions of a resource type in cfn-lint's copy of the registry, for the partition ``aws``."""
    spec = find_spec("cfnlint")
    assert spec is not None and spec.origin is not None
    registry = Path(spec.origin).parent / "data" / "schemas" / "providers"
    public = set(botocore.session.get_session().get_available_regions("ec2"))
    return public & {
        path.stem for path in registry.glob("*.json") if kind in json.loads(path.read_text())
    }


def test_regions_match_the_registry() -> None:
    assert regions_with("AWS::SageMaker::Cluster") == set(ZONE_ID_PREFIXES)


def test_zone_ids_begin_with_their_prefix() -> None:
    for region, prefix in ZONE_ID_PREFIXES.items():
        zones = RegionsAndZonesBackend.zones[region]
        assert zones
        assert all(zone.zone_id.startswith(f"{prefix}-az") for zone in zones)


def test_health_monitoring_regions_are_known_regions() -> None:
    assert set(ZONE_ID_PREFIXES) > HEALTH_MONITORING_REGIONS


def test_every_region_has_what_is_used_in_place_of_apps() -> None:
    assert regions_with("AWS::SageMaker::MlflowTrackingServer") >= set(ZONE_ID_PREFIXES)


def test_optional_features_match_the_registry() -> None:
    for feature in OPTIONAL_FEATURES:
        there = regions_with(feature.resource_type) & set(ZONE_ID_PREFIXES)
        assert there == feature.regions, feature.title
