"""Formats of files with proteins, and the columns of their tables."""

import gzip
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from seqlm.proteins.inference.records import Protein, Reject, read_proteins
from seqlm.proteins.reading.columns import (
    WELL_KNOWN,
    Role,
    chosen_columns,
    is_header,
    mutation_columns,
    normalized,
    well_known_column,
)
from seqlm.proteins.reading.formats import OTHERS, table_of_proteins

FIELDS = {Role.ID: "x.id", Role.SEQUENCE: "x.sequence"}

EXAMPLES = {
    "FASTQ": "@read1\nACGT\n+\nIIII\n",
    "SAM": "@HD\tVN:1.6\n",
    "VCF": "##fileformat=VCFv4.2\n",
    "GFF": "##gff-version 3\n",
    "GenBank": "LOCUS       SCU49845     5028 bp\n",
    "Swiss-Prot": "ID   001R_FRG3G              Reviewed;         256 AA.\n",
    "Stockholm": "# STOCKHOLM 1.0\n",
    "Clustal": "CLUSTAL O(1.2.4) multiple sequence alignment\n",
    "NEXUS": "#NEXUS\nbegin data;\n",
    "PHYLIP": " 5 42\nTurkey    AAGCTNGGGC\n",
    "XML": '<?xml version="1.0"?>\n',
    "JSON": '{"proteins": ["MK"]}\n',
}


def written(tmp_path: Path, text: str, name: str = "file") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_every_format_has_an_example() -> None:
    for one in OTHERS:
        assert any(one.pattern.match(text) for text in EXAMPLES.values()), one


@pytest.mark.parametrize("name", EXAMPLES)
def test_formats_that_cannot_be_read_are_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=rf"file is (an? )?.*{name}"):
        table_of_proteins(written(tmp_path, "\n" + EXAMPLES[name]))


def proteins(path: Path, **columns: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for record in read_proteins([str(path)], path.parent, **columns):
        assert isinstance(record, Protein), record
        found.append((record.id, record.sequence))
    return found


TABLES = [
    ("Entry,Sequence\nP1,MKT\n", [("P1", "MKT")]),
    ("Entry Name;ENTRY;SEQUENCE\nx_y;P1;MKT\n", [("P1", "MKT")]),
    ("mutant,mutated_sequence,DMS_score\nA1G,MKT,0.5\n", [("A1G", "MKT")]),
    ("name,seq\na,MKT\nb,MKL\n", [("a", "MKT"), ("b", "MKL")]),
    ("sequence,target\nMKT,1\nMKL,2\n", [("1", "MKT"), ("2", "MKL")]),
    ("sequence_id\tsequence\tsequence_aa\nr0\tACGT\tMKT*\n", [("r0", "MKT")]),
    ('{"Run": "S"}\nsequence,sequence_aa,sequence_id\nACG,MKT,r1\n', [("r1", "MKT")]),
    (">p a, b; c\nMKT\n", [("p", "MKT")]),
]


FIELD_TABLES = [
    ("sequence,target,set,validation\nMKT,1,train,\n", [("1", "MKT")], "a split of FLIP"),
    (
        "mutant,mutated_sequence,DMS_score,DMS_score_bin\nA1G,MKT,0.5,1\n",
        [("A1G", "MKT")],
        "a ProteinGym assay of substitutions",
    ),
    (
        "mutated_sequence,DMS_score,DMS_score_bin\nMKTA,0.5,1\n",
        [("1", "MKTA")],
        "a ProteinGym assay of insertions and deletions",
    ),
    ("input,dssp3,dssp8,disorder\nMKT,HEC,HEC,1 1 1\n", [("1", "MKT")], "form of NetSurfP"),
    (
        "sequence_id\tsequence\trev_comp\tv_call\tj_call\tsequence_aa\nr0\tACGT\tF\tv\tj\tMKT*\n",
        [("r0", "MKT")],
        "a table of AIRR",
    ),
    (
        '"{""Run"": ""SRR1"", ""Species"": ""human""}"\n'
        "sequence,v_call,j_call,sequence_alignment_aa,Redundancy\nACGT,v,j,MKT,2\n",
        [("1", "MKT")],
        "a table of IgBLAST, such as those of the Observed Antibody Space",
    ),
    (
        "Entry\tReviewed\tEntry Name\tProtein names\tOrganism\tLength\tSequence\n"
        "P1\treviewed\tX_Y\t\"5'-nucleotidase\thuman\t3\tMKT\n",
        [("P1", "MKT")],
        "an export of UniProt",
    ),
]
"""Small tables in the form of public ones, what they give, and the name of the format."""


@pytest.mark.parametrize(("text", "expected", "announced"), FIELD_TABLES)
@pytest.mark.parametrize("is_compressed", [False, True])
def test_formats_of_the_field_are_announced(
    tmp_path: Path,
    text: str,
    expected: list[tuple[str, str]],
    announced: str,
    is_compressed: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "table"
    path.write_bytes(gzip.compress(text.encode()) if is_compressed else text.encode())
    assert proteins(path) == expected
    assert announced in capsys.readouterr().err


def test_workbooks_of_uniprot_are_announced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    openpyxl = pytest.importorskip("openpyxl", reason="the extra xlsx is not installed")
    book = openpyxl.Workbook()
    book.active.append(["Entry", "Entry Name", "Sequence"])
    book.active.append(["P1", "X_Y", "MKT"])
    path = tmp_path / "uniprotkb.xlsx"
    book.save(path)
    assert proteins(path) == [("P1", "MKT")]
    assert "an export of UniProt; id: Entry, sequence: Sequence" in capsys.readouterr().err


NO_PROTEINS = [
    (
        "sequence_id\tsequence\tv_call\tj_call\nr\tACGT\tx\ty\n",
        "a table of AIRR, whose 'sequence' is DNA; .* 'sequence_aa'",
    ),
    (
        "sequence_alignment_aa_heavy,sequence_alignment_aa_light\nMK,MT\n",
        r"'sequence_alignment_aa_heavy', 'sequence_alignment_aa_light' may all .* inference\.sequence_column",
    ),
    ("Entry\tEntry Name\nP1\tX_Y\n", "an export of UniProt, without sequences; add the column"),
    ("accession,hgvs_nt,hgvs_pro,score\nu,NA,p.=,1\n", r"MaveDB, .* inference\.mutations"),
]


@pytest.mark.parametrize(("text", "message"), NO_PROTEINS)
def test_tables_without_proteins_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ValueError, match=message):
        proteins(path)


def test_a_column_that_is_named_goes_before_the_format(tmp_path: Path) -> None:
    path = written(tmp_path, "sequence_id,sequence,v_call,j_call,mine\nr,ACGT,x,y,MKT\n")
    assert proteins(path, sequence_column="mine") == [("r", "MKT")]
    added = written(tmp_path, "accession,hgvs_pro,protein_sequence\nu#1,p.=,MKT\n")
    assert proteins(added) == [("u#1", "MKT")]


@pytest.mark.parametrize(("text", "expected"), TABLES)
def test_well_known_columns_are_found(
    tmp_path: Path, text: str, expected: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, text)
    assert proteins(path) == expected
    note = capsys.readouterr().err
    assert ("sequence: " in note) == (not text.startswith(">")), "the choice is printed"


def test_columns_that_are_given_are_used(tmp_path: Path) -> None:
    path = written(tmp_path, "id,sequence,other,mine\np,MK,q,LA\n")
    assert proteins(path) == [("p", "MK")]
    assert proteins(path, id_column="other", sequence_column="mine") == [("q", "LA")]


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (
            ["id", "seq", "peptide"],
            "'seq', 'peptide' may all have the sequence; name one .* x.sequence",
        ),
        (
            ["uniprot", "acc", "sequence"],
            "'uniprot', 'acc' may all have the id; name one of them in x.id",
        ),
        (
            ["id", "value"],
            "no column that is known for sequences; it has 'id', 'value'. Name .* x.sequence",
        ),
        (["P1", "MKTAYIAKQRQISFVKSHFSRQ"], "known for sequences.* looks like a row; put a line"),
        (["sep=", ""], "known for sequences; it has 'sep=', ''. This line is no header; remove it"),
        (["# exported today"], "known for sequences.* This line is no header; remove it"),
    ],
)
def test_ambiguous_and_unknown_columns_are_listed(header: Sequence[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        chosen_columns(header, "file", id_column=None, sequence_column=None, fields=FIELDS)


@pytest.mark.parametrize(
    ("header", "remedy"),
    [
        (["A24G"], "looks like a row"),
        (["w", "p.Ala24Gly"], "looks like a row"),
        (["change"], "Name the column in inference.mutation_column"),
    ],
)
def test_a_table_of_mutations_without_a_header_needs_one(
    header: Sequence[str], remedy: str
) -> None:
    with pytest.raises(ValueError, match=f"known for mutations; .*{remedy}"):
        mutation_columns(header, "file", None, None)


def test_names_of_the_table_are_normalized_and_have_one_role() -> None:
    names = [name for ranks in WELL_KNOWN.values() for rank in ranks for name in rank]
    assert names == [normalized(name) for name in names]
    assert len(set(names)) == len(names)
    for role, ranks in WELL_KNOWN.items():
        for rank in ranks:
            for name in rank:
                assert well_known_column([name.upper()], role, "", "") == name.upper()


@pytest.mark.parametrize(
    "cells", ["Entry,Sequence", "name,seq", "protein", "mutant,mutatedsequence"]
)
def test_a_header_differs_from_proteins(cells: str) -> None:
    assert is_header(cells.split(","))
    assert not is_header(["p1", "MKTAYIAK"])


def test_a_mistake_is_a_reject_with_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, "id,sequence\np,MK1\nq,\nr,MK\n")
    found = list(read_proteins([str(path)], tmp_path))
    rejects = [record.where for record in found if isinstance(record, Reject)]
    assert [re.sub(r".*/", "", where) for where in rejects] == ["file:2", "file:3"]
