"""Page on input files: it names every format, column and limit of the code."""

from pathlib import Path

from seqlm.proteins.inference.records import MAX_RECORD_BYTES
from seqlm.proteins.reading.columns import WELL_KNOWN, Role
from seqlm.training.data.compressions import COMPRESSIONS, MAX_EXPANDED_BYTES, MAX_EXPANSION
from seqlm.training.data.limits import MIB, Limits

PAGE = " ".join(Path("docs/input-files.md").read_text().split())


def test_names_of_columns_are_those_of_the_table() -> None:
    for role in (Role.ID, Role.SEQUENCE):
        for rank, names in enumerate(WELL_KNOWN[role], start=1):
            assert f"| {role.value} | {rank} | `" + "`, `".join(names) + "` |" in PAGE
        assert f"| {role.value} | {len(WELL_KNOWN[role]) + 1} |" not in PAGE


def test_compressions_and_limits_are_named() -> None:
    for name in COMPRESSIONS:
        assert name in PAGE
    assert MAX_RECORD_BYTES == Limits.record_bytes == 32 * MIB and "at most 32 MiB" in PAGE
    assert MAX_EXPANDED_BYTES == 1024 * MIB and "at most 1 GiB" in PAGE
    assert MAX_EXPANSION == 100 and "at most 100 times" in PAGE
