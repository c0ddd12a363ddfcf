"""Images from registries on the internet that EKS clusters run, and their copies in the cluster's repository.

Nodes without internet access reach only the ECR of their region, through interface endpoints. The images of
EKS's add-ons and of HyperPod's health monitoring agent are in AWS's registries there. The other images are
in this table. With ``kubernetes.images: image_repository``, nodes pull copies of them, which
`make mirror-downloads` puts into the cluster's image repository.
"""

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from config.eks_cluster import EksCluster, has_slices
from config.facts.instance_catalogue import InstanceType
from config.resource_names import ResourceNames

_REGIONAL = r"\d{{12}}\.dkr\.ecr\.{region}\.amazonaws\.com/"
"""Beginning of the reference to an image in ECR of a region."""
_CONTAINER_LISTS = ("containers", "initContainers")


@dataclass(frozen=True)
class PublicImage:
    """Image in a registry on the internet."""

    name: str
    """Name of the copy, with which its tag begins."""
    source: str
    """Registry and repository."""
    version: str
    """Tag."""
    digest: str | None
    """Digest of the index of all platforms. Null if it is not recorded yet (docs/internet.md)."""
    is_needed: Callable[[EksCluster], bool]
    chart_part: str | None = None
    """Part of HyperPod's chart whose value ``image`` has ``repository`` and ``tag``. Null if the chart does
    not install the image, or has no value for it."""

    @property
    def reference(self) -> str:
        """Reference from which nodes with internet access pull the image."""
        return f"{self.source}:{self._pinned(self.version)}"

    @property
    def copied_from(self) -> str:
        """Reference for programs that copy, which accept a tag or a digest."""
        return f"{self.source}@{self.digest}" if self.digest else f"{self.source}:{self.version}"

    @property
    def tag(self) -> str:
        """Tag of the copy."""
        return f"{self.name}-{self.version}"

    @property
    def pinned_tag(self) -> str:
        """Tag of the copy, with the digest if it is recorded, as charts and pods have it."""
        return self._pinned(self.tag)

    def copy_in(self, repository: str) -> str:
        """Return the reference to the copy in a repository."""
        return f"{repository}:{self.pinned_tag}"

    def _pinned(self, tag: str) -> str:
        return f"{tag}@{self.digest}" if self.digest else tag


def _has(hardware: Callable[[InstanceType], object]) -> Callable[[EksCluster], bool]:
    """Return the condition that a group of the cluster has some hardware."""

    def is_met(cluster: EksCluster) -> bool:
        return any(hardware(group.hardware) for group in cluster.instance_groups)

    return is_met


SHELL = PublicImage(
    name="busybox",
    # Docker's official image.
    source="public.ecr.aws/docker/library/busybox",
    version="1.37.0",
    digest="sha256:bdf57e528e45e4433820e045b29b4597825a1c9e38353532d90a01445013f82e",
    is_needed=lambda cluster: True,
)
"""Job that creates the folders of namespaces on the file system."""
AWS_CLI = PublicImage(
    name="aws-cli",
    source="public.ecr.aws/aws-cli/aws-cli",
    version="2.37.4",
    digest="sha256:fdd8d1fcbea9c371678dee5a40df8b178c7a781b4586605756ee28114c97ead6",
    is_needed=lambda cluster: cluster.studio is not None,
)
"""AWS's own image for the job that creates and removes folders for Studio.

It contains the Python 3.9 of Amazon Linux 2023's package manager, on which the job's program runs.
"""
PROMETHEUS = PublicImage(
    name="prometheus",
    source="quay.io/prometheus/prometheus",
    # The version of Slurm's controller (lifecycle/slurm/downloads.json).
    version="v3.5.0",
    digest="sha256:63805ebb8d2b3920190daf1cb14a60871b16fd38bed42b857a3182bc621f4996",
    is_needed=lambda cluster: cluster.prometheus,
)
"""Collector of the metrics of trainings."""
NEURON_PLUGIN = PublicImage(
    name="neuron-device-plugin",
    source="public.ecr.aws/neuron/neuron-device-plugin",
    version="2.19.16.0",
    digest=None,
    is_needed=_has(lambda hardware: hardware.num_neuron_devices),
)
"""Device plugin for which the chart has no value; ``chart_patches`` sets its image."""
FEATURE_DISCOVERY = PublicImage(
    name="node-feature-discovery",
    source="registry.k8s.io/nfd/node-feature-discovery",
    version="v0.18.3",
    digest=None,
    is_needed=has_slices,
)
"""Part of NVIDIA's GPU Operator that is not in AWS's registries (``gpu_operator``)."""
PUBLIC_IMAGES: tuple[PublicImage, ...] = (
    PublicImage(
        name="nvidia-device-plugin",
        source="nvcr.io/nvidia/k8s-device-plugin",
        version="v0.16.1",
        digest=None,
        is_needed=_has(lambda hardware: hardware.num_gpus),
        chart_part="nvidia-device-plugin",
    ),
    PublicImage(
        name="efa-device-plugin",
        # ECR of one region, which interface endpoints in other regions do not reach.
        source="602401143452.dkr.ecr.us-west-2.amazonaws.com/eks/aws-efa-k8s-device-plugin",
        version="v0.5.13",
        digest=None,
        is_needed=_has(lambda hardware: hardware.num_efa),
        chart_part="aws-efa-k8s-device-plugin",
    ),
    NEURON_PLUGIN,
    PublicImage(
        name="kubeflow-training-operator",
        source="kubeflow/training-operator",
        version="v1-855e096",
        digest=None,
        is_needed=lambda cluster: cluster.training_operator == "kubeflow",
        chart_part="training-operators",
    ),
    SHELL,
    AWS_CLI,
    PROMETHEUS,
    FEATURE_DISCOVERY,
)
"""All images in registries on the internet, in the versions of the pinned chart. A new part of the chart with
an image elsewhere needs a row: `make charts`, `make preflight` and the tests report one that is missing."""


def needed_images(cluster: EksCluster) -> list[PublicImage]:
    """Return the images that the cluster's nodes pull."""
    return [image for image in PUBLIC_IMAGES if image.is_needed(cluster)]


def takes_copies(cluster: EksCluster) -> bool:
    """Return whether nodes pull copies from the cluster's image repository."""
    return cluster.kubernetes.images == "image_repository"


def repository_address(cluster: EksCluster, account: str) -> str:
    """Return the address of the cluster's image repository, without a tag."""
    name = ResourceNames(cluster).image_repository
    return f"{account}.dkr.ecr.{cluster.region}.amazonaws.com/{name}"


def is_regional(reference: str, region: str) -> bool:
    """Return whether an image is in ECR of the region, which interface endpoints reach."""
    return re.match(_REGIONAL.format(region=re.escape(region)), reference) is not None


def is_known(reference: str, region: str) -> bool:
    """Return whether an image is in ECR of the region, or in the table."""
    return is_regional(reference, region) or reference in {
        image.reference for image in PUBLIC_IMAGES
    }


def with_copies(objects: Sequence[Mapping[str, Any]], repository: str) -> list[Mapping[str, Any]]:
    """Return Kubernetes objects with the copies in a repository instead of public images.

    Raises:
        ValueError: if an image is not in the table.
    """
    copies = {image.reference: image.copy_in(repository) for image in PUBLIC_IMAGES}
    changed = copy.deepcopy(list(objects))
    for found in changed:
        containers = list(_containers(found))
        for container in containers:
            if container["image"] not in copies:
                raise ValueError(
                    f"image {container['image']} of {found['kind']} {found['metadata']['name']} is not in "
                    "manifests/public_images.py, so nodes without internet access could not pull it: add it"
                )
            container["image"] = copies[container["image"]]
        if containers and found["kind"] == "Job":
            # A job cannot be changed, so the one with the publisher's image has another name.
            found["metadata"]["name"] += "-copy"
    return changed


def images_of(objects: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the distinct images of all containers of Kubernetes objects, sorted."""
    return sorted({container["image"] for container in _containers(objects)})


def _containers(value: object) -> Iterator[dict[str, Any]]:
    """Yield the containers at any depth, which differs between pods, their templates and those of jobs."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key in _CONTAINER_LISTS and isinstance(inner, list):
                yield from inner
            else:
                yield from _containers(inner)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            yield from _containers(item)
