"""Checks of the images that groups name, of alarms for their updates, and of Trainium's base image."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from config.cluster import Cluster, InstanceGroup
from config.facts.known_bad import image_faults
from config.reading.violation import shown
from tools.preflight.finding import Finding, Subject
from tools.preflight.read_only_aws import ReadOnlyAws

MAX_ALARMS = 100
"""Most names that DescribeAlarms takes."""
NEURON_VERSIONS = Path(__file__).parents[2] / "docker" / "neuron" / "versions.json"


def check_neuron_base(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    """Warn if nodes with Trainium would bill before an image for their jobs can be built."""
    groups = [
        group.name
        for group in cluster.instance_groups
        if group.runs_jobs and group.hardware.is_neuron
    ]
    if groups and json.loads(NEURON_VERSIONS.read_text())["base"]["digest"] is None:
        yield Subject("training image for Trainium").warn(
            f"the base image has no pinned digest, so `make image FRAMEWORK=neuron` cannot build; group "
            f"{', '.join(groups)} would bill meanwhile",
            "first pin the digest in docker/neuron/versions.json (docs/trainium.md), or set num_instances: 0",
        )


def check_images(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    for group in cluster.instance_groups:
        if group.image_id is None:
            continue
        subject = Subject(f"image {group.image_id}")
        found = aws.find("ec2", "describe_images", ImageIds=[group.image_id])
        if found is None:
            action = "set image_id to a HyperPod image of this region, or remove it"
            yield subject.fail(f"was not found in {cluster.region}; it may be deregistered", action)
            continue
        images = found["Images"]
        architecture = group.hardware.architecture
        if not images:
            yield subject.fail(
                "does not exist, or is not shared with this account", "ask its owner to share it"
            )
        elif images[0]["State"] != "available":
            yield subject.fail(f"its state is {images[0]['State']}", "wait until it is available")
        elif images[0]["Architecture"] != architecture:
            yield subject.fail(
                f"it is {images[0]['Architecture']}, {group.types_text} is {architecture}",
                "set an image_id of the right architecture",
            )
        else:
            yield subject.ok(f"available for group {group.name}")
            yield from _known_faults(subject, group, images[0])


def check_rollback_alarms(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    """Check that the alarms of ``rolling_update`` exist, and that none would end an update at once."""
    names = {
        name
        for group in cluster.instance_groups
        if group.rolling_update
        for name in group.rolling_update.rollback_alarms
    }
    if not names:
        return
    # Without the kinds, the answer has no composite alarms.
    found = aws.call(
        "cloudwatch",
        "describe_alarms",
        AlarmNames=sorted(names)[:MAX_ALARMS],
        AlarmTypes=["CompositeAlarm", "MetricAlarm"],
    )
    states = {
        alarm["AlarmName"]: alarm["StateValue"]
        for kind in ("CompositeAlarms", "MetricAlarms")
        for alarm in found.get(kind, [])
    }
    for name in sorted(names)[:MAX_ALARMS]:
        subject = Subject(f"rollback alarm {shown(name)}")
        if name not in states:
            yield subject.fail(
                f"does not exist in {cluster.region}",
                "create it in CloudWatch, or remove it from rollback_alarms",
            )
        elif states[name] == "ALARM":
            yield subject.warn(
                "is raised now, so an update would return to the earlier image at once",
                "remove the cause before the next update",
            )
        else:
            yield subject.ok(f"its state is {states[name]}")


def _known_faults(
    subject: Subject, group: InstanceGroup, image: dict[str, Any]
) -> Iterator[Finding]:
    """Report versions in the image's name and description that are known to be bad."""
    text = f"{image.get('Name', '')} {image.get('Description', '')}"
    found = dict.fromkeys(fault for name in group.types for fault in image_faults(text, name))
    for version, bad in found:
        yield subject.warn(
            f"it has {bad.name} {version}, which {bad.fault} ({bad.source}, {bad.published})",
            f"choose an image without {bad.name} {bad.versions}, or remove image_id",
        )
