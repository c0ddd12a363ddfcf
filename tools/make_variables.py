"""Check the variables that make was given against those that its targets read.

A variable that none of the targets reads is refused. A misspelled or misplaced variable would otherwise start
a run, or change a cluster, that is not the one that was meant. The Makefile calls
``make_variables.py GOALS TARGET NAMES`` before anything else.

Standard library only, for any Python since 3.8, because the project's environment may not exist yet.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

VARIABLES = {
    "ARGS": "options of the command, or changes to the run file",
    "CONFIG": "run file",
    "CLUSTER": "cluster file",
    "TARGET": "where the target runs: local, slurm or eks",
    "NODES": "number of nodes of the job, or of a training plan",
    "IMAGE": "container image of the job",
    "SUBMIT": "options of the submission",
    "RUN": "folder of a run",
    "JOB": "number of a job",
    "MODEL": "folder or hub id of a model",
    "ENDPOINT": "endpoint file",
    "STACKS": "stacks to deploy",
    "FRAMEWORK": "other implementation: bionemo or neuron",
    "NODE": "name of a node: <group>-<n>",
    "TO": "group that receives a node, or cluster that receives data",
    "FROM": "cluster whose data moves",
    "GROUP": "groups of nodes of the cluster file",
    "SINCE": "begin of a period",
    "UNTIL": "end of a period, which is excluded",
    "REGION": "AWS region",
    "TYPE": "instance type of a training plan",
    "DAYS": "duration of a training plan",
    "PLAN": "name of a training plan",
    "OFFERING": "offering of a training plan",
    "MINUTES": "duration",
    "SYSTEM_PYTHON": "Python with its own torch and transformers",
}
"""Variables that some targets read, from the command line or the environment, and what each of them is."""
READ_BY_ALL = ("PYTHON", "VENV")
CLUSTERS = ("slurm", "eks")
"""Values of TARGET for which a job on a cluster does the work."""


class Target(NamedTuple):
    """Variables that one target of the Makefile reads."""

    reads: str
    """Names of the variables, separated by spaces."""
    on_clusters: str = ""
    """Names of those that the target reads only with TARGET=slurm or TARGET=eks."""
    on_slurm: str = ""
    """Names of those that the target reads only with TARGET=slurm."""
    subcommand: str = ""
    """Subcommand of ``seqlm`` that the target runs; empty if it runs another program."""
    here_only: bool = False
    """Whether the target runs only on this machine, so that TARGET makes no sense."""
    lists_results: bool = False
    """Whether the target reads the results of several runs."""

    @property
    def reads_results(self) -> bool:
        """Return whether the target reads the results of runs."""
        return self.lists_results or "RUN" in self.reads.split()

    def variables(self, place: str) -> set[str]:
        """Return the variables that the target reads with ``TARGET=place``."""
        names = self.reads.split()
        if place in CLUSTERS:
            names += self.on_clusters.split()
        if place == "slurm":
            names += self.on_slurm.split()
        return {*names, *READ_BY_ALL}


JOB = "CLUSTER NODES IMAGE SUBMIT"
"""Variables of a job's submission."""
SEARCH = "TYPE NODES DAYS SINCE UNTIL"
"""Variables of a search for training plans."""


def stage(subcommand: str, more: str = "") -> Target:
    """Return the target of a stage, which runs on this machine or as a job."""
    return Target(f"ARGS CONFIG TARGET {more}", on_clusters=JOB, subcommand=subcommand)


TARGETS: Mapping[str, Target] = {
    # Biologist
    "help": Target(""),
    "env": Target(""),
    "data": stage("data"),
    "train-ddp": stage("train", "MODEL"),
    "train-fsdp": stage("train", "MODEL"),
    "finetune-lora": stage("train", "MODEL"),
    "finetune-llm": stage("train", "MODEL"),
    "finetune-table": Target("ARGS CONFIG MODEL", here_only=True),
    "train-bionemo": stage("train-bionemo"),
    "convert-bionemo": stage("convert-bionemo"),
    "evaluate": stage("evaluate", "RUN MODEL"),
    "serve": Target(
        "ARGS TARGET RUN MODEL", on_clusters="CLUSTER IMAGE SUBMIT ENDPOINT", subcommand="serve"
    ),
    "embed": stage("embed", "RUN MODEL"),
    "predict": stage("predict", "RUN MODEL"),
    "variants": stage("variants", "RUN MODEL"),
    "propose": stage("propose", "RUN MODEL"),
    "contacts": stage("contacts", "RUN MODEL"),
    "scorecard": stage("scorecard", "RUN MODEL"),
    "layers": stage("layers", "MODEL"),
    "explore": Target("ARGS CONFIG RUN MODEL", subcommand="explore", here_only=True),
    "publish": Target("ARGS CONFIG RUN MODEL", subcommand="publish", here_only=True),
    "report": Target("RUN", subcommand="report", here_only=True),
    "runs": Target("ARGS", subcommand="runs", here_only=True, lists_results=True),
    "compare": Target("ARGS", subcommand="compare", here_only=True, lists_results=True),
    "check": Target("ARGS", subcommand="check", here_only=True),
    "status": Target("ARGS CLUSTER TARGET"),
    "tail": Target("ARGS CLUSTER TARGET JOB"),
    "cancel": Target("ARGS CLUSTER TARGET JOB"),
    "fetch": Target("ARGS CLUSTER TARGET JOB"),
    # Platform engineer
    "synth": Target("CLUSTER ENDPOINT"),
    "bootstrap": Target("ARGS CLUSTER"),
    "deploy": Target("ARGS CLUSTER ENDPOINT STACKS"),
    "diff": Target("ARGS CLUSTER"),
    "preflight": Target("ARGS CLUSTER"),
    "cost": Target("ARGS CLUSTER ENDPOINT"),
    "plan": Target("ARGS CONFIG CLUSTER"),
    "usage": Target("ARGS CLUSTER TARGET SINCE UNTIL"),
    "plans-search": Target(f"ARGS CLUSTER PLAN {SEARCH}"),
    "plans-list": Target("ARGS CLUSTER"),
    "plans-buy": Target(f"ARGS CLUSTER PLAN OFFERING {SEARCH}"),
    "plans-extend": Target("ARGS CLUSTER PLAN OFFERING DAYS"),
    "prices": Target("ARGS CLUSTER REGION"),
    "mirror-downloads": Target("ARGS CLUSTER"),
    "charts": Target("ARGS"),
    "connect": Target("ARGS CLUSTER NODE"),
    "logs": Target("ARGS CLUSTER NODE"),
    "apply-lifecycle": Target("ARGS CLUSTER"),
    "replace": Target("ARGS CLUSTER NODE"),
    "reboot": Target("ARGS CLUSTER NODE"),
    "health-check": Target("ARGS CLUSTER NODE"),
    "move": Target("ARGS CLUSTER NODE TO"),
    "patch": Target("ARGS CLUSTER GROUP"),
    "migrate": Target("ARGS FROM TO"),
    "destroy": Target("ARGS CLUSTER ENDPOINT"),
    "teardown": Target("ARGS CLUSTER"),
    "image": Target("ARGS TARGET FRAMEWORK", on_slurm="CLUSTER"),
    "push": Target("ARGS CLUSTER FRAMEWORK"),
    "bandwidth": Target("ARGS TARGET", on_clusters=JOB),
    # Developer
    "schema": Target(""),
    "golden": Target(""),
    "lock": Target("ARGS"),
    "bench": Target("ARGS FRAMEWORK", here_only=True),
    "gpu": Target("ARGS SYSTEM_PYTHON", here_only=True),
    "bench-data": Target("ARGS", here_only=True),
    "bench-inference": Target("ARGS", here_only=True),
    "bench-serve": Target("ARGS", here_only=True),
    "bench-growth": Target("ARGS", here_only=True),
    "test": Target("ARGS"),
    "test-all": Target("ARGS"),
    "test-cluster": Target("ARGS"),
    "fuzz": Target("ARGS MINUTES"),
    "test-image": Target("ARGS"),
    "test-xla": Target("ARGS"),
    "test-biotrainer": Target("ARGS"),
    "test-oldest": Target("ARGS"),
    "lint": Target(""),
    "format": Target(""),
    "clean": Target(""),
}
"""Targets in the order of the Makefile."""
OTHER = Target("ARGS")
"""Any other goal, such as the marker file of an environment."""


class Problem(NamedTuple):
    """Variable that is refused, and the reason."""

    variable: str
    reason: str


def find_problem(
    goals: Sequence[str], place: str, on_command_line: Iterable[str], environment: Iterable[str]
) -> Problem | None:
    """Return the first variable that make must refuse, or None.

    Args:
        goals: goals of this call of make.
        place: value of TARGET: local, slurm or eks.
        on_command_line: names of the variables on make's command line.
        environment: names of the environment variables.
    """
    read: set[str] = set()
    for goal in goals:
        target = TARGETS.get(goal, OTHER)
        if target.here_only and place in CLUSTERS:
            reason = f"{goal} runs only on this machine; leave TARGET out"
            if target.reads_results:
                reason += ", and bring a run of the cluster here with make fetch"
            if target.lists_results:
                reason += f" (make status TARGET={place} lists its jobs)"
            return Problem("TARGET", reason)
        read |= target.variables(place)
    # Unknown names in the environment belong to other programs.
    given = [*sorted(on_command_line), *(name for name in VARIABLES if name in environment)]
    for name in given:
        if name not in read:
            allowed = " ".join(known for known in [*VARIABLES, *READ_BY_ALL] if known in read)
            return Problem(name, f"make {' '.join(goals)} does not read {name}; it reads {allowed}")
    return None


def main(goals: str, place: str, on_command_line: str) -> None:
    """Print the name of a variable to refuse and the reason; print nothing if all are read."""
    problem = find_problem(goals.split(), place, on_command_line.split(), os.environ)
    if problem is not None:
        print(problem.variable, problem.reason)


if __name__ == "__main__":
    main(*sys.argv[1:])
