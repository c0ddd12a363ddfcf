"""Every invalid cluster file of ``bad_clusters`` is rejected with exactly the listed errors.

Each entry names a good file (``cluster_documents`` has them), what is changed in it by path, and the errors
in the file's order.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from config.cluster_kinds import KINDS
from config.reading.loader import load_cluster
from config.rules import EKS_RULES, RULES, SLURM_RULES
from tests.config.cluster_documents import document, mistakes

CASES: list[dict[str, Any]] = [
    case
    for path in sorted(Path(__file__).with_name("bad_clusters").glob("*.yaml"))
    for case in yaml.safe_load(path.read_text(encoding="utf-8"))
]
# Too many to list them in a file.
ROLE = "arn:aws:iam::123456789012:role/person"
CASES += [
    {
        "name": "more teams than the stacks hold",
        "base": "eks-p5",
        "changes": {
            "kubernetes.access": [],
            "task_governance.teams": [{"name": f"team-{number}"} for number in range(1800)],
        },
        "errors": [
            "task_governance.teams: got 1800 teams; 1543 of these fit into the cluster's stacks, because "
            "CloudFormation accepts 500 resources per stack; remove 257"
        ],
    },
    {
        "name": "more access entries than the stacks hold",
        "base": "eks-p5",
        "changes": {
            "kubernetes.access": [
                {"principal_arn": f"{ROLE}-{number}", "level": "view"} for number in range(2700)
            ],
        },
        "errors": [
            "kubernetes.access: got 2700 entries; 2536 of these fit into the cluster's stacks, because "
            "CloudFormation accepts 500 resources per stack; remove 164, or give people a common role"
        ],
    },
    {
        "name": "more access entries in the cluster's own stack than it holds",
        "base": "eks-p5",
        "changes": {
            "kubernetes.entries_in_cluster_stack": 460,
            "kubernetes.access": [
                {"principal_arn": f"{ROLE}-{number}", "level": "view"} for number in range(460)
            ],
        },
        "errors": [
            "kubernetes.entries_in_cluster_stack: got 460; at most 449 entries fit into the cluster's own "
            "stack beside 2 teams, because CloudFormation accepts 500 resources per stack; set 449; if the "
            "deployed stack has more entries, take access away from 11 (level: none)"
        ],
    },
    {
        "name": "more groups than SageMaker accepts",
        "base": "small",
        "changes": {
            "instance_groups": [
                {"name": f"group-{number}", "instance_type": "ml.m5.large", "num_instances": 1}
                for number in range(103)
            ],
        },
        "errors": [
            "instance_groups: got 103 items; 100 or fewer items are allowed, because CreateCluster of "
            "SageMaker accepts no more; remove 3, and merge groups of one type, or create a second cluster "
            "from another cluster file"
        ],
    },
    {
        "name": "more profiles than Studio's function keeps",
        "base": "small",
        "changes": {"studio.profiles": [{"name": f"user-{number}"} for number in range(41)]},
        "errors": [
            "studio.profiles: got 41 items; 40 or fewer items are allowed, because their user ids fill the "
            "4 KB of environment variables that AWS Lambda accepts; remove 1, and add these people in the "
            "console (docs/studio.md, More people)"
        ],
    },
    {
        "name": "no room for the label of slices",
        "base": "eks-p5",
        "changes": {
            "kubernetes.access": [],
            "task_governance": None,
            "instance_groups[p5].mig_profile": "1g.10gb",
            "instance_groups[p5].labels": {f"label-{number}": "x" for number in range(50)},
        },
        "errors": [
            "instance_groups[p5].labels: got 50 labels; the label of mig_profile is one of the 50 that "
            "SageMaker accepts; remove a label"
        ],
    },
    {
        "name": "a long list in place of a text",
        "base": "small",
        "changes": {"region": [{"name": f"item-{number}"} for number in range(100)]},
        "errors": [
            "region: got a list of 100 items; a text is allowed; set a text, in quotes if YAML reads it as "
            "another type"
        ],
    },
]


def test_errors_are_exact(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    found = {}
    for case in CASES:
        made = document(case["base"], case["changes"])
        path.write_text(yaml.dump(made, Dumper=yaml.CSafeDumper, allow_unicode=True), "utf-8")
        with pytest.raises(ValueError) as caught:
            load_cluster(path)
        errors = mistakes(caught.value)
        if errors != case["errors"]:
            found[case["name"]] = errors
    assert found == {}


def test_there_are_many_cases_with_distinct_names() -> None:
    names = [case["name"] for case in CASES]
    assert len(names) == len(set(names))
    assert len(names) >= 100


def test_every_rule_has_a_case() -> None:
    told: set[Any] = set()
    for case in CASES:
        made = document(case["base"], case["changes"])
        scheduler = made.get("scheduler")
        own: tuple[Any, ...] = EKS_RULES if scheduler == "eks" else SLURM_RULES
        try:
            cluster = KINDS[str(scheduler)].model_validate(made)
        except (KeyError, ValidationError):
            continue
        told |= {rule for rule in (*RULES, *own) if list(rule(cluster))}
    assert told == {*RULES, *SLURM_RULES, *EKS_RULES}
