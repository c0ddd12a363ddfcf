"""The image repository keeps what nodes may still pull."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.stacks.synthesized import CLUSTER_FILES, REPOSITORY, only, templates


def rules(file: str) -> list[dict[str, Any]]:
    repository = only(templates(file)["SlurmStorageStack"], "AWS::ECR::Repository")
    found: list[dict[str, Any]] = json.loads(repository["LifecyclePolicy"]["LifecyclePolicyText"])[
        "rules"
    ]
    return sorted(found, key=lambda rule: rule["rulePriority"])


@pytest.mark.parametrize("file", CLUSTER_FILES)
def test_training_images_do_not_push_out_what_nodes_run_beside_them(file: str) -> None:
    """ECR: an image that matches a rule's tags cannot be expired by a rule that comes later.

    Each rule names one prefix, since an image must have tags of all that a rule lists.
    """
    first, *others = rules(file)
    assert first["selection"]["countType"] == "imageCountMoreThan"
    (prefix,) = first["selection"]["tagPrefixList"]
    table = json.loads((REPOSITORY / "lifecycle" / "slurm" / "downloads.json").read_text())
    tags = [f"{image['name']}-{image['version']}" for image in table["images"]]
    assert tags and all(tag.startswith(prefix) for tag in tags)
    assert [rule["selection"]["tagStatus"] for rule in others] == ["untagged", "any"]
    assert first["selection"]["countNumber"] > 1
