"""Templates of EKS clusters grow linearly with teams and access entries, also beyond one stack."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from config.kubernetes import FIRST_ENTRIES
from config.rules import violations
from config.stack_division import (
    FIRST_TEAMS,
    MAX_RESOURCES,
    OTHER_RESOURCES,
    RESOURCES_PER_TEAM,
    TEAMS_PER_STACK,
    Division,
    division,
)
from stacks.assembly_checks import MAX_TEMPLATE_BYTES
from tests.stacks.eks_cases import hyperpod, settings
from tests.stacks.grown_clusters import cluster_of, synthesized_templates

QUOTA, ASSOCIATION = "Custom::HyperPodComputeQuota", "AWS::EKS::PodIdentityAssociation"
ENTRY, PATCH = "AWS::EKS::AccessEntry", "Custom::AWSCDK-EKS-KubernetesPatch"
NESTED = "AWS::CloudFormation::Stack"
MORE_TEAMS, MORE_ENTRIES = 12, 6
"""Teams and entries beyond the cluster's own stack."""

Resources = dict[str, dict[str, Any]]


SIZES = {
    "10": (10, 10),
    "30": (30, 30),
    "50": (50, 50),
    "more": (FIRST_TEAMS + MORE_TEAMS, FIRST_ENTRIES + MORE_ENTRIES),
}


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The template of each size."""
    clusters = {name: cluster_of(*size) for name, size in SIZES.items()}
    return synthesized_templates(clusters, tmp_path_factory.mktemp("growth"))


def resources(path: Path) -> Resources:
    found: Resources = json.loads(path.read_text())["Resources"]
    return found


def count(found: Resources) -> Counter[str]:
    return Counter(resource["Type"] for resource in found.values())


@pytest.mark.long
def test_the_template_is_linear_in_teams_and_entries(templates: dict[str, Path]) -> None:
    sizes = {name: templates[f"Of{name}"].stat().st_size for name in ("10", "30", "50")}
    earlier = sizes["30"] - sizes["10"]
    later = sizes["50"] - sizes["30"]
    assert 0.9 * earlier <= later <= 1.1 * earlier


@pytest.mark.long
def test_other_teams_and_entries_are_in_nested_stacks(templates: dict[str, Path]) -> None:
    own = count(resources(templates["Ofmore"]))
    nested = [path for name, path in templates.items() if name.endswith(".nested")]
    of_nested = [count(resources(path)) for path in nested]
    assert own[NESTED] == len(nested)
    assert (own[QUOTA], sum(found[QUOTA] for found in of_nested)) == (FIRST_TEAMS, MORE_TEAMS)
    assert sum(found[PATCH] for found in of_nested) == MORE_TEAMS
    assert sum(found[ASSOCIATION] for found in of_nested) == MORE_TEAMS
    # One entry is the installer's.
    assert (own[ENTRY], sum(found[ENTRY] for found in of_nested)) == (
        FIRST_ENTRIES + 1,
        MORE_ENTRIES,
    )
    assert max(own.total(), *(found.total() for found in of_nested)) <= MAX_RESOURCES


@pytest.mark.long
def test_nested_teams_have_all_that_the_first_ones_have(templates: dict[str, Path]) -> None:
    """Each kind of object that the first teams have in their namespaces."""

    def kinds(found: Resources, namespace: str) -> Counter[str]:
        manifests = [
            json.dumps(resource["Properties"]["Manifest"]).replace("\\", "")
            for resource in found.values()
            if resource["Type"] == "Custom::AWSCDK-EKS-KubernetesResource"
        ]
        # A volume names the namespace twice, and the agent's configuration once more.
        return Counter(
            kind
            for kind in (
                "RoleBinding",
                "PersistentVolumeClaim",
                "ServiceAccount",
                "ConfigMap",
                "Job",
            )
            for text in manifests
            for part in text.split('{"apiVersion"')
            if f'"kind":"{kind}"' in part
            and (f'"namespace":"{namespace}"' in part or f"/fsx/{namespace} " in part)
        )

    own = resources(templates["Ofmore"])
    expected = kinds(own, "hyperpod-ns-team-000")
    assert len(expected) >= 4
    for number in range(FIRST_TEAMS, FIRST_TEAMS + MORE_TEAMS):
        namespace = f"hyperpod-ns-team-{number:03d}"
        found: Counter[str] = Counter()
        for name, path in templates.items():
            if name.endswith(".nested"):
                found += kinds(resources(path), namespace)
        assert found == expected, namespace


@pytest.mark.long
def test_growth_changes_nothing_of_what_was_deployed(templates: dict[str, Path]) -> None:
    """Entries, quotas and associations keep their logical ids and properties when others are added."""
    kept = (ENTRY, QUOTA, PATCH, ASSOCIATION)
    sizes = [resources(templates[f"Of{name}"]) for name in SIZES]
    for fewer, more in itertools.pairwise(sizes):
        for name, resource in fewer.items():
            if resource["Type"] in kept:
                assert more[name]["Properties"] == resource["Properties"]


def test_five_hundred_of_both_fit() -> None:
    cluster = cluster_of(500, 500)
    assert violations(cluster) == []
    parts = division(cluster)
    assert max(map(len, parts.team_stacks.values())) <= TEAMS_PER_STACK
    assert len(parts.teams) + sum(map(len, parts.team_stacks.values())) == 500
    assert len(parts.entries) + sum(map(len, parts.entry_stacks.values())) == 500
    assert FIRST_TEAMS * RESOURCES_PER_TEAM + FIRST_ENTRIES + OTHER_RESOURCES == MAX_RESOURCES


def test_one_more_team_moves_no_other() -> None:
    def places(parts: Division) -> dict[str, int]:
        return {team.name: stack for stack, teams in parts.team_stacks.items() for team in teams}

    fewer = places(division(cluster_of(200, 200)))
    more = places(division(cluster_of(201, 201)))
    assert fewer.items() < more.items()


@pytest.mark.parametrize("case", ["eks_every_option", "eks_largest"])
def test_there_is_room_for_all_other_resources(case: str) -> None:
    """The largest number of first teams and entries fits beside everything that a file may ask for."""
    found = hyperpod(case)["Resources"]
    cluster = settings(case)
    others = len(found) - RESOURCES_PER_TEAM * len(cluster.teams) - len(cluster.kubernetes.access)
    assert others <= OTHER_RESOURCES
    assert len(json.dumps(found)) <= MAX_TEMPLATE_BYTES
