"""Cause of a failed all-reduce, and the reaction of the job's supervisor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from seqlm.launch.network_check import Outcome, blame, outcomes_of, ring_rounds
from seqlm.launch.slurm_attempts import State, read_state
from tests.workloads.launch.slurm_stand_ins import Slurm


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    return Slurm(tmp_path)


def outcomes(nodes: str, *failing: str) -> list[Outcome]:
    """Return results of each node and each pair of a ring; groups with all nodes of a failing set fail."""
    pairs = [pair for found in ring_rounds(nodes) for pair in found]
    return [
        Outcome(tuple(group), "lost" if any(set(bad) <= set(group) for bad in failing) else "")
        for group in [*nodes, *pairs]
    ]


@pytest.mark.parametrize(
    ("nodes", "failing", "bad", "stays"),
    [
        ("abcd", [], "", {}),
        ("abcd", ["b"], "b", {}),
        ("abcd", ["b", "d"], "bd", {}),
        ("abcd", ["ab", "bc"], "b", {}),
        ("abcd", ["da", "ab"], "a", {}),
        ("abc", ["ab", "bc"], "b", {}),
        ("abcde", ["de", "ea"], "e", {}),
        # Neighbours that are both bad: each has a well one on its other side.
        ("abcde", ["ab", "bc", "cd"], "bc", {}),
        # Of three in a row, the one in the middle may be well: the next start tells.
        ("abcdef", ["ab", "bc", "cd", "de"], "bd", {}),
        # A link between nodes that are well otherwise.
        ("abcd", ["bc"], "c", {"b": "c"}),
        ("ab", ["ab"], "b", {"a": "b"}),
        ("ab", ["a"], "a", {}),
    ],
)
def test_the_node_at_fault(nodes: str, failing: list[str], bad: str, stays: dict[str, str]) -> None:
    verdict = blame(nodes, outcomes(nodes, *failing), {})
    assert sorted(verdict.bad) == sorted(bad)
    assert verdict.kept == stays and not verdict.fatal and not verdict.freed


@pytest.mark.parametrize(
    ("nodes", "failing", "said"),
    [
        ("abc", ["a", "b", "c"], "all-reduce fails on each node alone: a: lost; b: lost; c: lost"),
        ("abc", ["ab", "bc", "ca"], "all-reduce fails between all pairs of nodes: a and b: lost; "),
        ("ab", ["a", "b"], "all-reduce fails on each node alone"),
    ],
)
def test_what_fails_everywhere_is_no_nodes_fault(nodes: str, failing: list[str], said: str) -> None:
    verdict = blame(nodes, outcomes(nodes, *failing), {})
    assert verdict.fatal.startswith(said) and not verdict.bad
    assert ("security group" in verdict.fatal) == ("pairs" in said)


def test_a_node_that_fails_with_a_second_one_is_to_blame() -> None:
    """b was left out in its place, and returns."""
    verdict = blame("ac", outcomes("ac", "ac"), {"a": "b"})
    assert verdict.freed == ("b",) and not verdict.kept
    assert verdict.bad == {"a": "all-reduce failed with b, and fails with another now: lost"}


def test_both_nodes_are_named_where_one_is_left_out_to_find_out() -> None:
    (said,) = blame("ab", outcomes("ab", "ab"), {}).bad.values()
    assert "all-reduce with a fails" in said and "is unknown" in said


@pytest.mark.parametrize(
    ("num_nodes", "num_rounds", "num_pairs"),
    [(2, 1, 1), (3, 3, 3), (4, 2, 4), (5, 3, 5), (64, 2, 64), (65, 3, 65)],
)
def test_no_node_is_twice_in_a_round(num_nodes: int, num_rounds: int, num_pairs: int) -> None:
    rounds = ring_rounds([str(n) for n in range(num_nodes)])
    assert len(rounds) == num_rounds and len({frozenset(p) for r in rounds for p in r}) == num_pairs
    for pairs in rounds:
        names = [name for pair in pairs for name in pair]
        assert len(names) == len(set(names))


def test_what_a_group_has_left() -> None:
    well = {"node": "a", "status": 0, "seconds": 0, "message": ""}
    early = {"node": "b", "status": 1, "seconds": 1.0, "message": ""}
    late = {"node": "c", "status": 1, "seconds": 2.0, "message": "NCCL WARN"}
    waited = {"node": "e", "status": 143, "seconds": 180.0, "message": ""}
    groups = [["a"], ["b", "c"], ["d"], ["b"], ["a", "e"], ["d", "e"], ["b", "d"]]
    found = outcomes_of(groups, [well, early, late, waited], 180)
    assert [o.failure for o in found] == [
        "",
        "c: NCCL WARN",
        "d: no end within 180 s",
        "b: status 1",
        "e: no end within 180 s",
        "d: no end within 180 s",
        "b: status 1; d: no end within 180 s",
    ]


def test_a_network_that_is_well_is_checked_once(slurm: Slurm) -> None:
    assert slurm.run({"status": 1, "endings": {"node-1": {"status": 1}}}, {"status": 0})[0] == 0
    assert slurm.network_checks == [("node-1,node-2",)]
    (check,) = [words for words in slurm.said_to("srun") if "check" in words]
    assert {"--kill-on-bad-exit=0", "--nodelist=node-1,node-2"} <= set(check)


def test_a_node_with_a_bad_network_is_found_by_pairs_and_excluded(slurm: Slurm) -> None:
    slurm.on_nodes(4, "node-1 node-2", "node-2 node-3")
    status, output = slurm.run()
    assert status == 0, output
    assert slurm.network_checks == [
        ("node-1,node-2,node-3,node-4",),
        ("node-1", "node-2", "node-3", "node-4"),
        ("node-1,node-2", "node-3,node-4"),
        ("node-2,node-3", "node-4,node-1"),
    ]
    assert (
        "node node-2 is not fit and is left out from now on: all-reduce fails with node-1 and node-3"
        in output
    )
    assert slurm.said_to("scontrol") == [
        ["requeue", "7"],
        ["update", "JobId=7", "ExcNodeList=node-2"],
    ]
    assert not slurm.train_steps


def test_a_node_that_fails_alone_needs_no_pairs(slurm: Slurm) -> None:
    slurm.on_nodes(3, "node-3")
    assert slurm.run()[0] == 0
    assert len(slurm.network_checks) == 2
    assert slurm.said_to("scontrol")[-1] == ["update", "JobId=7", "ExcNodeList=node-3"]


def test_of_two_nodes_one_is_left_out_and_returns_if_it_was_the_other(slurm: Slurm) -> None:
    slurm.on_nodes(2, "node-1 node-2")
    assert slurm.run()[0] == 0
    assert slurm.said_to("scontrol")[-1] == ["update", "JobId=7", "ExcNodeList=node-2"]
    assert read_state(slurm.job_folder).kept == {"node-1": "node-2"}
    # As if the job had started again on node-1 and another one.
    State(excluded=("node-0",), kept={"node-1": "node-0"}).write(slurm.job_folder)
    output = slurm.run()[1]
    assert "node node-0, which was left out to find out, was not to blame" in output
    assert slurm.said_to("scontrol")[-1] == ["update", "JobId=7", "ExcNodeList=node-1"]
    found = read_state(slurm.job_folder)
    assert (found.excluded, found.kept) == (("node-1",), {})


def test_two_nodes_without_a_third_end_the_job_at_the_second_start(slurm: Slurm) -> None:
    slurm.job = replace(slurm.job, min_nodes=2)
    slurm.on_nodes(2, "node-1 node-2")
    (slurm.folder / "partition").write_text("node-1\nnode-2\n")
    output = slurm.run()[1]
    assert "is unknown" in output and slurm.said_to("scontrol")[-1][-1] == "StartTime=now+30minutes"
    status, output = slurm.run()
    assert status == 2 and "no other node was there: node-1 and node-2: node-1: timed out" in output
    assert "security group" in output


def test_two_nodes_get_a_second_chance(slurm: Slurm) -> None:
    """Perhaps one container came late, and no node is to be left out for that."""
    slurm.on_nodes(2, "node-1 node-2 once")
    status, output = slurm.run({"status": 0})
    assert status == 0 and "went well the second time" in output, output
    assert not slurm.said_to("scontrol") and not read_state(slurm.job_folder).kept


def test_a_node_that_is_well_with_another_is_no_longer_doubted(slurm: Slurm) -> None:
    State(excluded=("node-0",), kept={"node-1": "node-0"}).write(slurm.job_folder)
    assert slurm.run({"status": 0})[0] == 0
    found = read_state(slurm.job_folder)
    assert (found.excluded, found.kept) == (("node-0",), {})


def test_a_network_that_is_bad_everywhere_ends_the_job(slurm: Slurm) -> None:
    slurm.on_nodes(3, "node-1 node-2", "node-2 node-3", "node-3 node-1")
    status, output = slurm.run()
    assert status == 2 and "between all pairs of nodes" in output and "security group" in output
    assert not slurm.said_to("scontrol")


def test_all_together_get_a_second_chance(slurm: Slurm) -> None:
    """Each pair is well: perhaps one node came late."""
    slurm.on_nodes(4, "node-1 node-2 node-3 node-4")
    status, output = slurm.run()
    assert slurm.network_checks[-1] == slurm.network_checks[0] and len(slurm.network_checks) == 5
    assert status == 2 and "each node and each pair alone is well" in output


@pytest.mark.parametrize(
    "changes", [{"stage": "data"}, {"stage": "evaluate", "processes_per_node": 1}]
)
def test_one_process_needs_no_network(slurm: Slurm, changes: dict[str, object]) -> None:
    slurm.on_nodes(1)
    slurm.job = replace(slurm.job, **changes)  # type: ignore[arg-type]
    assert slurm.run({"status": 0})[0] == 0
    assert not slurm.network_checks
