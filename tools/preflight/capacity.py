"""Checks of capacity for the groups: availability zones, EC2's offers in them, and training plans.

A training plan is reserved capacity with a type, a zone, a number of instances and dates.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from config.cluster import Cluster, InstanceGroup, zone_ids, zone_of
from config.facts.registry import has_list_price
from config.facts.training_plans import TARGET, WARNING_DAYS, groups_of_plans, plan_name
from config.slurm_cluster import SlurmCluster
from tools.preflight.finding import Finding, Subject
from tools.preflight.read_only_aws import ReadOnlyAws

ENDS_SOON = timedelta(days=max(WARNING_DAYS))
"""Time before the end of a plan from which the check warns."""


def check_zones(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    zones = aws.call("ec2", "describe_availability_zones")["AvailabilityZones"]
    state = {zone["ZoneId"]: zone["State"] for zone in zones}
    for zone_id in dict.fromkeys(zone_ids(cluster)):
        subject = Subject(f"zone {zone_id}")
        if zone_id not in state:
            known = ", ".join(sorted(state))
            yield subject.fail(
                f"this account has no such zone in {cluster.region}", f"use one of {known}"
            )
        elif state[zone_id] != "available":
            yield subject.warn(f"state {state[zone_id]}", "choose another zone, or wait")
        else:
            yield subject.ok("available")


def check_offers(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    """Check EC2's offers, because no API returns HyperPod's."""
    types = sorted(
        {name.removeprefix("ml.") for group in cluster.instance_groups for name in group.types}
    )
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
        for name in group.types:
            yield _offer(cluster, group, name, zones_of)
        if group.instance_types and isinstance(cluster, SlurmCluster):
            yield Subject(f"types of {group.name}").warn(
                "AWS does not document groups of several types on Slurm",
                "try instance_types on a small cluster first (docs/capacity.md)",
            )


def _offer(
    cluster: Cluster, group: InstanceGroup, name: str, zones_of: Mapping[str, set[str]]
) -> Finding:
    """Return the finding for one type of a group.

    Args:
        cluster: cluster file.
        group: group of the file.
        name: one of the group's types.
        zones_of: zones in which EC2 offers each type.
    """
    zone = zone_of(cluster, group)
    zones = zones_of.get(name, set())
    subject = Subject(f"offer {group.name}")
    offered = ", ".join(sorted(zones)) or f"no zone of {cluster.region}"
    if zone in zones:
        return _offered(subject, cluster, group, name)
    if group.training_plan_arn:
        return subject.warn(
            f"EC2 lists {name} in {offered}, not in {zone}",
            "use the zone of the training plan, which is checked below",
        )
    message = f"{name} is not offered in {zone}; it is offered in {offered}"
    if any(zone in zones_of.get(other, set()) for other in group.types):
        return subject.warn(
            message, "remove it from instance_types, because it adds no capacity in this zone"
        )
    return subject.fail(
        message,
        "set the group's availability_zone_id (or the network's first zone) to a zone that offers it",
    )


def _offered(subject: Subject, cluster: Cluster, group: InstanceGroup, name: str) -> Finding:
    """Return the finding for a type that EC2 offers in the group's zone."""
    message = f"{name} is offered in {zone_of(cluster, group)}"
    if group.training_plan_arn or has_list_price(name, cluster.region):
        return subject.ok(message)
    return subject.warn(
        f"{message}, but HyperPod's price list has none in {cluster.region}",
        "reserve it with a training plan, or ask your account team whether HyperPod offers it on demand",
    )


def check_training_plans(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    for arn, groups in groups_of_plans(cluster).items():
        name = plan_name(arn)
        subject = Subject(f"training plan {name}")
        plan = aws.find("sagemaker", "describe_training_plan", TrainingPlanName=name)
        if plan is None:
            yield subject.fail(
                f"there is no such plan in this account and {cluster.region}",
                "copy the ARN of `make plans-list ARGS=--json`, or remove training_plan_arn to run on demand",
            )
            continue
        if plan["TrainingPlanArn"] != arn:
            yield subject.fail(
                f"the file names {arn}, the account has {plan['TrainingPlanArn']}",
                "copy the ARN of `make plans-list ARGS=--json`",
            )
            continue
        yield _status(subject, plan)
        if TARGET not in plan.get("TargetResources", [TARGET]):
            yield subject.fail(
                f"bought for {', '.join(plan['TargetResources'])}",
                f"buy a plan whose target is {TARGET}",
            )
        yield from _capacity(subject, cluster, plan, groups)
        if cluster.observability is None:
            yield subject.warn(
                "no alarm comes before its end",
                "add the section observability; make status shows the end, too",
            )


def _status(subject: Subject, plan: dict[str, Any]) -> Finding:
    status = plan["Status"]
    start = plan.get("StartTime")
    end = plan.get("EndTime")
    if status == "Active":
        left = end - datetime.now(UTC) if end else ENDS_SOON
        if left <= timedelta(0):
            return subject.fail(
                f"ended {end:%Y-%m-%d %H:%M} UTC", "buy another plan, or remove training_plan_arn"
            )
        if left < ENDS_SOON:
            return subject.warn(
                f"ends {end:%Y-%m-%d %H:%M} UTC",
                f"extend it (make plans-search PLAN={plan['TrainingPlanName']}); otherwise its nodes are "
                "taken away then, so save checkpoints",
            )
        return subject.ok("active" + (f" until {end:%Y-%m-%d %H:%M} UTC" if end else ""))
    if status == "Scheduled":
        when = f" {start:%Y-%m-%d %H:%M} UTC" if start else " later"
        return subject.warn(
            f"starts{when}", "its nodes start no earlier; the other resources bill from today"
        )
    if status == "Pending":
        return subject.warn(
            "not paid for or not confirmed yet", "wait until its status is Scheduled or Active"
        )
    reason = plan.get("StatusMessage") or "no reason given"
    return subject.fail(
        f"{status.lower()} ({reason})", "buy another plan, or remove training_plan_arn"
    )


def _capacity(
    subject: Subject, cluster: Cluster, plan: dict[str, Any], groups: list[InstanceGroup]
) -> Iterator[Finding]:
    """Check that a plan has the type, the zone and the number of instances of its groups."""
    reserved = plan.get("ReservedCapacitySummaries", [])
    types = {summary["InstanceType"] for summary in reserved}
    for group in groups:
        zones = {
            summary["AvailabilityZoneId"]
            for summary in reserved
            if summary["InstanceType"] == group.instance_type and "AvailabilityZoneId" in summary
        }
        zone = zone_of(cluster, group)
        if reserved and group.instance_type not in types:
            yield subject.fail(
                f"reserves {', '.join(sorted(types))}, group {group.name} is {group.instance_type}",
                "set the group's instance_type to the plan's",
            )
        elif reserved and not zones:
            yield subject.warn(
                f"it has no zone for its {group.instance_type}; group {group.name} is in {zone}",
                "compare it with the zone of the plan: `make plans-list`",
            )
        elif zones and zone not in zones:
            yield subject.fail(
                f"its capacity is in {', '.join(sorted(zones))}, group {group.name} is in {zone}",
                "set the group's availability_zone_id to the plan's zone, and give the network that zone",
            )
    wanted = sum(group.num_instances for group in groups)
    total = plan.get("TotalInstanceCount", 0)
    available = plan.get("AvailableInstanceCount", total)
    if wanted > total:
        yield subject.fail(
            f"{wanted} instances requested of {total}", f"set num_instances to {total} or less"
        )
    elif wanted > available:
        yield subject.warn(
            f"{wanted} instances requested, {available} of {total} are free",
            "continue if this cluster uses the rest; otherwise stop their user",
        )
    else:
        yield subject.ok(f"{wanted} instances requested, {available} of {total} are free")
