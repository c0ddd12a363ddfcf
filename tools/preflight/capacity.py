"""Checks of capacity for the groups: availability zones, EC2's offers in them, and training plans.

A training plan is reserved capacity with a type, a zone, a number of instances and dates.
"""

from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from config.cluster import Cluster, InstanceGroup, zone_ids, zone_of
from config.facts.registry import has_list_price
from tools.preflight.finding import Finding, Subject
from tools.preflight.read_only_aws import ReadOnlyAws

TARGET = "hyperpod-cluster"
"""Target of a plan, which is bought for HyperPod or for training jobs and cannot be changed."""
ENDS_SOON = timedelta(days=2)
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
        subject = Subject(f"offer {group.name}")
        offered = ", ".join(sorted(zones_of[group.instance_type])) or f"no zone of {cluster.region}"
        if zone in zones_of[group.instance_type]:
            yield _offered(subject, cluster, group)
        elif group.training_plan_arn:
            yield subject.warn(
                f"EC2 lists {group.instance_type} in {offered}, not in {zone}",
                "use the zone of the training plan, which is checked below",
            )
        else:
            yield subject.fail(
                f"{group.instance_type} is not offered in {zone}; it is offered in {offered}",
                "set the group's availability_zone_id (or the network's first zone) to a zone that offers it",
            )


def _offered(subject: Subject, cluster: Cluster, group: InstanceGroup) -> Finding:
    """Return the finding for a type that EC2 offers in the group's zone."""
    message = f"{group.instance_type} is offered in {zone_of(cluster, group)}"
    if group.training_plan_arn or has_list_price(group.instance_type, cluster.region):
        return subject.ok(message)
    return subject.warn(
        f"{message}, but HyperPod's price list has none in {cluster.region}",
        "reserve it with a training plan, or ask your account team whether HyperPod offers it on demand",
    )


def check_training_plans(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    groups_of: dict[str, list[InstanceGroup]] = {}
    for group in cluster.instance_groups:
        if group.training_plan_arn:
            groups_of.setdefault(group.training_plan_arn, []).append(group)
    for arn, groups in groups_of.items():
        name = arn.rpartition("/")[2]
        subject = Subject(f"training plan {name}")
        plan = aws.find("sagemaker", "describe_training_plan", TrainingPlanName=name)
        if plan is None:
            yield subject.fail(
                f"there is no such plan in this account and {cluster.region}",
                "copy the ARN of `aws sagemaker list-training-plans`, or remove training_plan_arn to run on "
                "demand",
            )
            continue
        if plan["TrainingPlanArn"] != arn:
            yield subject.fail(
                f"the file names {arn}, the account has {plan['TrainingPlanArn']}",
                "copy the ARN of `aws sagemaker list-training-plans`",
            )
            continue
        yield _status(subject, plan)
        if TARGET not in plan.get("TargetResources", [TARGET]):
            yield subject.fail(
                f"bought for {', '.join(plan['TargetResources'])}",
                f"buy a plan whose target is {TARGET}",
            )
        yield from _capacity(subject, cluster, plan, groups)


def _status(subject: Subject, plan: dict[str, Any]) -> Finding:
    status = plan["Status"]
    start = plan.get("StartTime")
    end = plan.get("EndTime")
    if status == "Active":
        if end is not None and end - datetime.now(UTC) < ENDS_SOON:
            return subject.warn(
                f"ends {end:%Y-%m-%d %H:%M} UTC",
                "expect its nodes to be taken away then; save checkpoints",
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
                "make sure that the plan's zone is this one: `aws sagemaker describe-training-plan`",
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
