"""Tags must fit AWS's limits minus the tags of the stacks."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from config.reading.loader import load_cluster
from tests.config.cluster_documents import document

TAGS = {
    "more than forty": (
        {f"tag{index}": "x" for index in range(43)},
        "tags: got 43 tags; at most 40 are allowed: AWS takes 50 on a resource, and the stacks add their own;"
        " remove 3",
    ),
    "long key": (
        {"k" * 128: "x"},
        f"tags.{'k' * 128}: got a key of 128 characters; 1 to 127 are allowed; set a shorter key",
    ),
    "long value": (
        {"key": "v" * 256},
        "tags.key: got a value of 256 characters; 1 to 255 are allowed; set a shorter value",
    ),
}


@pytest.mark.parametrize("case", TAGS)
def test_rejects_tags_above_the_limits(case: str, tmp_path: Path) -> None:
    tags, error = TAGS[case]
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump(document("small", {"tags": tags})))
    with pytest.raises(ValueError) as caught:
        load_cluster(path)
    assert str(caught.value) == f"{path}: 1 mistake\n  {error}"
