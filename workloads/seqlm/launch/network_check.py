"""Checks of a job's nodes before it trains, each alone and all together, and the cause of a failure.

``check_nodes`` runs ``node_check.py`` on each node. ``NetworkCheck`` then checks the network between them. It
may fail although each node passes: because a security group blocks EFA, a card is broken, or a GPU adds
wrongly. First, all nodes add up known numbers together (``network/check.py``). If that fails, each node does
so alone, and then neighbours in a ring do in pairs.

Standard library only, because the node's own Python runs it.
"""

import itertools
import json
import subprocess
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seqlm.training.command_line import STOPPED_BY_SIGNAL

from .job_file import Job
from .slurm_attempts import endings
from .slurm_step import srun, step_command

AGENT = "seqlm.launch.node_agent"
"""Module that runs torchrun on a node."""
NODE_SECONDS = 180
"""Time limit of the checks of single nodes: three times the limit of one of their programs."""
SECONDS = 240.0
"""Time limit of one round: imports, rendezvous, and the check itself."""
UNPACK_SECONDS = 600.0
"""Additional time if all nodes first unpack a squashfs file at once. The training image has about 20 GB."""
IMPORT_SECONDS = 1200.0
"""Additional time if all nodes first pull an image from a registry."""
STEP_END_SECONDS = 30.0
"""Time for srun to end a step after SIGTERM."""
LOOK_AT = (
    "look at the security group, which must allow all traffic from itself and to itself, by its own id: EFA's"
    " is no IP traffic, which a range of addresses would cover"
)


@dataclass(frozen=True)
class Verdict:
    """Result of a check of all nodes."""

    bad: Mapping[str, str]
    """Faulty nodes, each with a description of its fault."""
    silent: tuple[str, ...] = ()
    """Nodes without an answer."""
    fatal: str = ""
    """Fault that is not that of a single node, so that other nodes would have it, too."""
    kept: Mapping[str, str] = field(default_factory=dict)
    """Nodes that may be faulty, each with the node that is left out instead."""
    freed: tuple[str, ...] = ()
    """Nodes that were left out before and are not faulty."""

    @property
    def is_well(self) -> bool:
        return not (self.bad or self.silent or self.fatal)


def check_nodes(job_file: Path, nodes: Sequence[str]) -> Verdict:
    """Check each node of the job alone.

    Args:
        job_file: ``job.json`` of the job.
        nodes: nodes of the job.
    """
    command = [*srun(len(nodes)), "--kill-on-bad-exit=0", "python3", "-s", "-m"]
    command += [f"{__package__}.node_check", str(job_file)]
    try:
        output = subprocess.run(command, stdout=subprocess.PIPE, timeout=NODE_SECONDS).stdout
    except subprocess.TimeoutExpired as error:
        output = error.output or b""  # answers that have come so far
    return judge_nodes(nodes, _answers(output.decode(errors="replace").splitlines()))


def _answers(lines: Iterable[str]) -> list[dict[str, Any]]:
    """Return the answers of ``node_check`` among the lines of a step."""
    found = []
    for line in lines:
        try:
            answer = json.loads(line)
        except ValueError:
            continue  # output of a prolog or of a module
        if isinstance(answer, dict) and "problems" in answer:
            found.append(answer)
    return found


def judge_nodes(nodes: Sequence[str], answers: Sequence[Mapping[str, Any]]) -> Verdict:
    """Find the nodes with problems, and those with other versions than most nodes.

    Args:
        nodes: nodes of the job.
        answers: answers of ``node_check``, at most one for each node.
    """
    bad = {
        str(answer["node"]): "; ".join(answer["problems"])
        for answer in answers
        if answer["problems"]
    }
    silent = tuple(sorted(set(nodes) - {str(answer["node"]) for answer in answers}))
    if bad and len(bad) == len(answers) and not silent and len(nodes) > 1:
        return Verdict(
            {}, fatal="; ".join(f"{node}: {problem}" for node, problem in sorted(bad.items()))
        )
    for name in sorted({name for answer in answers for name in answer["versions"]}):
        values = {
            str(answer["node"]): answer["versions"].get(name)
            for answer in answers
            if not answer["problems"]
        }
        counts = Counter(values.values()).most_common()
        if len(counts) < 2:
            continue
        usual, num_usual = counts[0]
        _, num_second = counts[1]
        if num_usual == num_second:
            listed = ", ".join(f"{node} {value}" for node, value in sorted(values.items()))
            return Verdict({}, silent, f"{name} is not the same on all nodes: {listed}")
        for node, value in values.items():
            if value != usual:
                problem = f"{name} {value}, others have {usual}"
                bad[node] = f"{bad[node]}; {problem}" if node in bad else problem
    return Verdict(bad, silent)


@dataclass(frozen=True)
class Outcome:
    """Result of one group of nodes that tried an all-reduce."""

    nodes: tuple[str, ...]
    failure: str
    """Message of the first failure; empty after success."""


@dataclass(frozen=True)
class NetworkCheck:
    """Check of the network on one allocation."""

    job_file: Path
    """``job.json`` of the job."""
    job: Job
    help_text: str
    """Help text of srun."""
    attempt: str
    """Beginning of the names of the rounds' records."""
    say: Callable[[str], None]
    """Prints a line to the job's log."""
    is_stopped: Callable[[], bool]
    """Returns whether the job received a signal to end. Then no further round begins."""

    @property
    def seconds(self) -> float:
        """Time limit of one round."""
        if not self.job.image:
            return SECONDS
        is_file = self.job.image.startswith("/")
        return SECONDS + (UNPACK_SECONDS if is_file else IMPORT_SECONDS)

    def run(self, nodes: Sequence[str], kept: Mapping[str, str]) -> Verdict:
        """Check all nodes.

        Args:
            nodes: nodes of the job.
            kept: nodes that may be faulty, as in ``blame``.
        """
        (whole,) = self._round("all", [nodes])
        if not whole.failure or self.is_stopped():
            return Verdict({})
        self.say(f"all-reduce over {len(nodes)} node(s) fails: {whole.failure}")
        if len(nodes) == 1:
            return Verdict({nodes[0]: whole.failure})
        alone = self._round("alone", [[node] for node in nodes])
        outcomes = [*alone]
        if not any(outcome.failure for outcome in alone):
            for number, pairs in enumerate(ring_rounds(nodes), 1):
                if self.is_stopped():
                    break
                outcomes += self._round(f"pairs-{number}", pairs)
        if self.is_stopped():
            return Verdict({})
        verdict = blame(nodes, outcomes, kept)
        if not verdict.is_well:
            return verdict
        (again,) = self._round("all-again", [nodes])
        if not again.failure:
            self.say("all-reduce over all nodes went well the second time")
            return Verdict({})
        return Verdict(
            {}, fatal=f"{again.failure}; each node and each pair alone is well: {LOOK_AT}"
        )

    def _round(self, name: str, groups: Sequence[Sequence[str]]) -> list[Outcome]:
        """Run an all-reduce within each group of nodes, all groups at the same time.

        Args:
            name: name of the round, for its records.
            groups: groups of nodes; no node is in two of them.
        """
        attempt = f"{self.attempt}-network-{name}"
        nodes = [node for group in groups for node in group]
        command = step_command(
            self.job,
            self.help_text,
            num_nodes=len(nodes),
            arguments=["-m", AGENT, str(self.job_file), attempt, "check", *map(",".join, groups)],
            checked=nodes,
        )
        with subprocess.Popen(
            command, cwd=self.job.work_folder, stdin=subprocess.DEVNULL
        ) as process:
            try:
                process.wait(self.seconds)
            except subprocess.TimeoutExpired:
                process.terminate()  # then srun ends its step with all processes
                with suppress(subprocess.TimeoutExpired):
                    process.wait(STEP_END_SECONDS)
                process.kill()
        return outcomes_of(groups, endings(self.job_file.parent, attempt), self.seconds)


def outcomes_of(
    groups: Iterable[Sequence[str]], records: Iterable[Mapping[str, object]], seconds: float
) -> list[Outcome]:
    """Return the outcome of each group.

    Args:
        groups: groups of nodes.
        records: records of how the nodes ended.
        seconds: time limit of the round.
    """
    by_node = {str(record["node"]): record for record in records}
    outcomes = []
    for group in groups:
        ended = [by_node[node] for node in group if node in by_node]
        failed = [record for record in ended if record["status"] not in (0, STOPPED_BY_SIGNAL)]
        silent = [node for node in group if node not in by_node]
        stopped = [str(record["node"]) for record in ended if record["status"] == STOPPED_BY_SIGNAL]
        # Nodes that were stopped may have waited for the silent ones.
        unfinished = silent or stopped
        failures = []
        if failed:
            # Both ends report a broken connection; prefer the one with a message.
            first = min(failed, key=lambda record: (not record["message"], record["seconds"]))
            message = first["message"] or f"status {first['status']}"
            failures.append(f"{first['node']}: {message}")
        if unfinished:
            failures.append(f"{', '.join(unfinished)}: no end within {seconds:g} s")
        outcomes.append(Outcome(tuple(group), "; ".join(failures)))
    return outcomes


def ring_rounds(nodes: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Return pairs of neighbours in a ring, in rounds without a node that occurs twice.

    Two nodes have one round, other even numbers two and odd ones three.
    """
    if len(nodes) == 2:
        return [[(nodes[0], nodes[1])]]
    following = [*nodes[1:], nodes[0]]
    pairs = list(zip(nodes, following, strict=True))
    last_round = [pairs.pop()] if len(nodes) % 2 else []
    rounds = (pairs[::2], pairs[1::2], last_round)
    return [pairs_of_round for pairs_of_round in rounds if pairs_of_round]


def blame(nodes: Sequence[str], outcomes: Sequence[Outcome], kept: Mapping[str, str]) -> Verdict:
    """Find the nodes that cause failed all-reduces.

    A node that fails alone is faulty. A node that fails in each of its pairs is faulty, too, if one of these
    pairs has a node that succeeds in another pair. If two nodes succeed with others but not with each other,
    or if a job has two nodes only, the faulty one is unknown. Then the second one is left out as a test.

    Args:
        nodes: nodes of the job.
        outcomes: outcomes of each node alone, and of pairs.
        kept: nodes that were kept although they may be faulty, each with the node that was left out. If
            such a node fails again with another node, it is faulty, and the left-out one is not. If it fails
            with the same node, no other node was available for a test.
    """
    alone = [outcome for outcome in outcomes if len(outcome.nodes) == 1 and outcome.failure]
    if len(alone) == len(nodes):
        return Verdict({}, fatal=f"all-reduce fails on each node alone: {_listed(alone)}")
    if alone:
        faults = {
            outcome.nodes[0]: f"all-reduce fails there alone: {outcome.failure}"
            for outcome in alone
        }
        return Verdict(faults)
    pairs = [outcome for outcome in outcomes if len(outcome.nodes) == 2]
    failed = [outcome for outcome in pairs if outcome.failure]
    if not failed:
        return Verdict({})
    repeated = [outcome for outcome in failed if _was_tested(outcome, kept)]
    if repeated:
        said = _listed(repeated)
        return Verdict(
            {}, fatal=f"all-reduce fails again, and no other node was there: {said}; {LOOK_AT}"
        )
    well = {node for outcome in pairs if not outcome.failure for node in outcome.nodes}
    if not well and len(nodes) > 2:
        said = _listed(failed)
        return Verdict({}, fatal=f"all-reduce fails between all pairs of nodes: {said}; {LOOK_AT}")
    bad = _failing_with_well_nodes(failed, well)
    known = _failing_with_a_second_node(failed, kept, exempt={*well, *bad})
    bad |= known
    freed = tuple(kept[node] for node in known)
    stays: dict[str, str] = {}
    for outcome in failed:
        first, second = outcome.nodes
        # Beside a bad node, nothing is known of the other one; the next start tests it.
        judged = {*bad, *stays, *stays.values()}
        if first not in judged and second not in judged:
            stays[first] = second
            bad[second] = (
                f"all-reduce with {first} fails, and each is well without the other; which of the two is bad "
                f"is unknown, so one is left out to find out: {outcome.failure}"
            )
    return Verdict(bad, kept=stays, freed=freed)


def _was_tested(outcome: Outcome, kept: Mapping[str, str]) -> bool:
    """Return whether one node of a pair was left out before to test the other one."""
    first, second = outcome.nodes
    return kept.get(first) == second or kept.get(second) == first


def _failing_with_well_nodes(failed: Iterable[Outcome], well: Collection[str]) -> dict[str, str]:
    """Return the nodes that failed with a node that succeeded with another one, each with its fault."""
    partners: dict[str, dict[str, str]] = {}
    for outcome in failed:
        for node, other in itertools.permutations(outcome.nodes):
            if node not in well and other in well:
                partners.setdefault(node, {})[other] = outcome.failure
    return {
        node: f"all-reduce fails with {' and '.join(others)}, well with others: {next(iter(others.values()))}"
        for node, others in partners.items()
    }


def _failing_with_a_second_node(
    failed: Iterable[Outcome], kept: Mapping[str, str], exempt: Collection[str]
) -> dict[str, str]:
    """Return the nodes that were kept before and failed again, each with its fault."""
    return {
        node: f"all-reduce failed with {kept[node]}, and fails with another now: {outcome.failure}"
        for outcome in failed
        for node in outcome.nodes
        if node in kept and node not in exempt
    }


def _listed(outcomes: Iterable[Outcome]) -> str:
    """Return the nodes and the failure of each outcome, for a message."""
    return "; ".join(
        sorted(f"{' and '.join(outcome.nodes)}: {outcome.failure}" for outcome in outcomes)
    )
