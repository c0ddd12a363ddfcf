"""A wrong value hides no other mistake and causes no additional errors."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from config.reading import loader
from tests.config.cluster_documents import document, mistakes

# This mistake is independent of every other value.
FAULT = {"aws:owner": "lab"}
TOLD = "tags.aws:owner: got lab; AWS reserves keys that begin with aws:; set another key"
# No value in a cluster file has this type.
NOTHING_LIKE_IT = 1.5

WITH_EVERYTHING = {
    "name": "everything",
    "network.internet": "nat",
    "network.flow_logs_days": 30,
    "network.cidr": "10.0.0.0/16",
    "storage.lustre.compression": "lz4",
    "storage.lustre.backup_days": 0,
    "storage.lustre.mount_path": "/lustre",
    "storage.data_bucket": {"lustre_path": "/data", "noncurrent_days": 30, "removal": "retain"},
    "storage.home.backup_days": 7,
    "instance_groups[login].availability_zone_id": "use1-az4",
    "instance_groups[login].image_id": "ami-0123456789abcdef0",
    "instance_groups[p5].min_instances": 4,
    "instance_groups[p5].ebs_gib": 1000,
    "instance_groups[p5].threads_per_core": 1,
    "instance_groups[p5].efa_only": False,
    "instance_groups[p5].capacity": "on_demand",
    "instance_groups[p5].auto_patch": "when_idle",
    "node_recovery": "automatic",
    "continuous_provisioning": True,
    "slurm_config_strategy": "merge",
    "prometheus": True,
}
EKS_WITH_EVERYTHING = {
    "autoscaling": "karpenter",
    "training_operator": "kubeflow",
    "container_insights": True,
    "memory_states": {"storage": "managed", "percent": 30},
    "kubernetes.endpoint": "public_and_private",
    "kubernetes.public_access_cidrs": ["203.0.113.0/24"],
    "kubernetes.control_plane_logs": ["api", "audit"],
    "kubernetes.control_plane_log_days": 30,
    "task_governance.fair_share": True,
    "task_governance.lend_unallocated": False,
    "task_governance.teams[proteins].sharing": "lend_and_borrow",
    "task_governance.teams[proteins].preemption": "never",
    "instance_groups[p5].labels": {"example.com/purpose": "training"},
    "instance_groups[p5].taints": [{"key": "purpose", "value": "training", "effect": "NoSchedule"}],
    "instance_groups[p5].image_release_version": "1.2.3",
    "instance_groups[p5].efa_only": True,
}
SCALED = {
    "name": "scaled",
    "instance_type": "ml.g6.8xlarge",
    "num_instances": 0,
    "max_instances": 4,
}
DOCUMENTS = {
    "eks-p5": document("eks-p5", {"tags": FAULT, **EKS_WITH_EVERYTHING}),
    "eks-existing": document("eks-existing", {"tags": FAULT}),
    "p5": document("p5", {"tags": FAULT, **WITH_EVERYTHING}),
    "existing": document("existing", {"tags": FAULT, "accounting_database": {}}),
}
DOCUMENTS["eks-p5"]["instance_groups"].append(SCALED)

Place = tuple[int | str, ...]


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    """Yield the place of every key and item, including sections."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for part, below in inner:
        if (*place, part) != ("tags",) and place != ("tags",):
            yield (*place, part)
            yield from places(below, (*place, part))


PLACES = [(base, place) for base, made in DOCUMENTS.items() for place in places(made)]


def errors(made: dict[str, Any]) -> list[str]:
    """Return the errors of a document, the independent one last; parsing text would take longer than
    checking.
    """
    path = Path("cluster.yaml")
    with (
        patch.object(loader, "read_document", lambda path: made),
        pytest.raises(ValueError) as caught,
    ):
        loader.load_cluster(path)
    return sorted(mistakes(caught.value), key=TOLD.__eq__)


def holder_of(made: dict[str, Any], place: Place) -> Any:
    holder: Any = made
    for part in place[:-1]:
        holder = holder[part]
    return holder


def shown(base: str, place: Place) -> str:
    """Return the place in the form of error messages; a group with an invalid name has its index."""
    path = ""
    value = DOCUMENTS[base]
    for depth, part in enumerate(place):
        value = value[part]  # type: ignore[index]
        if isinstance(part, int):
            has_name = (
                isinstance(value, dict)
                and "name" in value
                and place[depth + 1 :] not in ((), ("name",))
            )
            path += f"[{value['name'] if has_name else part}]"
        else:
            path += f".{part}" if path else part
    return path


def test_mistakes_are_aligned_lines_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    text = (
        Path("clusters/slurm.yaml").read_text().replace("capacity_gib: 1200", "capacity_gib: 1000")
    )
    path.write_text(text.replace("vpc: new", "vpc: new\n  colour: red\n  flow_logs_days: 2"))
    with pytest.raises(ValueError) as caught:
        loader.load_cluster(path)
    first, colour, days, capacity = str(caught.value).split("\n")
    assert first == f"{path}: 3 mistakes"
    assert colour.startswith(
        "  network.colour:              got red;  there is no such key; remove it, or"
    )
    assert days.startswith("  network.flow_logs_days:      got 2;    one of 1, 3, 5, ")
    assert capacity == (
        "  storage.lustre.capacity_gib: got 1000; PERSISTENT_2 SSD allows 1200, 2400 or a multiple of 2400;"
        " set 1200"
    )


def test_each_document_has_one_mistake() -> None:
    assert [errors(made) for made in DOCUMENTS.values()] == [[TOLD]] * len(DOCUMENTS)


def test_a_wrong_value_is_the_only_other_error() -> None:
    found = {}
    for base, place in PLACES:
        made = copy.deepcopy(DOCUMENTS[base])
        holder_of(made, place)[place[-1]] = NOTHING_LIKE_IT
        wrong, *others = errors(made)
        if others != [TOLD] or not wrong.startswith(
            f"{shown(base, place)}: got {NOTHING_LIKE_IT}; "
        ):
            found[base, place] = [wrong, *others]
    assert found == {}


# Without the kind of network, its other mistakes are reported only if its keys identify the kind.
MISSING = [
    (base, place)
    for base, place in PLACES
    # Labels may have any name.
    if isinstance(place[-1], str) and place != ("network", "vpc") and "labels" not in place[:-1]
]


def test_a_mistyped_key_is_the_only_other_error() -> None:
    found = {}
    for base, place in MISSING:
        made = copy.deepcopy(DOCUMENTS[base])
        holder = holder_of(made, place)
        holder[f"{place[-1]}x"] = holder.pop(place[-1])
        mistyped, *others = errors(made)
        if others != [TOLD] or not mistyped.endswith(f"; there is no such key; set {place[-1]}"):
            found[base, place] = [mistyped, *others]
    assert found == {}
