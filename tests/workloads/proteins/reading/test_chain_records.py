"""Records with several chains: their names, where they come from, and how a model reads them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from seqlm.proteins.alphabet import decode, encode
from seqlm.proteins.data.prepare import prepare_proteins
from seqlm.proteins.inference.records import Protein, proteins_of, read_proteins, records_of
from seqlm.proteins.reading.chain_modes import CHAIN_MODES, LINKER_RESIDUES, chain_mode
from seqlm.proteins.reading.chains import (
    MAX_CHAINS,
    Chain,
    ChainError,
    Complex,
    default_names,
    named_texts,
)
from seqlm.proteins.reading.policies import Kind
from seqlm.proteins.reading.rejects import Reject
from seqlm.runs.run_file import load_config

HEAVY = "EVQLVESGGGLVQ"
LIGHT = "DIQMTQSPSS"


def pair(heavy: str = HEAVY, light: str = LIGHT) -> Complex:
    return Complex("ab1", (Chain("H", encode(heavy)), Chain("L", encode(light))))


def read(path: Path, **columns: object) -> list[Protein | Complex | Reject]:
    return list(read_proteins([str(path)], path.parent, **columns))  # type: ignore[arg-type]


def shown(record: Protein | Complex | Reject) -> dict[str, str]:
    """Return the sequences of a record's chains by name."""
    assert isinstance(record, Complex)
    return {chain.name: decode(chain.tokens) for chain in record.chains}


def test_each_mode_reads_chains_in_its_way() -> None:
    heavy, light = proteins_of(pair(), chain_mode("separate"))
    assert (heavy.id, heavy.sequence, heavy.chains) == ("ab1.H", HEAVY, ())
    assert (light.id, light.sequence, light.chains) == ("ab1.L", LIGHT, ())
    [linked] = proteins_of(pair(), chain_mode("linker"))
    assert linked.sequence == HEAVY + "G" * 25 + LIGHT
    [joined] = proteins_of(pair(), chain_mode("joined"))
    assert joined.sequence == HEAVY + LIGHT
    for one in (linked, joined):
        assert one.id == "ab1" and one.num_residues == len(HEAVY + LIGHT)
        assert decode(one.tokens[one.places]) == HEAVY + LIGHT
        assert [decode(one.tokens[span.start : span.stop]) for span in one.chains] == [HEAVY, LIGHT]


def test_a_mode_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="got 'glued'; allowed are separate, linker, joined"):
        chain_mode("glued")
    assert LINKER_RESIDUES == len(CHAIN_MODES["linker"].linker) == 25


def test_chains_are_named_by_letters_by_default() -> None:
    assert default_names(3) == ["A", "B", "C"] and default_names(28)[25:] == ["Z", "AA", "AB"]
    assert named_texts("MK|TA:W", None) == [("A", "MK"), ("B", "TA"), ("C", "W")]
    assert named_texts("MK|TA", ["H", "L"]) == [("H", "MK"), ("L", "TA")]


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["H"], r"1 name\(s\) of chains .* for 2 chain"),
        (["H", "H"], "2 chains are called 'H'"),
        (["H", ""], "the name of a chain is ''"),
    ],
)
def test_names_that_do_not_fit_are_refused(names: Sequence[str], reason: str) -> None:
    with pytest.raises(ChainError, match=reason):
        named_texts("MK|TA", names)


def test_records_are_bounded() -> None:
    with pytest.raises(ChainError, match="1,001 chains in one record; allowed are 1,000"):
        named_texts("|".join(["M"] * (MAX_CHAINS + 1)), None)
    with pytest.raises(ChainError, match="no chain"):
        Complex("none", ())
    with pytest.raises(ChainError, match="chain 'L' has no residues"):
        pair(light="")


def test_fasta_has_chains_in_its_sequence_and_their_names_in_its_header(tmp_path: Path) -> None:
    path = tmp_path / "pairs.fasta"
    path.write_text(
        f">ab1 x chains=H,L\n{HEAVY}|\n{LIGHT}*\n>plain\nMKT\n>ab2\nMK:TA\n>ab3 chains=H\nMK|TA\n"
        ">ab4\nMK||TA\n>ab5\nMK|T1\n"
    )
    first, plain, second, *bad = read(path)
    assert shown(first) == {"H": HEAVY, "L": LIGHT} and shown(second) == {"A": "MK", "B": "TA"}
    assert isinstance(plain, Protein) and plain.sequence == "MKT" and not plain.chains
    assert [(one.kind, one.where) for one in bad if isinstance(one, Reject)] == [
        (Kind.BAD_CHAINS, f"{path}:8"),
        (Kind.BAD_CHAINS, f"{path}:10"),
        (Kind.CHARACTER, f"{path}:12"),
    ]


def write(path: Path, rows: Sequence[Sequence[str]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows(rows)
    return path


def test_columns_name_the_chains_of_a_table(tmp_path: Path) -> None:
    table = [
        ("id", "heavy", "light"),
        ("ab1", HEAVY, LIGHT),
        ("ab2", HEAVY, ""),
        ("ab3", "MK|T", "M"),
    ]
    first, *bad = read(write(tmp_path / "t.csv", table), sequence_columns=("heavy", "light"))
    assert shown(first) == {"heavy": HEAVY, "light": LIGHT}
    reasons = [one.reason for one in bad if isinstance(one, Reject)]
    assert "chain 'light' has no residues" in reasons[0] and "has '|' or ':' in it" in reasons[1]
    cells = write(
        tmp_path / "u.csv", [("id", "sequence"), ("ab1", f"{HEAVY}:{LIGHT}"), ("p", "MKT")]
    )
    of_cell, plain = read(cells)
    assert shown(of_cell) == {"A": HEAVY, "B": LIGHT} and isinstance(plain, Protein)


def test_rows_of_airr_pair_by_their_cell(tmp_path: Path) -> None:
    header = ("sequence_id", "cell_id", "locus", "sequence", "sequence_aa", "v_call")
    table = [
        ("s1", "c1", "IGK", "GAC", LIGHT, "IGKV1"),
        ("s2", "c2", "IGH", "GAC", HEAVY, "IGHV3"),
        ("s3", "c1", "", "GAC", HEAVY, "IGHV3-23*01"),
        ("s4", "", "IGH", "GAC", "MKTA", "IGHV3"),
        ("s5", "c3", "IGH", "GAC", HEAVY, "IGHV3"),
        ("s6", "c3", "IGH", "GAC", HEAVY, "IGHV3"),
        ("s7", "c4", "", "GAC", HEAVY, ""),
    ]
    path = write(tmp_path / "airr.tsv", [header, *table])
    alone, first, second, *bad = read(path, pairs_cells=True)
    assert isinstance(alone, Protein) and alone.id == "s4"
    assert first.id == "c1" and list(shown(first)) == ["IGH", "IGK"]  # type: ignore[union-attr]
    assert shown(second) == {"IGH": HEAVY}
    reasons = [one.reason for one in bad if isinstance(one, Reject)]
    assert "2 chains are called 'IGH'" in reasons[0] and "names no chain in 'locus'" in reasons[1]
    assert len(read(path)) == len(table)  # without a mode each row is a protein


def test_the_run_file_must_say_how_chains_are_read(tmp_path: Path) -> None:
    path = tmp_path / "pairs.fasta"
    path.write_text(f">ab1 chains=H,L\n{HEAVY}|{LIGHT}\n")
    source = f"inference.input=[{path}]"
    with pytest.raises(
        ValueError, match=r"'H', 'L'\); set inference\.chains to separate, linker or joined"
    ):
        list(records_of(load_config("esm2_8m_sample", [source])))
    task = "task={kind: regression, table: [t.csv], chains: joined}"
    [of_task] = records_of(load_config("esm2_8m_sample", [source, task]))
    [own] = records_of(load_config("esm2_8m_sample", [source, task, "inference.chains=linker"]))
    assert isinstance(of_task, Protein) and isinstance(own, Protein)
    assert len(own.tokens) - len(of_task.tokens) == LINKER_RESIDUES


def test_long_records_count_the_joined_length(tmp_path: Path) -> None:
    path = tmp_path / "pairs.fasta"
    path.write_text(f">ab1\n{HEAVY}|{LIGHT}\n>ab2\n{LIGHT}|{LIGHT}\n")
    most = len(LIGHT) * 2 + LINKER_RESIDUES
    limits = [f"inference.input=[{path}]", f"model.max_residues={most}", "inference.chains=linker"]
    config = load_config("esm2_8m_sample", [*limits, "inference.long_proteins=reject"])
    reject, kept = records_of(config)
    assert isinstance(reject, Reject) and reject.kind is Kind.LONG
    assert f"has {most + 3} residues; allowed are {most}" in reject.reason
    assert isinstance(kept, Protein) and len(kept.tokens) == most


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("inference.sequence_columns=[heavy, light]", "without inference.chains"),
        ("inference={sequence_columns: [heavy], chains: linker}", "name at least two columns"),
        ("inference={sequence_columns: [a, b], sequence_column: a, chains: linker}", "leave one"),
        ("task={kind: residue, table: [t.csv], chains: linker}", "whose labels belong to residues"),
        ("task={kind: binary, table: [t.csv], chains: separate}", "task.chains"),
        ("inference.chains=glued", "inference.chains"),
        (
            "task={kind: regression, table: [t.csv], split: {variants: random}, chains: linker}",
            "several chains with task.split.variants",
        ),
    ],
)
def test_fields_that_do_not_fit_are_refused(change: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        load_config("esm2_8m_sample", [change])


def test_pretraining_splits_records_into_chains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fasta = tmp_path / "pairs.fasta"
    others = "".join(f">P{n}\n{'MKTAYIAKQR'[: n + 2]}\n" for n in range(6))
    fasta.write_text(
        f">ab1 chains=H,L\n{HEAVY}|{LIGHT}\n>ab2\n{HEAVY[:5]}:{LIGHT[:4]}:MKK\n{others}"
    )
    table = write(tmp_path / "t.csv", [("id", "sequence"), ("ab3", "WWA|WWC"), ("ab4", "W||W")])
    out = tmp_path / "out"
    changes = [f"data.source=[{fasta}, {table}]", f"data.path={out}"]
    manifest = prepare_proteins(load_config("esm2_8m_sample", changes))
    said = capsys.readouterr().err
    assert (
        "records with several chains: 3; each chain is a protein with the id <id>.<chain>" in said
    )
    assert manifest.records == 2 + 3 + 6 + 2 and manifest.rejected == {"wrong chains": 1}
    assert "left out 1 (1 with wrong chains)" in said


def test_places_of_one_chain_are_all() -> None:
    np.testing.assert_array_equal(Protein("p", encode("MKT"), "").places, [0, 1, 2])
