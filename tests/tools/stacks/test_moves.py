"""Refusals of updates that would move access entries or teams between places of an EKS cluster's stacks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from config.eks_cluster import EksCluster
from config.kubernetes import FIRST_ENTRIES
from config.stack_division import FIRST_TEAMS
from tests.tools.answering_aws import AnsweringAws, Parameters, Refusal
from tests.tools.cluster_files import shipped, shipped_eks
from tests.tools.stacks.deployed_stacks import DeployedStacks, Template
from tools.stacks import diff
from tools.stacks.diff import Pair, deployed_moves
from tools.stacks.moves import (
    ASSET_PATH,
    ASSOCIATION,
    ENTRY,
    OWN_STACK,
    PATCH,
    Place,
    Places,
    describe_moves,
)

STACK = "esm2-eks-eks-hyperpod"
NESTED = "KubernetesAccessOfOthers"
NESTED_FILE = "access.nested.template.json"
NESTED_NAME = DeployedStacks.physical_id(NESTED)
ROLES = [f"arn:aws:iam::123456789012:role/person-{number}" for number in range(9)]


def stack_of(entries: list[str | None], *, teams: tuple[str, ...] = ()) -> Template:
    """Template of entries by place, without those who have no access, and of teams."""
    resources: dict[str, Any] = {
        f"KubernetesAccess{place}": {"Type": ENTRY, "Properties": {"PrincipalArn": principal}}
        for place, principal in enumerate(entries)
        if principal is not None
    }
    resources["Installer"] = {
        "Type": ENTRY,
        "Properties": {"PrincipalArn": {"Fn::GetAtt": ["InstallerRole", "Arn"]}},
    }
    for team in teams:
        resources[f"PodSecurity{team}"] = {
            "Type": PATCH,
            "Properties": {"ResourceName": f"namespace/hyperpod-ns-{team}"},
        }
    return {"Resources": resources}


def with_nested(template: Template) -> Template:
    nested = {"Type": "AWS::CloudFormation::Stack", "Metadata": {ASSET_PATH: NESTED_FILE}}
    return {"Resources": template["Resources"] | {NESTED: nested}}


def cluster_of(principals: list[str]) -> EksCluster:
    access = [{"principal_arn": principal, "level": "view"} for principal in principals]
    return shipped_eks("eks", kubernetes={"access": access})


def moves(
    aws: AnsweringAws,
    new: Template,
    *,
    nested: Template | None = None,
    listed: tuple[str, ...] = (),
) -> list[str]:
    """Return the messages of an update to a template, and to that of a nested stack in the folder.

    Args:
        aws: account with the deployed stacks.
        new: template of the cluster's own stack.
        nested: template of its nested stack.
        listed: principals of the cluster file.
    """
    if nested:
        diff.ASSEMBLY.mkdir(exist_ok=True)
        (diff.ASSEMBLY / NESTED_FILE).write_text(json.dumps(nested))
    pairs = [Pair(STACK, {"Resources": {}}, new)]
    return deployed_moves(cluster_of([*listed]), aws.session, pairs)


@pytest.fixture
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AnsweringAws:
    monkeypatch.chdir(tmp_path)
    return AnsweringAws("us-west-2")


def test_a_shorter_list_moves_all_later_entries(aws: AnsweringAws) -> None:
    DeployedStacks(aws, {STACK: stack_of([*ROLES])})
    (message,) = moves(aws, stack_of([*ROLES[1:]]), listed=tuple(ROLES[1:]))
    first_five = ", ".join(ROLES[1:6])
    assert message == (
        f"this update would move access entries to other places in the stacks: {first_five} and 3 more, "
        "8 in all. EKS accepts one entry per principal, and CloudFormation creates a resource before it "
        "deletes another, so the update would fail, and change no one's access. Keep the entries of "
        "kubernetes.access in their order, also those with `level: none`, and add new ones at the end. "
        f"Put removed entries back in their places, with `level: none`: {ROLES[0]}."
    )


@pytest.mark.parametrize(
    "after",
    [
        [ROLES[0], None, ROLES[2]],  # level: none
        [ROLES[0], ROLES[3], ROLES[2]],  # another person in the leaver's place
        [ROLES[0], ROLES[1]],  # the last one is deleted
        [ROLES[0], ROLES[1], ROLES[2], ROLES[3]],  # one is added
    ],
)
def test_entries_that_keep_their_places_are_no_moves(
    after: list[str | None], aws: AnsweringAws
) -> None:
    DeployedStacks(aws, {STACK: stack_of([*ROLES[:3]])})
    assert moves(aws, stack_of(after)) == []


def test_a_leaver_without_access_is_not_asked_for_again(aws: AnsweringAws) -> None:
    """The leaver is in the file, so only the order of the others is wrong."""
    DeployedStacks(aws, {STACK: stack_of([*ROLES[:3]])})
    (message,) = moves(aws, stack_of([None, ROLES[2], ROLES[1]]), listed=tuple(ROLES[:3]))
    assert "Put removed entries back" not in message


@pytest.mark.parametrize("out_of", [True, False])
def test_moves_into_and_out_of_a_nested_stack(out_of: bool, aws: AnsweringAws) -> None:
    in_own = stack_of([*ROLES[:2]], teams=("proteins",))
    rest = stack_of([])
    in_nested = stack_of([ROLES[0]])
    nested = stack_of([ROLES[1]], teams=("proteins",))
    before, after = [(in_nested, nested), (in_own, rest)][:: 1 if out_of else -1]
    DeployedStacks(aws, {STACK: with_nested(before[0]), NESTED_NAME: before[1]})
    entries, teams = moves(aws, with_nested(after[0]), nested=after[1], listed=tuple(ROLES[:2]))
    assert f"move access entries to other places in the stacks: {ROLES[1]}. " in entries
    assert teams == (
        "this update would move teams to other places in the stacks: proteins. "
        "CloudFormation creates a resource before it deletes another, so it could delete a team's quota "
        "and objects after it has created the new ones. Keep the teams of "
        "task_governance.teams in their order, and add new ones at the end."
    )
    same = with_nested(before[0])
    assert moves(aws, same, nested=before[1], listed=tuple(ROLES[:2])) == []


def test_a_removed_team_goes_back_to_its_place(aws: AnsweringAws) -> None:
    own = stack_of([], teams=("first", "second"))
    DeployedStacks(aws, {STACK: with_nested(own), NESTED_NAME: stack_of([], teams=("third",))})
    (message,) = moves(aws, stack_of([], teams=("first", "third")))
    assert "places in the stacks: third. " in message
    assert message.endswith("without `quota`, and take their members' access away: second.")


def test_a_team_in_the_middle_keeps_the_associations_of_the_others(aws: AnsweringAws) -> None:
    """With MLflow, the roles of the first teams have their places in the list."""

    def of(*teams: str) -> Template:
        resources = dict(stack_of([], teams=teams)["Resources"])
        for place, team in enumerate(teams):
            namespace = {"Namespace": f"hyperpod-ns-{team}"}
            resources[f"Association{place}"] = {"Type": ASSOCIATION, "Properties": namespace}
        resources["OfDriver"] = {"Type": ASSOCIATION, "Properties": {"Namespace": "kube-system"}}
        return {"Resources": resources}

    DeployedStacks(aws, {STACK: of("first", "second", "third")})
    (message,) = moves(aws, of("first", "third"))
    assert (
        "associations of teams with MLflow's role to other places in the stack: third. " in message
    )
    assert message.endswith("take their members' access away: second.")
    assert moves(aws, of("first", "second")) == []
    assert moves(aws, of("first", "second", "third", "fourth")) == []


def test_only_resources_that_exist_count(aws: AnsweringAws) -> None:
    """A stack whose creation failed keeps its template, and the CDK creates it again."""
    DeployedStacks(aws, {STACK: stack_of([*ROLES[:3]])})

    def summaries(parameters: Parameters) -> dict[str, Any]:
        deleted = {
            "LogicalResourceId": "KubernetesAccess1",
            "ResourceType": ENTRY,
            "ResourceStatus": "DELETE_COMPLETE",
            "LastUpdatedTimestamp": 0,
        }
        failed = {
            **deleted,
            "LogicalResourceId": "KubernetesAccess2",
            "ResourceStatus": "CREATE_FAILED",
        }
        return {"StackResourceSummaries": [deleted, failed]}

    aws.answer("cloudformation", "ListStackResources", summaries)
    assert moves(aws, stack_of([*ROLES[1:3]])) == []


@pytest.mark.parametrize("operation", ["ListStackResources", "GetTemplate", "DescribeStacks"])
def test_a_stack_that_cannot_be_read_is_updated(
    operation: str, aws: AnsweringAws, capsys: pytest.CaptureFixture[str]
) -> None:
    DeployedStacks(aws, {STACK: stack_of([*ROLES])})
    aws.answer("cloudformation", operation, Refusal("AccessDenied", "not authorized"))
    assert moves(aws, stack_of([*ROLES[1:]])) == []
    assert f"note: stack {STACK} cannot be read, so it is not checked" in capsys.readouterr().err


def test_a_cluster_that_is_not_deployed_has_nothing_to_move(aws: AnsweringAws) -> None:
    assert deployed_moves(cluster_of([]), aws.session, []) == []
    assert deployed_moves(shipped("slurm"), aws.session, []) == []


def test_a_cluster_of_an_earlier_version_gets_the_setting_that_keeps_its_entries() -> None:
    """Earlier versions had all entries and teams in the cluster's own stack."""

    def places(number: int) -> dict[str, Place]:
        ids = [f"KubernetesAccess{place}0AAA091E" for place in range(number)]
        return {str(place): Place(OWN_STACK, name) for place, name in enumerate(ids)}

    last_entry = str(FIRST_ENTRIES)
    last_team = str(FIRST_TEAMS)
    old = Places(places(FIRST_ENTRIES + 1), places(FIRST_TEAMS + 1))
    new = Places(
        old.entries | {last_entry: Place(NESTED, "")}, old.teams | {last_team: Place(NESTED, "")}
    )
    entries, teams = describe_moves(old, new, cluster_of([]))
    advice = (
        f"Set kubernetes.entries_in_cluster_stack to {FIRST_ENTRIES + 1}, not {FIRST_ENTRIES}, "
    )
    assert advice in entries
    assert f"deploy the file with the first {FIRST_TEAMS} alone, and then with all" in teams
    same = Places(places(FIRST_ENTRIES), places(FIRST_TEAMS))
    assert list(describe_moves(same, same, cluster_of([]))) == []


def test_make_diff_shows_the_refusal(
    aws: AnsweringAws,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = Path(__file__).parents[3] / "clusters" / "eks.yaml"
    for name, entries in (("old", ROLES[:3]), ("new", ROLES[1:3])):
        (tmp_path / f"{name}.json").write_text(json.dumps(stack_of([*entries])))
    command = ["diff", "--cluster", str(file), "--old", "old.json"]
    monkeypatch.setattr(sys, "argv", [*command, "--new", "new.json"])
    assert diff.main() == 1
    assert "!!! WARNING: this update would move access entries" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*command, "--new", "old.json"])
    assert diff.main() == 0
