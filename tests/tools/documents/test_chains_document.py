"""The page on chains has the table of readings, and commands and messages that are the code's."""

import re
from pathlib import Path

import pytest

from seqlm.proteins.alphabet import encode
from seqlm.proteins.reading.chain_modes import CHAIN_MODES
from seqlm.proteins.reading.chains import MAX_CHAINS, Chain, Complex, choice_needed
from seqlm.runs.run_file import load_config

TEXT = Path("docs/chains.md").read_text()


@pytest.mark.parametrize("name", CHAIN_MODES)
def test_readings_are_described(name: str) -> None:
    mode = CHAIN_MODES[name]
    row = "record" if mode.joins else "chain"
    assert f"| `{name}` | {mode.reads} | {row} | {mode.use} |" in TEXT


def test_the_message_is_that_of_the_command() -> None:
    record = Complex("ab1", (Chain("H", encode("EVQ")), Chain("L", encode("DIQ"))))
    assert f"error: pairs.fasta: {choice_needed(record, 'inference.chains')}\n" in TEXT
    assert f"at most {MAX_CHAINS:,} chains" in TEXT


def test_the_task_of_the_page_is_a_run_file() -> None:
    [command] = re.findall(r'^seqlm finetune "(task=.*)"$', TEXT, re.MULTILINE)
    task = load_config("membrane_sample", [command]).task
    assert task is not None and task.chains == "linker"
    assert task.sequence_columns == ("heavy", "light")
