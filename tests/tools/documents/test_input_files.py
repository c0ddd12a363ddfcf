"""Page on input files: it names every format, column and limit of the code."""

import re
from pathlib import Path

from seqlm.proteins.inference.records import MAX_RECORD_BYTES
from seqlm.proteins.reading.columns import WELL_KNOWN, Role
from seqlm.proteins.reading.field_formats import (
    DEEPLOC_COMPARTMENTS,
    FIELD_FORMATS,
    PAIRED_CHAINS,
)
from seqlm.proteins.reading.policies import Decision, policy_table
from seqlm.runs.run_file import load_config
from seqlm.training.data.compressions import COMPRESSIONS, MAX_EXPANDED_BYTES, MAX_EXPANSION
from seqlm.training.data.limits import MIB, Limits

TEXT = Path("docs/input-files.md").read_text()
PAGE = " ".join(TEXT.split())
OF_PAIRED_FILES = (*PAIRED_CHAINS, "entry_name", "v_call", "j_call")
"""Columns that the page describes in words."""


def test_names_of_columns_are_those_of_the_table() -> None:
    for role in Role:
        for rank, names in enumerate(WELL_KNOWN[role], start=1):
            assert f"| {role.value} | {rank} | `" + "`, `".join(names) + "` |" in PAGE
        assert f"| {role.value} | {len(WELL_KNOWN[role]) + 1} |" not in PAGE


def test_columns_of_every_format_are_named() -> None:
    page = PAGE.lower()
    for one in FIELD_FORMATS:
        names = one.needs - set(DEEPLOC_COMPARTMENTS)
        unknown = [name for name in names if name not in page and name not in OF_PAIRED_FILES]
        assert not unknown, (one.name, unknown)


def test_commands_of_the_page_are_run_files() -> None:
    commands = re.findall(r'^seqlm finetune "(task=.*)"$', TEXT, re.MULTILINE)
    assert len(commands) == 3
    for override in commands:
        task = load_config("membrane_sample", [override]).task
        assert task is not None and task.id_column is None and not task.label_columns


def test_compressions_and_limits_are_named() -> None:
    for name in COMPRESSIONS:
        assert name in PAGE
    assert MAX_RECORD_BYTES == Limits.record_bytes == 32 * MIB and "at most 32 MiB" in PAGE
    assert MAX_EXPANDED_BYTES == 1024 * MIB and "at most 1 GiB" in PAGE
    assert MAX_EXPANSION == 100 and "at most 100 times" in PAGE


def test_the_policy_table_is_that_of_the_code() -> None:
    assert policy_table() in Path("docs/input-files.md").read_text(), (
        "replace the table in docs/input-files.md by the output of policy_table()"
    )
    for decision in Decision:
        assert f"| {decision.value} |" in PAGE
