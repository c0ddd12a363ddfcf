"""docs/first-model.md leads from an empty account to a model: each step exists; regions are the code's."""

from __future__ import annotations

import re

import pytest

from config.facts.optional_features import OPTIONAL_FEATURES
from config.facts.regions import HEALTH_MONITORING_REGIONS, ZONE_ID_PREFIXES
from tests.tools.documents.document_commands import (
    REPOSITORY,
    commands,
    unknown_options,
)

TEXT = (REPOSITORY / "docs/first-model.md").read_text()
MLFLOW = (REPOSITORY / "docs/mlflow.md").read_text()
SECTIONS = {
    part.partition("\n")[0]: part.partition("\n")[2]
    for part in re.split(r"^## ", TEXT, flags=re.MULTILINE)
}
STAGES = (
    "synth",
    "preflight",
    "deploy",
    "connect",
    "image",
    "train-ddp",
    "tail",
    "fetch",
    "teardown",
)


def steps(section: str) -> list[tuple[str, str]]:
    """Return number and text of each step, with its continuation lines."""
    return re.findall(r"^(\d+)\. (.*(?:\n {3,}.*)*)", SECTIONS[section], re.MULTILINE)


@pytest.mark.parametrize("section", ["On Slurm", "On EKS"])
def test_steps_are_numbered_and_go_all_the_way(section: str) -> None:
    numbers = [int(number) for number, _ in steps(section)]
    last = max(numbers)
    # The second list begins with those that it shares with the first.
    assert numbers == (
        [1, *range(5, last + 1)] if section == "On EKS" else list(range(1, last + 1))
    )
    told = [target for _, text in steps(section) for target in re.findall(r"`make ([a-z-]+)", text)]
    on_the_way = [target for target in told if target in STAGES]
    first_seen = list(dict.fromkeys(on_the_way[on_the_way.index("synth") :]))
    assert first_seen == list(STAGES)


def test_every_step_has_a_command_that_exists() -> None:
    for section in ("On Slurm", "On EKS"):
        for number, text in steps(section):
            assert re.search(r"`(make|aws|cp|source) ", text), f"{section} {number} has no command"


def test_every_file_that_is_named_exists() -> None:
    mine = {"clusters/mine.yaml"}
    for text in (TEXT, MLFLOW):
        for path in re.findall(
            r"\b((?:clusters|config|lifecycle|docs|workloads)/[\w/.-]+\.\w+)", text
        ):
            assert path in mine or (REPOSITORY / path).is_file(), path


def test_commands_name_the_copied_file_everywhere() -> None:
    """One that is left out means the shipped file's cluster, in another region perhaps."""
    for section in ("On Slurm", "On EKS"):
        for _, text in steps(section):
            for command in re.findall(r"`(make [^`]+)`", text):
                target = command.split()[1]
                if target not in ("train-ddp", "charts", "plan") or "TARGET=" in command:
                    assert "CLUSTER=clusters/mine.yaml" in command, command


@pytest.mark.parametrize(
    "command",
    [found for text in (TEXT, MLFLOW) for found in commands(text) if found.startswith("aws ")],
)
def test_aws_commands_exist_with_their_options(command: str) -> None:
    assert not unknown_options(command)


@pytest.mark.parametrize(
    ("row", "regions"),
    [
        *((feature.title, feature.regions) for feature in OPTIONAL_FEATURES),
        ("the agent that watches EKS nodes for faults", HEALTH_MONITORING_REGIONS),
    ],
)
def test_regions_are_those_of_the_code(row: str, regions: frozenset[str]) -> None:
    (told,) = re.findall(rf"^\| {re.escape(row)} \| (.*) \|$", TEXT, re.MULTILINE)
    assert told.split(", ") == sorted(ZONE_ID_PREFIXES.keys() - regions)
    assert f"in {len(ZONE_ID_PREFIXES)} regions" in TEXT
