"""Checks of the machine images that groups name, and of the base image of Trainium's jobs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from config.cluster import Cluster, InstanceGroup
from config.facts.instance_catalogue import instance_type
from config.facts.known_bad import image_faults
from tools.preflight.finding import Finding, Subject
from tools.preflight.read_only_aws import ReadOnlyAws

NEURON_VERSIONS = Path(__file__).parents[2] / "docker" / "neuron" / "versions.json"


def check_neuron_base(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    """Warn if nodes with Trainium would bill before an image for their jobs can be built."""
    groups = [
        group.name
        for group in cluster.instance_groups
        if group.runs_jobs and instance_type(group.instance_type).is_neuron
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
        architecture = instance_type(group.instance_type).architecture
        if not images:
            yield subject.fail(
                "does not exist, or is not shared with this account", "ask its owner to share it"
            )
        elif images[0]["State"] != "available":
            yield subject.fail(f"its state is {images[0]['State']}", "wait until it is available")
        elif images[0]["Architecture"] != architecture:
            yield subject.fail(
                f"it is {images[0]['Architecture']}, {group.instance_type} is {architecture}",
                "set an image_id of the right architecture",
            )
        else:
            yield subject.ok(f"available for group {group.name}")
            yield from _known_faults(subject, group, images[0])


def _known_faults(
    subject: Subject, group: InstanceGroup, image: dict[str, Any]
) -> Iterator[Finding]:
    """Report versions in the image's name and description that are known to be bad."""
    text = f"{image.get('Name', '')} {image.get('Description', '')}"
    for version, bad in image_faults(text, group.instance_type):
        yield subject.warn(
            f"it has {bad.name} {version}, which {bad.fault} ({bad.source}, {bad.published})",
            f"choose an image without {bad.name} {bad.versions}, or remove image_id",
        )
