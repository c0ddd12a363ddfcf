"""docs/runbook.md says what is so: its commands exist, with the words that Slurm, AWS and our scripts know.

What it saves and restores is tried on a real Slurm by tests/cluster.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from config.reading.loader import load_cluster
from config.resource_names import construct_ids
from node_setup.step import STATE
from node_setup.steps import STEPS, hold
from tests.tools.documents.document_commands import (
    REPOSITORY,
    blocks,
    commands,
    unknown_options,
)

TEXT = (REPOSITORY / "docs/runbook.md").read_text()
SHOWN_REASONS = re.findall(r"^\| `([^`]+)`(?:, `([^`]+)`)? \| ", TEXT, re.MULTILINE)
# From the manuals of Slurm 22.05 and 25.05.
SCONTROL = {
    "ping": set(),
    "reconfigure": set(),
    "show": {"config", "job", "node"},
    "update": {"NodeName", "PartitionName", "Reason", "State"},
}
STATES = {
    "NodeName": {"DOWN", "DRAIN", "FAIL", "RESUME", "UNDRAIN"},
    "PartitionName": {"UP", "DOWN", "DRAIN"},
}
OPTIONS = {
    "sinfo": {"list-reasons"},
    "squeue": {"nodelist", "start", "states"},
    "sacct": {"allusers", "duplicates", "format", "starttime"},
    "scancel": {"user"},
    "sacctmgr": {"immediate"},
    "srun": {"auto-resume"},
}
HYPERPOD_READS = {"Action:Replace", "Action:Reboot"}


def called(program: str) -> list[list[str]]:
    """Words after the program, of each command that calls it, in pipes and substitutions as well."""
    found = []
    for command in commands(TEXT):
        for match in re.finditer(rf"(?:^|\(|\| )(?:sudo )?{program}(?= |$)([^|)]*)", command):
            words = match[1].replace("<", "'<").replace(">", ">'")
            # Quotes around a substitution are cut apart here.
            found.append(shlex.split(words) if words.count('"') % 2 == 0 else words.split())
    return found


@pytest.mark.parametrize("command", sorted({c for c in commands(TEXT) if c.startswith("aws ")}))
def test_aws_commands_exist_with_their_options(command: str) -> None:
    assert not unknown_options(command)


def test_stacks_that_are_deployed_one_by_one_exist() -> None:
    named = re.findall(r"^make deploy STACKS=(\w+)", "\n".join(commands(TEXT)), re.MULTILINE)
    assert named
    assert {*named} <= {*construct_ids(load_cluster(REPOSITORY / "clusters/slurm.yaml"))}


def test_scontrol_knows_the_documented_options() -> None:
    calls = [call for call in called("scontrol") if call]
    assert len(calls) > 10
    for verb, *words in calls:
        assert verb in SCONTROL
        if verb == "show":
            assert words[0] in SCONTROL["show"]
        values = dict(word.split("=", 1) for word in words if "=" in word)
        assert values.keys() <= SCONTROL["update"]
        for entity, states in STATES.items():
            if entity in values:
                assert values["State"] in states


def test_reasons_for_hyperpod_are_the_exact_words() -> None:
    said = {word for word in re.findall(r"Action:\w+", TEXT)}
    assert said == HYPERPOD_READS
    for call in called("scontrol"):
        if "State=FAIL" in call:
            assert call[-1].removeprefix("Reason=") in HYPERPOD_READS


@pytest.mark.parametrize("program", OPTIONS)
def test_slurm_commands_have_their_options(program: str) -> None:
    calls = called(program)
    assert calls
    for words in calls:
        for option in (word for word in words if word.startswith("--")):
            assert option[2:].partition("=")[0] in OPTIONS[program]


def test_reasons_of_our_own_are_those_that_scripts_give() -> None:
    reasons = {reason for row in SHOWN_REASONS for reason in row if reason}
    ours = {reason for reason in reasons if reason.startswith("node-")}
    assert hold.IN_PROGRESS in ours
    assert any(reason.startswith(f"{hold.OURS}step ") for reason in ours)
    prolog = (REPOSITORY / "lifecycle/slurm/units/health_check_prolog.sh").read_text()
    assert "node-health: <fault>" in ours and 'reason="node-health: ' in prolog
    assert len(ours) == 3


def test_what_it_names_on_nodes_is_there() -> None:
    assert STATE in TEXT
    assert (
        "/var/log/provision/provisioning.log"
        in (REPOSITORY / "lifecycle/slurm/on_init_complete.sh").read_text()
    )
    units = {path.stem for path in (REPOSITORY / "lifecycle/slurm/units").glob("*.service")}
    assert {"prometheus-agent", "discover-nodes"} <= units
    assert (
        "check-node-health"
        in (REPOSITORY / "lifecycle/slurm/units/health_check_prolog.sh").read_text()
    )
    assert {step.name for step in STEPS} >= {"users", "slurm-accounts", "accounting"}


@pytest.mark.parametrize("block", blocks(TEXT))
def test_blocks_are_shell(block: str, tmp_path: Path) -> None:
    script = tmp_path / "block.sh"
    # Words in angles are for the reader to fill in.
    filled = re.sub(r"<([a-z ]+)>", lambda match: match[1].replace(" ", "-"), block)
    script.write_text(f"#!/bin/bash\n{filled}\n")
    checked = subprocess.run(
        [Path(sys.executable).parent / "shellcheck", "--exclude=SC2002", script],
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout
