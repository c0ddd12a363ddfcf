"""Reading of an endpoint file into the typed endpoint, with a list of all mistakes."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from config.endpoint import Endpoint
from config.facts.instance_catalogue import CPU_FAMILIES, GPU_FAMILIES, HOSTING_TYPES
from config.facts.regions import ZONE_ID_PREFIXES
from config.reading.field_errors import field_violations
from config.reading.places import in_file_order
from config.reading.violation import Violation, mistakes_text
from config.reading.yaml_document import read_document

MAX_SAGEMAKER_SECONDS = 60
"""Time for which SageMaker waits for an answer of the container."""
Target = Literal["sagemaker", "eks"]
GIVEN = ("image", "model")
"""Keys that a deployment may give outside the file, because they change with each deployment."""


def load_endpoint(
    path: Path, given: Mapping[str, str | None], target: Target = "sagemaker"
) -> Endpoint:
    """Read and check an endpoint file, with the values given in place of the file's.

    Raises:
        ValueError: listing every mistake in the file's order (``mistakes_text``).
    """
    document: dict[str, Any] = read_document(path) | {
        key: value for key, value in given.items() if value
    }
    try:
        endpoint = Endpoint.model_validate(document)
        found = list(violations(endpoint, target))
    except ValidationError as error:
        found = field_violations(error, document, Endpoint)
        for index, wrong in enumerate(found):
            if wrong.path in GIVEN and wrong.got is None:
                fix = f"give it at deployment, -c {wrong.path}=..., or add {wrong.path}"
                found[index] = replace(wrong, fix=fix)
    if found:
        raise ValueError(mistakes_text(path, in_file_order(found, document)))
    return endpoint


def violations(endpoint: Endpoint, target: Target) -> Iterator[Violation]:
    """Yield violations of rules between values, for the target of the endpoint."""
    is_in_s3 = endpoint.model.startswith("s3://")
    if target == "sagemaker" and not is_in_s3:
        yield Violation("model", endpoint.model, "SageMaker reads s3://...", "give another")
    if target == "eks" and is_in_s3:
        yield Violation(
            "model", endpoint.model, "pods read the file system, /fsx/...", "give another"
        )
    if target == "eks" and endpoint.kubernetes is None:
        allowed = "it is required for EKS and sets the number of pods"
        yield Violation("kubernetes", None, allowed, "add kubernetes")
    if endpoint.region not in ZONE_ID_PREFIXES:
        allowed = f"one of {', '.join(ZONE_ID_PREFIXES)} is allowed"
        yield Violation("region", endpoint.region, allowed, "set one of these")
    if endpoint.instance_type not in HOSTING_TYPES:
        families = ", ".join((*CPU_FAMILIES, *GPU_FAMILIES))
        allowed = f"types of the families {families} are allowed, for example ml.g5.xlarge"
        yield Violation("instance_type", endpoint.instance_type, allowed, "set one of these")
    region_of_image = endpoint.image.split(".")[3]
    if region_of_image != endpoint.region:
        allowed = f"SageMaker requires an image in its own region, {endpoint.region}"
        yield Violation("image", endpoint.image, allowed, "push the image to a repository there")
    instances = endpoint.instances
    if instances.max < instances.min:
        allowed = f"instances.min ({instances.min}) or more is allowed"
        yield Violation("instances.max", instances.max, allowed, f"set {instances.min}")
    for place, key in {"kms": endpoint.kms, "model_key_arn": endpoint.model_key_arn or ""}.items():
        if key.startswith("arn:") and key.split(":")[3] != endpoint.region:
            allowed = f"the key must be in the endpoint's region, {endpoint.region}"
            yield Violation(place, key, allowed, "set another")
    timeout = endpoint.limits.timeout_seconds
    if timeout and timeout > MAX_SAGEMAKER_SECONDS:
        allowed = f"SageMaker waits {MAX_SAGEMAKER_SECONDS} s for a container"
        yield Violation("limits.timeout_seconds", timeout, allowed, "set 55")
