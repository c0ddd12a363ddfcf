"""Checks on all nodes of a job at once, and whose fault it is if they do not hold."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .slurm_step import srun

SECONDS = 180
"""For all nodes: three times what each may take for one of its programs."""


@dataclass(frozen=True)
class Verdict:
    bad: Mapping[str, str]
    """Node to what is wrong with it; the others are well."""
    silent: tuple[str, ...] = ()
    """Nodes without an answer."""
    fatal: str = ""
    """What is wrong with all nodes, so that others would not be better."""
    kept: Mapping[str, str] = field(default_factory=dict)
    """Nodes that may be bad instead of the one that is left out for each."""
    freed: tuple[str, ...] = ()
    """Nodes that were left out before, and were not to blame."""

    @property
    def is_well(self) -> bool:
        return not (self.bad or self.silent or self.fatal)


def check_nodes(job_file: Path, nodes: Sequence[str], *, seconds: float = SECONDS) -> Verdict:
    """Ask every node of the job."""
    command = [*srun(len(nodes)), "--kill-on-bad-exit=0", "python3", "-s", "-m"]
    command += [f"{__package__}.node_check", str(job_file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
    return judge(nodes, _answers(output.splitlines()))


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


def judge(nodes: Sequence[str], answers: Sequence[Mapping[str, Any]]) -> Verdict:
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
