"""People and teams that leave an EKS cluster: all others keep their places in its stacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from config import stack_division
from config.eks_cluster import EksCluster
from config.kubernetes import AccessEntry
from tests.stacks.grown_clusters import cluster_of, synthesized_templates
from tools.stacks.moves import OWN_STACK, Places, describe_moves, template_places

pytestmark = pytest.mark.long

FIRST_TEAMS, FIRST_ENTRIES = 3, 4
"""Teams and entries in the cluster's own stack in these tests; there are more in fact."""
NUM_TEAMS, NUM_ENTRIES = 5, 8
LEAVERS = (1, 5)
"""Places of the leavers: one in the cluster's own stack, and one in a nested stack."""
FORMER_TEAM = 1


def principals(cluster: EksCluster, *places: int) -> list[str]:
    return [cluster.kubernetes.access[place].principal_arn for place in places]


def changed(**sections: Any) -> EksCluster:
    """The cluster with other fields in its sections, and without namespaces of teams."""
    document = cluster_of(NUM_TEAMS, NUM_ENTRIES).model_dump(exclude_unset=True)
    for entry in document["kubernetes"]["access"]:
        entry["namespaces"] = []
    for name, fields in sections.items():
        document[name] |= fields
    cluster = EksCluster.model_validate(document)
    # Fewer than a file may have.
    few = {"entries_in_cluster_stack": FIRST_ENTRIES}
    return cluster.model_copy(update={"kubernetes": cluster.kubernetes.model_copy(update=few)})


EVERYONE = changed()
ACCESS = EVERYONE.model_dump(exclude_unset=True)["kubernetes"]["access"]
TEAMS = EVERYONE.model_dump(exclude_unset=True)["task_governance"]["teams"]
CLUSTERS = {
    "Everyone": EVERYONE,
    "WithoutAccess": changed(
        kubernetes={
            "access": [
                entry | {"level": "none"} if place in LEAVERS else entry
                for place, entry in enumerate(ACCESS)
            ]
        }
    ),
    "ShorterList": changed(
        kubernetes={"access": [entry for place, entry in enumerate(ACCESS) if place not in LEAVERS]}
    ),
    "WithoutLast": changed(kubernetes={"access": ACCESS[:-1]}),
    "TeamWithoutQuota": changed(
        task_governance={
            "teams": [
                {"name": team["name"]} if place == FORMER_TEAM else team
                for place, team in enumerate(TEAMS)
            ]
        }
    ),
    "FewerTeams": changed(
        task_governance={
            "teams": [team for place, team in enumerate(TEAMS) if place != FORMER_TEAM]
        }
    ),
}


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The template of each cluster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stack_division, "FIRST_TEAMS", FIRST_TEAMS)
        return synthesized_templates(CLUSTERS, tmp_path_factory.mktemp("leavers"))


def places(templates: dict[str, Path], name: str) -> Places:
    path = templates[f"Of{name}"]
    return template_places(json.loads(path.read_text()), path.parent)


def moves(templates: dict[str, Path], name: str) -> list[str]:
    found = describe_moves(places(templates, "Everyone"), places(templates, name), CLUSTERS[name])
    return list(found)


def test_the_templates_have_both_kinds_of_places(templates: dict[str, Path]) -> None:
    found = places(templates, "Everyone")
    for of_kind, num_own, number in (
        (found.entries, FIRST_ENTRIES, NUM_ENTRIES),
        (found.teams, FIRST_TEAMS, NUM_TEAMS),
    ):
        own = [place for place in of_kind.values() if place.stack == OWN_STACK]
        assert (len(own), len(of_kind)) == (num_own, number)


def test_all_others_keep_their_places_and_nothing_of_a_leaver_is_left(
    templates: dict[str, Path],
) -> None:
    before = places(templates, "Everyone")
    after = places(templates, "WithoutAccess")
    leavers = principals(EVERYONE, *LEAVERS)
    others = {arn: place for arn, place in before.entries.items() if arn not in leavers}
    assert after.entries == others
    assert after.teams == before.teams
    files = [path for name, path in templates.items() if name.startswith("OfWithoutAccess")]
    assert len(files) > 1
    texts = [path.read_text() for path in files]
    for leaver in leavers:
        assert not any(leaver in text for text in texts)
    for other in others:
        assert any(other in text for text in texts)
    assert moves(templates, "WithoutAccess") == []


def test_no_nested_stack_is_empty(templates: dict[str, Path]) -> None:
    """CloudFormation refuses a template without resources."""
    for path in templates.values():
        assert json.loads(path.read_text())["Resources"]


def test_a_shorter_list_is_refused(templates: dict[str, Path]) -> None:
    (message,) = moves(templates, "ShorterList")
    moved = ", ".join(principals(EVERYONE, 2, 3, 4))
    gone = ", ".join(principals(EVERYONE, *LEAVERS))
    assert f"move access entries to other places in the stacks: {moved}. " in message
    assert f"with `level: none`: {gone}." in message


@pytest.mark.parametrize("name", ["WithoutLast", "TeamWithoutQuota"])
def test_the_last_entry_may_go_and_a_team_may_lose_its_quota(
    name: str, templates: dict[str, Path]
) -> None:
    assert moves(templates, name) == []


def test_a_removed_team_would_move_associations_with_the_role_of_mlflow(
    templates: dict[str, Path],
) -> None:
    old = places(templates, "Everyone")
    new = places(templates, "FewerTeams")
    assert old.associations.keys() == old.teams.keys() == {team["name"] for team in TEAMS}
    moved = TEAMS[FORMER_TEAM + 1]["name"]
    assert old.teams[moved] == new.teams[moved]
    assert old.associations[moved] != new.associations[moved]
    own = Places(associations=old.associations), Places(associations=new.associations)
    (message,) = describe_moves(*own, CLUSTERS["FewerTeams"])
    assert f"to other places in the stack: {moved}, {TEAMS[FIRST_TEAMS]['name']}. " in message


def test_a_team_that_would_leave_a_nested_stack_is_refused(templates: dict[str, Path]) -> None:
    (message,) = moves(templates, "FewerTeams")
    moved = TEAMS[FIRST_TEAMS]["name"]
    assert f"to other places in the stacks: {moved}. " in message
    assert f"without `quota`, and take their members' access away: {TEAMS[1]['name']}." in message


def test_entries_without_access_take_no_room_in_nested_stacks() -> None:
    (entry, *_) = EVERYONE.kubernetes.access
    without = entry.model_copy(update={"level": "none"})
    first = [entry] * FIRST_ENTRIES
    num_more = stack_division.ENTRIES_PER_STACK + 1

    def most(more: AccessEntry) -> int:
        access = {"access": [*first, *[more] * num_more]}
        return stack_division.most_entries(EVERYONE.kubernetes.model_copy(update=access))

    assert most(without) == len(first) + num_more
    # All of these have one principal, and so one nested stack.
    assert most(entry) == len(first) + num_more - 1
