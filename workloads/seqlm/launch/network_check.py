"""Checks of a job's nodes before it trains, each alone and all together, and whose fault it is if they fail.

A node may lack something (``node_check.py``). Or every node is well alone and the network between them not: a
security group that does not let EFA through, a broken card, a GPU that adds wrongly. First all nodes add up
known numbers together (``network/check.py``). Only if that fails, each node does so alone, and then
neighbours in a ring do in pairs.

Standard library alone: the node's own Python runs it.
"""

import itertools
import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seqlm.training.command_line import STOPPED_BY_SIGNAL

from .job_file import Job
from .slurm_attempts import endings
from .slurm_step import srun, step_command

AGENT = "seqlm.launch.node_agent"
NODE_SECONDS = 180
"""Bound of each node's own check: three times the bound of one of its programs."""
SECONDS = 240.0
"""Bound of one round: the imports, the meeting and the check itself."""
UNPACK_SECONDS, IMPORT_SECONDS = 600.0, 1200.0
"""Additional time if each node first unpacks a squashfs file, together with all others, or pulls an image
from a registry. The training image has about 20 GB."""
STEP_END_SECONDS = 30.0
LOOK_AT = (
    "look at the security group, which must allow all traffic from itself and to itself, by its own id: EFA's"
    " is no IP traffic, which a range of addresses would cover"
)


@dataclass(frozen=True)
class Verdict:
    bad: Mapping[str, str]
    """Node to what is wrong with it; the others are well."""
    silent: tuple[str, ...] = ()
    """Nodes without an answer."""
    fatal: str = ""
    """Fault of all nodes, which other nodes would have too."""
    kept: Mapping[str, str] = field(default_factory=dict)
    """Nodes that may be faulty, each with the node that is left out instead."""
    freed: tuple[str, ...] = ()
    """Nodes that were left out before and are not faulty."""

    @property
    def is_well(self) -> bool:
        return not (self.bad or self.silent or self.fatal)


def check_nodes(job_file: Path, nodes: Sequence[str]) -> Verdict:
    """Ask every node of the job."""
    command = [*srun(len(nodes)), "--kill-on-bad-exit=0", "python3", "-s", "-m"]
    command += [f"{__package__}.node_check", str(job_file)]
    try:
        output = subprocess.run(command, stdout=subprocess.PIPE, timeout=NODE_SECONDS).stdout
    except subprocess.TimeoutExpired as error:
        output = error.output or b""  # of the nodes that have answered
    return judge_nodes(nodes, _answers(output.decode(errors="replace").splitlines()))


def _answers(lines: Iterable[str]) -> list[dict[str, Any]]:
    found = []
    for line in lines:
        try:
            answer = json.loads(line)
        except ValueError:
            continue  # a prolog's or a module's greeting
        if isinstance(answer, dict) and "problems" in answer:
            found.append(answer)
    return found


def judge_nodes(nodes: Sequence[str], answers: Sequence[Mapping[str, Any]]) -> Verdict:
    """Say who is to blame: the nodes with problems, and those whose versions are not those of most."""
    bad = {str(answer["node"]): "; ".join(answer["problems"]) for answer in answers if answer["problems"]}
    silent = tuple(sorted(set(nodes) - {str(answer["node"]) for answer in answers}))
    if bad and len(bad) == len(answers) and not silent and len(nodes) > 1:
        return Verdict({}, fatal="; ".join(f"{node}: {problem}" for node, problem in sorted(bad.items())))
    for name in sorted({name for answer in answers for name in answer["versions"]}):
        values = {str(a["node"]): a["versions"].get(name) for a in answers if not a["problems"]}
        ranking = Counter(values.values()).most_common()
        if len(ranking) < 2:
            continue
        if ranking[0][1] == ranking[1][1]:
            listed = ", ".join(f"{node} {value}" for node, value in sorted(values.items()))
            return Verdict({}, silent, f"{name} is not the same on all nodes: {listed}")
        usual = ranking[0][0]
        for node, value in values.items():
            if value != usual:
                bad[node] = "; ".join(filter(None, [bad.get(node), f"{name} {value}, others have {usual}"]))
    return Verdict(bad, silent)


@dataclass(frozen=True)
class Outcome:
    """Result of one group of nodes that tried an all-reduce."""

    nodes: tuple[str, ...]
    failure: str
    """First message; empty after success."""


@dataclass(frozen=True)
class NetworkCheck:
    """The checks of one allocation."""

    job_file: Path
    job: Job
    help_text: str
    """Help text of srun."""
    attempt: str
    """Names the records of the rounds."""
    say: Callable[[str], None]
    """Prints events."""
    is_stopped: Callable[[], bool]
    """Returns whether the job received a signal to end. Then no further round begins."""

    @property
    def seconds(self) -> float:
        """Bound of one round."""
        if not self.job.image:
            return SECONDS
        return SECONDS + (UNPACK_SECONDS if self.job.image.startswith("/") else IMPORT_SECONDS)

    def run(self, nodes: Sequence[str], kept: Mapping[str, str]) -> Verdict:
        """Check all nodes; ``kept`` is as in ``blame``."""
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
        return Verdict({}, fatal=f"{again.failure}; each node and each pair alone is well: {LOOK_AT}")

    def _round(self, name: str, groups: Sequence[Sequence[str]]) -> list[Outcome]:
        """Have groups of nodes try at the same time, apart from each other."""
        attempt = f"{self.attempt}-network-{name}"
        nodes = [node for group in groups for node in group]
        command = step_command(
            self.job,
            self.help_text,
            num_nodes=len(nodes),
            arguments=["-m", AGENT, str(self.job_file), attempt, "check", *map(",".join, groups)],
            checked=nodes,
        )
        with subprocess.Popen(command, cwd=self.job.work_folder, stdin=subprocess.DEVNULL) as process:
            try:
                process.wait(self.seconds)
            except subprocess.TimeoutExpired:
                process.terminate()  # srun ends its step then, with all processes
                with suppress(subprocess.TimeoutExpired):
                    process.wait(STEP_END_SECONDS)
                process.kill()
        return outcomes_of(groups, endings(self.job_file.parent, attempt), self.seconds)


def outcomes_of(
    groups: Iterable[Sequence[str]], records: Iterable[Mapping[str, object]], seconds: float
) -> list[Outcome]:
    """Return the outcome of each group from the records of its nodes."""
    by_node = {str(record["node"]): record for record in records}
    found = []
    for group in groups:
        ended = [by_node[node] for node in group if node in by_node]
        failed = [record for record in ended if record["status"] not in (0, STOPPED_BY_SIGNAL)]
        silent = [node for node in group if node not in by_node]
        # Who had to be ended may have waited for who said nothing at all.
        unfinished = silent or [
            str(record["node"]) for record in ended if record["status"] == STOPPED_BY_SIGNAL
        ]
        said = []
        if failed:
            # Of a connection both ends tell; who says more than a status, says it first.
            first = min(failed, key=lambda record: (not record["message"], record["seconds"]))
            said.append(f"{first['node']}: {first['message'] or 'status {}'.format(first['status'])}")
        if unfinished:
            said.append(f"{', '.join(unfinished)}: no end within {seconds:g} s")
        found.append(Outcome(tuple(group), "; ".join(said)))
    return found


def ring_rounds(nodes: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Each node with its next one, in a ring; no node twice in a round.

    One round for two nodes, else two for an even number and three for an odd one.
    """
    if len(nodes) == 2:
        return [[(nodes[0], nodes[1])]]
    pairs = [(node, nodes[(n + 1) % len(nodes)]) for n, node in enumerate(nodes)]
    last = [pairs.pop()] if len(nodes) % 2 else []
    return [part for part in (pairs[::2], pairs[1::2], last) if part]


def blame(nodes: Sequence[str], outcomes: Sequence[Outcome], kept: Mapping[str, str]) -> Verdict:
    """Find the nodes that cause failed all-reduces.

    A node that fails alone is faulty. A node that fails in each of its pairs is faulty, too, if one of these
    pairs has a node that succeeds in another pair. If two nodes succeed with others but not with each other,
    or if a job has two nodes only, the faulty one is unknown. Then the second one is left out as a test.

    Args:
        nodes: those of the job.
        outcomes: of each node alone, and of pairs.
        kept: nodes that were kept although they may be faulty, each with the node that was left out. If
            such a node fails again with another node, it is faulty, and the left-out one is not. If it fails
            with the same node, no other node was available for a test.
    """
    alone = [o for o in outcomes if len(o.nodes) == 1 and o.failure]
    if len(alone) == len(nodes):
        return Verdict({}, fatal=f"all-reduce fails on each node alone: {_listed(alone)}")
    if alone:
        return Verdict({o.nodes[0]: f"all-reduce fails there alone: {o.failure}" for o in alone})
    pairs = [o for o in outcomes if len(o.nodes) == 2]
    failed = [o for o in pairs if o.failure]
    if not failed:
        return Verdict({})
    if undecided := [o for o in failed if any(kept.get(a) == b for a, b in itertools.permutations(o.nodes))]:
        said = _listed(undecided)
        return Verdict({}, fatal=f"all-reduce fails again, and no other node was there: {said}; {LOOK_AT}")
    well = {node for o in pairs if not o.failure for node in o.nodes}
    if not well and len(nodes) > 2:
        said = _listed(failed)
        return Verdict({}, fatal=f"all-reduce fails between all pairs of nodes: {said}; {LOOK_AT}")
    partners: dict[str, dict[str, str]] = {}
    for o in failed:
        for node, other in itertools.permutations(o.nodes):
            if node not in well and other in well:
                partners.setdefault(node, {})[other] = o.failure
    bad = {
        node: f"all-reduce fails with {' and '.join(others)}, well with others: {next(iter(others.values()))}"
        for node, others in partners.items()
    }
    known = {
        node: f"all-reduce failed with {kept[node]}, and fails with another now: {o.failure}"
        for o in failed
        for node in o.nodes
        if node in kept and node not in well and node not in bad
    }
    bad |= known
    stays: dict[str, str] = {}
    for o in failed:
        first, second = o.nodes
        # Beside a bad node nothing is known of the other; the next start finds out.
        if not bad.keys() & {first, second} and not (stays.keys() | stays.values()) & {first, second}:
            stays[first] = second
            bad[second] = (
                f"all-reduce with {first} fails, and each is well without the other; which of the two is bad "
                f"is unknown, so one is left out to find out: {o.failure}"
            )
    return Verdict(bad, kept=stays, freed=tuple(kept[node] for node in known))


def _listed(outcomes: Iterable[Outcome]) -> str:
    return "; ".join(sorted(f"{' and '.join(o.nodes)}: {o.failure}" for o in outcomes))
