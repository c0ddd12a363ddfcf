"""``seqlm check``: what would be read of a file, and what may be wrong with it."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqlm.__main__ import OTHERS
from seqlm.proteins.check.spreadsheets import Damage, damage_of

PROTEIN = "MKVLAAGSERTIDPKQNFYMHWC"


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Check files by the command: its status and its output."""

    def run(*arguments: object) -> tuple[int, str]:
        status = 0
        try:
            OTHERS["check"].main([str(argument) for argument in arguments])
        except SystemExit as ended:
            status = int(ended.code or 0)
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    return run


def test_a_clean_file_has_no_warning(tmp_path: Path, check) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(gzip.compress(f">a x\n{PROTEIN}\n>b\nMM{PROTEIN}\n".encode()))
    status, told = check(path)
    assert status == 0
    assert told.splitlines() == [
        str(path),
        "  FASTA, gzip, UTF-8",
        "  proteins: read 2, used 2, left out 0",
        "  residues: 48, lengths 23 to 25",
    ]
    assert [found.name for found in tmp_path.iterdir()] == ["a.txt"]  # nothing is written


def test_each_oddity_is_counted_with_its_place_and_policy(tmp_path: Path, check) -> None:
    path = tmp_path / "a.fasta"
    path.write_text(
        f">a\n{PROTEIN}*\n>b\n{PROTEIN.lower()}A\n>a\n{PROTEIN}U\n>c\n{PROTEIN}\n>d\nMK\n>e\n\n>f\nM*K\n"
    )
    status, told = check(path)
    assert status == 0
    assert "proteins: read 7, used 5, left out 2 (1 with a stop inside, 1 empty)" in told
    for title, place in {
        "1 `*` at the end (clean: ": "line 1 'a'",
        "1 lower case (clean: ": "line 3 'b'",
        "1 unusual letter (use: ": "line 5 'a'",
        "1 short (use: ": "line 9 'd'",
        "1 repeated id (use: embed, predict, variants; reject: data; stop: finetune)": "line 5 'a'",
        "1 repeated sequence (use: ": "line 7 'c'",
        "1 empty (reject: embed, predict, variants, data; stop: finetune)": "line 11: record e has no",
        "1 with a stop inside (reject: ": "line 14: '*' in record f",
    }.items():
        lines = told.splitlines()
        (number,) = [n for n, line in enumerate(lines) if line.strip().startswith(title)]
        assert lines[number + 1].strip().startswith(place)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        (">a\nM-K\n", "none of its proteins is usable"),
        ("@r\nACGT\n+\nFFFF\n", "is FASTQ"),
        (">a\n" + "ACGT" * 20 + "\n", "1 of 1 records look like DNA or RNA"),
        ("id,label\n1,x\n", None),
        ("name,text\n1,x\n", "no column that is known for sequences"),
        ("id,sequence\n", "none of its proteins is usable"),
    ],
)
def test_the_status_says_whether_something_is_usable(
    tmp_path: Path, check, text: str, reason: str | None
) -> None:
    good = tmp_path / "good.fasta"
    good.write_text(f">a\n{PROTEIN}\n")
    path = tmp_path / "x"
    path.write_text(text)
    status, told = check(path, good)
    assert "proteins: read 1, used 1" in told  # the other file is checked all the same
    if reason is None:
        assert status == 0
        return
    assert status == 2
    assert reason in told
    assert told.rstrip().split("\n")[-1] == f"error: nothing can be used of {path}"


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path, check) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    status, told = check(tmp_path / "link", tmp_path / "zero", tmp_path / "gone")
    assert status == 2
    assert told.count("not a regular file") == 2
    assert told.count("no such file") == 1


def test_columns_are_found_or_named(tmp_path: Path, check) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"Entry;Sequence;chain\nP1;{PROTEIN};MKV\n")
    status, told = check(path)
    assert status == 0
    assert "table, text with semicolons, UTF-8" in told
    assert "id: Entry, sequence: Sequence" in told
    _, told = check(path, "--sequence-column", "chain", "--id-column", "Sequence")
    assert "id: Sequence, sequence: chain" in told
    assert "residues: 3" in told
    status, told = check(path, "--sequence-column", "nothing")
    assert status == 2
    assert "no column 'nothing'" in told


def test_encodings_are_named(tmp_path: Path, check) -> None:
    table = f"id,sequence,who\n1,{PROTEIN},M\u00fcller\n"
    for encoding, name in {"utf-8": "UTF-8", "utf-16": "UTF-16", "cp1252": "Windows-1252"}.items():
        path = tmp_path / encoding
        path.write_text(table, encoding=encoding)
        assert f"table, text with commas, {name}\n" in check(path)[1]


def test_labels_of_residues_are_found_and_their_missing_share_is_named(
    tmp_path: Path, check
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,sequence,dssp\n" + "".join(f"{n},MKVLA,HE--H\n" for n in range(9)))
    status, told = check(path)
    assert status == 0
    assert "labels in dssp: 9 proteins with labels of residues, 0 without" in told
    assert "warning: 40% of the residues of 'dssp' have '-', which means no label." in told
    assert 'task.classes: [E, H, "-"]' in told


def test_classes_that_differ_in_case_and_words_for_missing_labels_are_named(
    tmp_path: Path, check
) -> None:
    path = tmp_path / "a.csv"
    labels = ["Membrane", "membrane", "NA", "soluble", ""]
    path.write_text(
        "id,sequence,place\n" + "".join(f"{n},{PROTEIN},{x}\n" for n, x in enumerate(labels))
    )
    _, told = check(path, "--label-column", "place")
    assert "labels in place: 4 proteins with labels, 1 without; 4 different ones" in told
    assert "'Membrane', 'membrane' of 'place' differ only in case or blanks" in told
    assert "'place' has 'NA', which stand for a missing label" in told


@pytest.mark.parametrize(
    ("cell", "damage"),
    [
        ("1-Mar", Damage.DATE),
        ("Mar-01", Damage.DATE),
        ("02-Sep", Damage.DATE),
        ("2021-03-01", Damage.DATE),
        ("2021-03-01T00:00:00", Damage.DATE),
        ("01.03.2021", Damage.DATE),
        ("3/1/2021", Damage.DATE),
        ("01. Mrz", Damage.DATE),
        ("1-Dec-21", Damage.DATE),
        ("44256", Damage.SERIAL),
        ("1.00E+05", Damage.SCIENTIFIC),
        ("2.31E+13", Damage.SCIENTIFIC),
        ("2,31E+13", Damage.SCIENTIFIC),
        ("M" * 32_767, Damage.CUT),
        ("MARCH1", None),
        ("SEPT2", None),
        ("DEC1", None),
        ("A42G", None),
        ("1E10", None),  # an entry of the PDB
        ("P12345", None),
        ("12345", None),
        ("99999", None),
        ("1.5", None),
        ("M" * 32_766, None),
    ],
)
def test_damage_by_spreadsheets(cell: str, damage: Damage | None) -> None:
    assert damage_of(cell) is damage


def test_ids_that_became_dates_and_numbers_are_named(tmp_path: Path, check) -> None:
    path = tmp_path / "a.csv"
    names = ["MARCH1", "SEPT2", "TP53", "BRCA1", "1-Mar", "44256", "2.31E+13"]
    path.write_text("id,sequence\n" + "".join(f"{name},{PROTEIN}\n" for name in names))
    status, told = check(path)
    assert status == 0
    assert "warning: 1 of 7 cells of 'id' look like dates, first line 6 '1-Mar'" in told
    assert "warning: 1 of 7 cells of 'id' look like the numbers of dates, first line 7" in told
    assert "warning: 1 of 7 cells of 'id' are in scientific notation, first line 8" in told


def test_dates_and_numbers_that_belong_there_are_no_damage(tmp_path: Path, check) -> None:
    path = tmp_path / "a.csv"
    rows = [f"{44_000 + n},{PROTEIN},2021-03-{n:02d},1.0E+0{n}\n" for n in range(1, 9)]
    path.write_text("id,sequence,collected,value\n" + "".join(rows))
    assert "warning" not in check(path)[1]


def test_mutations_that_became_dates_are_named(tmp_path: Path, check) -> None:
    path = tmp_path / "mutations.csv"
    path.write_text("mutant,score\nA42G,1\n2-Sep,2\n,3\n")
    status, told = check(path)
    assert status == 0
    assert "mutations: read 3, used 2, left out 1" in told
    assert "1 of 2 cells of 'mutant' look like dates, first line 3 '2-Sep'" in told


def test_names_in_other_columns_and_cut_cells_of_a_workbook(tmp_path: Path, check) -> None:
    book = openpyxl.Workbook()
    book.active.append(["id", "sequence", "Gene Names"])
    book.active.append(["P1", "M" * 32_767, "MARCH1"])
    book.active.append(["P2", PROTEIN, "1-Mar"])
    book.save(tmp_path / "a.xlsx")
    status, told = check(tmp_path / "a.xlsx")
    assert status == 0
    assert "table, xlsx" in told
    assert "1 of 2 cells of 'Gene Names' look like dates, first row 2 '1-Mar'" in told
    assert "1 of 2 cells of 'sequence' have 32,767 characters" in told


def test_parquet(tmp_path: Path, check) -> None:
    table = pa.table({"id": ["a", "b"], "sequence": [PROTEIN, None], "x": [[1.0], [2.0]]})
    pq.write_table(table, tmp_path / "a")
    status, told = check(tmp_path / "a")
    assert status == 0
    assert "proteins: read 2, used 1, left out 1 (1 empty)" in told
    assert "row 2: record b has no sequence" in told


def test_a_folder_is_checked_file_by_file(tmp_path: Path, check) -> None:
    (tmp_path / "a.pep").write_text(f">a\n{PROTEIN}\n")
    (tmp_path / "b").write_text(f"id,sequence\nx,{PROTEIN}\n")
    (tmp_path / "notes").write_text("words\n")
    status, told = check(tmp_path)
    assert status == 0
    assert f"{tmp_path}/a.pep\n" in told
    assert f"{tmp_path}/b\n" in told
    assert "left out 1 others: notes" in told


@pytest.mark.long
def test_the_command_needs_no_torch(tmp_path: Path) -> None:
    path = tmp_path / "a.fasta"
    path.write_text(f">a\n{PROTEIN}\n")
    program = (
        "import sys\nsys.modules['torch'] = None\nsys.modules['transformers'] = None\n"
        f"sys.argv = ['seqlm', 'check', {str(path)!r}]\n"
        "from seqlm.__main__ import main\nmain()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "read 1, used 1" in done.stdout
