"""Machine images that groups name."""

from __future__ import annotations

from collections.abc import Iterator

from botocore.exceptions import ClientError

from config.cluster import Cluster
from config.facts.instance_catalogue import instance_type
from tools.aws_session import is_absent
from tools.preflight.finding import Finding, fail, ok
from tools.preflight.read_only_aws import ReadOnlyAws


def check_images(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    for group in cluster.instance_groups:
        if group.image_id is None:
            continue
        subject = f"image {group.image_id}"
        try:
            images = aws.call("ec2", "describe_images", ImageIds=[group.image_id])["Images"]
        except ClientError as error:
            if not is_absent(error):
                raise
            yield fail(subject, str(error), "set image_id to a HyperPod image of this region, or remove it")
            continue
        needed = instance_type(group.instance_type).architecture
        if not images:
            yield fail(subject, "not there, or not shared with this account", "ask its owner to share it")
        elif images[0]["State"] != "available":
            yield fail(subject, f"its state is {images[0]['State']}", "wait until it is available")
        elif images[0]["Architecture"] != needed:
            yield fail(
                subject,
                f"it is {images[0]['Architecture']}, {group.instance_type} is {needed}",
                "set an image_id of the right architecture",
            )
        else:
            yield ok(subject, f"available for group {group.name}")
