"""Every command ends with the numbers of what it has read, used and left out, however often it is killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from seqlm.proteins.inference.embed import embed
from seqlm.proteins.inference.variants import variants
from seqlm.proteins.reading.counts import Counts
from seqlm.proteins.reading.policies import Kind
from seqlm.runs.run_file import RunFile
from seqlm.training.processes import Processes
from tests.workloads.proteins.inference.conftest import configured, fasta, here, sequences  # noqa: F401
from tests.workloads.proteins.inference.killed_commands import kill_at_call
from tests.workloads.proteins.inference.written import rows
from tests.workloads.proteins.reading.odd_inputs import DNA, PLAIN

Capture = pytest.CaptureFixture[str]
Configure = Callable[..., RunFile]


def last_lines(capsys: Capture, number: int = 1) -> list[str]:
    """Return the last lines of the output."""
    return capsys.readouterr().out.splitlines()[-number:]


def test_a_line_names_the_kinds_and_the_list() -> None:
    counts = Counts("proteins", 29, Counter({Kind.REPEATED_ID: 1, Kind.EMPTY: 1}))
    assert counts.line(Path("proteins.parquet.rejects.csv")) == (
        "proteins: read 31, used 29, left out 2 (1 empty, 1 repeated id): proteins.parquet.rejects.csv"
    )
    several = Counts("labels", 1_000, Counter({Kind.REPEATED_ID: 2_000, Kind.EMPTY: 0}))
    assert several.line() == "labels: read 3,000, used 1,000, left out 2,000 (2,000 repeated ids)"
    assert Counts("proteins", 3).line(Path("x")) == "proteins: read 3, used 3, left out 0"


def test_parts_and_further_starts_count_the_whole_input(
    configured: Configure,  # noqa: F811
    here: Processes,  # noqa: F811
    fasta: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    fasta.write_text(f">gene\n{DNA}\n{fasta.read_text()}>gap\nMK-T\n>stop\nM*K\n>gap\nM-K\n")
    out = tmp_path / "out.parquet"
    config = configured(input=[str(fasta)], part_residues=100, output=str(out))
    expected = (
        "proteins: read 18, used 14, left out 4 (1 with a stop inside, 2 with gaps, 1 DNA or RNA): "
        f"{out}.rejects.csv"
    )
    with monkeypatch.context() as patch:
        kill_at_call(3, patch)
        with pytest.raises(KeyboardInterrupt):
            embed(config, here)
    for _ in range(2):  # the missing parts, and a result that is complete
        capsys.readouterr()
        embed(config, here)
        assert last_lines(capsys) == [expected]
        kinds = [row["kind"] for row in rows(tmp_path / "out.parquet.rejects.csv")]
        assert kinds == ["nucleotides", "gap", "inner stop", "gap"]


def test_each_input_must_have_something_that_is_used(
    configured: Configure,  # noqa: F811
    here: Processes,  # noqa: F811
    fasta: Path,  # noqa: F811
    tmp_path: Path,
    capsys: Capture,
) -> None:
    (folder := tmp_path / "folder").mkdir()
    (folder / "genes.fna").write_text(f">gene\n{DNA}\n")
    out = tmp_path / "out.parquet"
    with pytest.raises(ValueError, match=r"genes\.fna: nothing can be used\. .*1 DNA or RNA"):
        embed(configured(input=[str(fasta), str(folder / "genes.fna")], output=str(out)), here)
    assert not out.exists()
    # A folder is one input, of which the proteins are used.
    (folder / "proteins.faa").write_text(f">a\n{PLAIN}\n")
    embed(configured(input=[str(folder)], output=str(out)), here)
    assert last_lines(capsys)[0].startswith("proteins: read 2, used 1, left out 1 (1 DNA or RNA): ")


def test_cropped_residues_and_mutations_are_counted(
    configured: Configure,  # noqa: F811
    here: Processes,  # noqa: F811
    tmp_path: Path,
    capsys: Capture,
) -> None:
    wild = tmp_path / "wild.fasta"
    wild.write_text(f">w\n{PLAIN}X\n")
    cropped = configured(
        input=[str(wild)],
        output=str(tmp_path / "e.parquet"),
        long_proteins="crop",
        max_residues=20,
    )
    embed(cropped, here)
    assert last_lines(capsys, 2) == [
        "proteins: read 1, used 1, left out 0",
        "residues: read 25, used 20, left out 5 (5 too long)",
    ]
    table = tmp_path / "mutations.csv"
    table.write_text("mutation\nK2R\nK2G\nW1A\n10R\n\nM1A,more\n")
    out = tmp_path / "v.csv"
    variants(configured(input=[str(wild)], output=str(out), mutations=str(table)), here)
    assert last_lines(capsys, 2) == [
        "proteins: read 1, used 1, left out 0",
        "mutations: read 5, used 2, left out 3 (1 row with other columns, 1 not a mutation, 1 that does not "
        f"fit): {out}.rejects.csv",
    ]
    all_of = configured(input=[str(wild)], output=str(tmp_path / "all.csv"))
    variants(all_of, here)
    assert last_lines(capsys)[0] == "residues: read 25, used 24, left out 1 (1 unusual letter)"
