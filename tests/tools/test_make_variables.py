"""Variables of make: the table agrees with the Makefile and with the subcommands of ``seqlm``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from seqlm.__main__ import OTHERS
from seqlm.runs.stages import SUBCOMMANDS
from tools.make_variables import CLUSTERS, TARGETS, VARIABLES, find_problem

MAKEFILE = (Path(__file__).parents[2] / "Makefile").read_text().replace("\\\n", " ")
NO_TARGET_OF_ITS_OWN = {"finetune"}
"""Subcommands for which make has no target: finetune-lora and finetune-llm run ``seqlm train``."""


class Rule(NamedTuple):
    help: str
    recipe: str


def rules() -> dict[str, Rule]:
    """Return the help text and the recipe of each target that ``make help`` lists."""
    pattern = r"^([a-z-]+):[^\n]*?## ([^\n]*)\n((?:(?:\t|ifeq|ifneq|else|endif)[^\n]*\n)*)"
    return {
        name: Rule(text, recipe)
        for name, text, recipe in re.findall(pattern, MAKEFILE, re.MULTILINE)
    }


def read_anywhere(target: str) -> set[str]:
    """Return the variables that the target reads with some value of TARGET."""
    return set.union(*(TARGETS[target].variables(place) for place in ("local", *CLUSTERS)))


def test_the_table_has_the_targets_of_the_makefile() -> None:
    assert list(rules()) == list(TARGETS)
    phony = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert sorted(" ".join(phony).split()) == sorted(TARGETS)


def test_the_table_names_known_variables() -> None:
    named = set.union(*(read_anywhere(target) for target in TARGETS))
    assert named == {*VARIABLES, "PYTHON", "VENV"}


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_reads_what_its_help_and_recipe_name(target: str) -> None:
    rule = rules()[target]
    named = {*re.findall(r"\b([A-Z]+)=", rule.help), *re.findall(r"\$\(([A-Z_]+)\)", rule.recipe)}
    assert named & {*VARIABLES} <= read_anywhere(target)


def test_every_subcommand_has_a_target() -> None:
    run = {target.subcommand for target in TARGETS.values() if target.subcommand}
    assert run == {*SUBCOMMANDS, *OTHERS} - NO_TARGET_OF_ITS_OWN


@pytest.mark.parametrize("target", [name for name, target in TARGETS.items() if target.subcommand])
def test_a_stage_is_that_of_the_recipe_and_runs_where_the_table_says(target: str) -> None:
    row = TARGETS[target]
    recipe = rules()[target].recipe
    assert f"$(call stage,{row.subcommand})" in recipe or f"$(STAGE) {row.subcommand} " in recipe
    if row.subcommand in SUBCOMMANDS:
        assert ("TARGET" in row.reads) == SUBCOMMANDS[row.subcommand].on_clusters
        assert row.here_only != SUBCOMMANDS[row.subcommand].on_clusters


def test_what_is_read_is_accepted() -> None:
    assert (
        find_problem(["train-ddp"], "local", ["CONFIG", "ARGS", "PYTHON"], ["MODEL", "HOME"])
        is None
    )
    assert find_problem(["train-ddp"], "slurm", ["NODES", "TARGET"], []) is None
    assert find_problem([".venv-awscli/.ready"], "local", ["ARGS"], []) is None


@pytest.mark.parametrize(
    ("goals", "place", "given", "environment", "expected"),
    [
        (["train-ddp"], "local", ["NODES"], [], "NODES make train-ddp does not read NODES;"),
        (["image"], "eks", ["CLUSTER"], [], "CLUSTER make image does not read CLUSTER;"),
        (["help"], "local", [], ["RUN"], "RUN make help does not read RUN; it reads PYTHON VENV"),
        (["lint", "report"], "eks", ["TARGET"], [], "TARGET report runs only on this machine;"),
        (
            ["runs"],
            "slurm",
            ["TARGET"],
            [],
            "TARGET runs runs only on this machine; leave TARGET out, and bring a run of the cluster here "
            "with make fetch (make status TARGET=slurm lists its jobs)",
        ),
    ],
)
def test_what_is_not_read_is_refused(
    goals: list[str], place: str, given: list[str], environment: list[str], expected: str
) -> None:
    problem = find_problem(goals, place, given, environment)
    assert problem is not None
    assert f"{problem.variable} {problem.reason}".startswith(expected)
