"""Check of the machine images that groups name."""

from collections.abc import Iterator

from config.cluster import Cluster
from config.facts.instance_catalogue import instance_type
from tools.preflight.finding import Finding, Subject
from tools.preflight.read_only_aws import ReadOnlyAws


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
