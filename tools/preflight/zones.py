"""Availability zones: they exist, and have the instance types that are asked of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from config.cluster import Cluster, zone_ids, zone_of
from tools.preflight.finding import Finding, fail, ok, warn
from tools.preflight.read_only_aws import ReadOnlyAws


def check_zones(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    zones = aws.call("ec2", "describe_availability_zones")["AvailabilityZones"]
    state = {zone["ZoneId"]: zone["State"] for zone in zones}
    for zone_id in dict.fromkeys(zone_ids(cluster)):
        subject = f"zone {zone_id}"
        if zone_id not in state:
            known = ", ".join(sorted(state))
            yield fail(subject, f"not a zone of this account in {cluster.region}", f"use one of {known}")
        elif state[zone_id] != "available":
            yield warn(subject, f"state {state[zone_id]}", "choose another zone, or wait")
        else:
            yield ok(subject, "available")


def check_offers(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    """EC2's offers stand in for HyperPod's, which cannot be asked for."""
    types = sorted({group.instance_type.removeprefix("ml.") for group in cluster.instance_groups})
    offers = aws.items(
        "ec2",
        "describe_instance_type_offerings",
        "InstanceTypeOfferings",
        LocationType="availability-zone-id",
        Filters=[{"Name": "instance-type", "Values": types}],
    )
    zones_of: dict[str, set[str]] = defaultdict(set)
    for offer in offers:
        zones_of[f"ml.{offer['InstanceType']}"].add(offer["Location"])
    for group in cluster.instance_groups:
        zone = zone_of(cluster, group)
        subject = f"offer {group.name}"
        offered = ", ".join(sorted(zones_of[group.instance_type])) or f"no zone of {cluster.region}"
        if zone in zones_of[group.instance_type]:
            yield ok(subject, f"{group.instance_type} is offered in {zone}")
        elif group.training_plan_arn:
            yield warn(
                subject,
                f"EC2 lists {group.instance_type} in {offered}, not in {zone}",
                "trust the training plan's own zone, checked below",
            )
        else:
            yield fail(
                subject,
                f"{group.instance_type} is not offered in {zone}; it is in {offered}",
                "set availability_zone_id of the group (or the network's first zone) to one that has it",
            )
