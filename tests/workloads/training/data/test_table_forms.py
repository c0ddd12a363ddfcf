"""Recognition of tables by their content, and their rows."""

import gzip
from datetime import date
from pathlib import Path

import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqlm.training.data import workbook
from seqlm.training.data.limits import Limits
from seqlm.training.data.table_forms import Layout, table_form
from seqlm.training.data.table_rows import Problems, Table, TableUse

USE = TableUse(fields="some.field", other_formats="FASTA")


def written(tmp_path: Path, content: str | bytes, name: str = "table") -> Path:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def rows_of(path: Path, *columns: str) -> list[tuple[object, ...]]:
    problems = Problems()
    found = [
        tuple(cells[name] for name in columns)
        for _, cells in Table(path, USE).rows(columns, problems)
    ]
    problems.raise_if_any(path.name)
    return found


SEPARATED = {
    ",": "id,sequence\np,MK\nq,LA\n",
    ";": "id;sequence;note\np;MK;1,5\nq;LA;2,5\n",
    "\t": "id\tsequence\tnote\np\tMK\ta, b; c\nq\tLA\td\n",
}


@pytest.mark.parametrize("separator", SEPARATED)
@pytest.mark.parametrize("name", ["table", "table.csv", "table.tsv", "table.txt.gz"])
def test_the_separator_is_found_whatever_the_name(
    tmp_path: Path, separator: str, name: str
) -> None:
    text = SEPARATED[separator].encode()
    path = written(tmp_path, gzip.compress(text) if name.endswith(".gz") else text, name)
    form = table_form(path)
    assert form is not None and form.separator == separator
    assert rows_of(path, "id", "sequence") == [("p", "MK"), ("q", "LA")]


def test_quotes_are_cells_contents_in_text_with_tabs(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "Entry\tFunction\tSequence\n"
        'P1\t"5\'-nucleotidase"\tMKA\n'
        'P2\t"note begins\tMKC\n'
        "P3\tmiddle\tMKD\n"
        'P4\tends"\tMKE\n',
    )
    assert rows_of(path, "Entry", "Sequence") == [
        ("P1", "MKA"),
        ("P2", "MKC"),
        ("P3", "MKD"),
        ("P4", "MKE"),
    ]
    assert rows_of(path, "Function")[0] == ('"5\'-nucleotidase"',)


def test_text_with_tabs_whose_names_are_all_quoted_has_quotes(tmp_path: Path) -> None:
    path = written(tmp_path, '"id"\t"sequence"\n"p ""x"""\t"MK"\n')
    assert rows_of(path, "id", "sequence") == [('p "x"', "MK")]


def test_metadata_before_the_header_are_skipped(tmp_path: Path) -> None:
    metadata = '{"Run": "SRR1", "Link": "https://example.org", "Species": "human"}'
    for first in (metadata, '"' + metadata.replace('"', '""') + '"'):
        path = written(tmp_path, f"{first}\nid,sequence\np,MK\nq\n")
        assert rows_of(written(tmp_path, f"{first}\nid,sequence\np,MK\n"), "sequence") == [("MK",)]
        path = written(tmp_path, f"{first}\nid,sequence\np,MK\nq\n")
        with pytest.raises(ValueError, match="table:4: 1 fields, the header has 2"):
            rows_of(path, "id")


def test_rows_of_other_lengths_are_reported_with_their_lines(tmp_path: Path) -> None:
    path = written(tmp_path, "id,sequence\np,MK\n\nq\nr,LA,x\n")
    with pytest.raises(ValueError) as refused:
        rows_of(path, "id")
    assert "table:4: 1 fields, the header has 2" in str(refused.value)
    assert "table:5: 3 fields, the header has 2" in str(refused.value)


def test_a_single_column_needs_the_name_of_a_table(tmp_path: Path) -> None:
    text = "sequence\nMK\nLA\n"
    assert rows_of(written(tmp_path, text, "x.csv"), "sequence") == [("MK",), ("LA",)]
    assert table_form(written(tmp_path, text, "x.txt")) is None
    assert table_form(written(tmp_path, ">p a, b\nMK\n", "x.csv")) is None, "FASTA"


def test_a_row_that_is_cut_off_at_the_end_of_the_sample_does_not_count(tmp_path: Path) -> None:
    lines = "id;sequence\n" + "".join(f"p{number};{'M' * 200_000}\n" for number in range(12))
    path = written(tmp_path, lines)
    assert len(rows_of(path, "id")) == 12


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, gzip.compress(b"id,sequence\np," + b"M" * (40 << 20)))
    assert path.stat().st_size < 100_000
    with pytest.raises(ValueError, match=f"a line of more than {Limits.record_bytes:,} bytes"):
        rows_of(path, "id")


def test_parquet_is_recognised_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    pq.write_table(pa.table({"id": ["p"], "sequence": ["MK"], "value": [1.5]}), path)
    form = table_form(path)
    assert form is not None and form.layout is Layout.PARQUET
    assert rows_of(path, "id", "value") == [("p", "1.5")]


def workbook_of(tmp_path: Path, *rows: list[object]) -> Path:
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    path = tmp_path / "table"
    book.save(tmp_path / "x.xlsx")
    (tmp_path / "x.xlsx").rename(path)
    return path


def test_a_workbook_is_read_from_its_first_row_with_a_value(tmp_path: Path) -> None:
    path = workbook_of(
        tmp_path,
        [],
        ["id", "sequence", "value", "day"],
        ["p", "MK", 24, date(2024, 3, 1)],
        [None, None],
        ["q", "LA", 1.5],
    )
    assert rows_of(path, "id", "sequence", "value", "day") == [
        ("p", "MK", "24", "2024-03-01T00:00:00"),
        ("q", "LA", "1.5", None),
    ]


def test_a_workbook_that_expands_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = workbook_of(tmp_path, ["id", "sequence"], *(["p", "M"] for _ in range(2000)))
    monkeypatch.setattr(workbook, "MAX_EXPANDED_BYTES", 10_000)
    with pytest.raises(ValueError, match=r"expands from [\d,]+ to [\d,]+ bytes"):
        rows_of(path, "id")


def test_a_workbook_names_the_package_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = workbook_of(tmp_path, ["id", "sequence"])
    monkeypatch.setitem(__import__("sys").modules, "openpyxl", None)
    with pytest.raises(ValueError, match=r"pip install 'seqlm\[xlsx\]'"):
        rows_of(path, "id")


LONG_ROWS = {
    "a line": "a," + "A" * (33 << 20),
    "a line in quotes": 'a,"' + "A" * (33 << 20),
    "a field of many lines": 'a,"' + "A\n" * (3 << 20),
    "many fields of many lines": "a," + '"x\n",' * (1 << 20),
}
LOWER_BOUND = 4 << 20
"""Bound of rows of many lines: those of 32 MiB take nine CPU seconds."""


@pytest.mark.long
@pytest.mark.parametrize("row", LONG_ROWS)
def test_a_row_of_any_length_is_refused_within_a_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: str
) -> None:
    """8 GB of one letter are 8 MB in gzip, and short lines in quotes are one row as well."""
    if "many lines" in row:
        monkeypatch.setattr(Limits, "record_bytes", LOWER_BOUND)
    text = "id,sequence\np,MK\n" * 100_000 + LONG_ROWS[row]
    path = written(tmp_path, gzip.compress(text.encode(), compresslevel=1), "t.csv.gz")
    with pytest.raises(ValueError, match=r"t\.csv\.gz.*(line of more|row of more|field larger)"):
        rows_of(path, "id")


def test_a_table_of_very_many_columns_is_refused_in_a_short_line(tmp_path: Path) -> None:
    header = ",".join(f"column {number}" for number in range(100_000))
    path = written(tmp_path, f"{header}\n{',' * 99_999}\n")
    with pytest.raises(ValueError, match=r"has no column 'column x'") as raised:
        rows_of(path, "column x")
    assert len(str(raised.value)) < 1_000
    path = written(tmp_path, f"{'x' * 500_000},id\n1,2\n")
    with pytest.raises(ValueError, match=r"has no column 'sequence'") as raised:
        rows_of(path, "sequence")
    assert len(str(raised.value)) < 1_000


def test_a_parquet_file_may_repeat_long_texts(tmp_path: Path) -> None:
    """Twenty thousand rows refer to one text of 1 MiB: all rows together would have 20 GB."""
    text = "M" * (1 << 20)
    rows = 20_000
    sequences = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), [text])
    pq.write_table(pa.table({"id": range(rows), "sequence": sequences}), tmp_path / "table")
    assert (tmp_path / "table").stat().st_size < 1 << 20
    before = pa.total_allocated_bytes()
    table = Table(tmp_path / "table", USE)
    for number, (where, cells) in enumerate(table.rows(["id", "sequence"], Problems()), start=1):
        assert cells == {"id": str(number - 1), "sequence": text}
        assert where.endswith(f" row {number}")
        assert pa.total_allocated_bytes() - before < 64 << 20
        if number == 40:
            break


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.list_(pa.string())])
def test_rows_of_parquet_are_read_in_batches_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: pa.DataType
) -> None:
    texts = ["MK", None, "", "MKVLA" * 9, "L"] * 20
    values = [[text, "x"] for text in texts] if pa.types.is_list(kind) else texts
    table = pa.table({"id": pa.array(range(100)), "sequence": pa.array(values, kind)})
    pq.write_table(table, tmp_path / "table", row_group_size=33)
    expected = rows_of(tmp_path / "table", "id", "sequence")
    assert len(expected) == 100
    assert [row[0] for row in expected] == [str(number) for number in range(100)]
    wanted = ("MK", "x") if pa.types.is_list(kind) else "MK"
    assert expected[0][1] == wanted
    monkeypatch.setattr("seqlm.training.data.parquet_file.BATCH_BYTES", 50)
    assert rows_of(tmp_path / "table", "id", "sequence") == expected


@pytest.mark.parametrize("name", ["parquet", "csv", "tsv", "lines"])
def test_a_row_has_one_bound_in_all_formats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(Limits, "record_bytes", 1000)
    rows = {"id": ["p", "q"], "sequence": ["MK", "M" * 1200]}
    path = tmp_path / "table"
    if name == "parquet":
        pq.write_table(pa.table(rows), path)
    elif name == "lines":
        path.write_text('id,sequence\np,"' + "MKV\n" * 400 + '"\n')
    else:
        separator = "," if name == "csv" else "\t"
        path.write_text(f"id{separator}sequence\np{separator}MK\nq{separator}{'M' * 1200}\n")
    with pytest.raises(ValueError, match=r"(row|line) of more than 1,000|field larger than"):
        rows_of(path, "id", "sequence")


def test_a_row_of_a_workbook_has_the_same_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = openpyxl.Workbook()
    book.active.append(["id", "sequence", "more"])
    book.active.append(["p", "M" * 700, "L" * 700])
    book.save(tmp_path / "table")
    assert rows_of(tmp_path / "table", "id") == [("p",)]
    monkeypatch.setattr(Limits, "record_bytes", 1000)
    with pytest.raises(ValueError, match=r"a row of more than 1,000 characters"):
        rows_of(tmp_path / "table", "id")


def test_a_column_of_parquet_that_expands_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "M" * 2_000_000
    table = pa.table({"id": ["p", "q"], "sequence": [text, text + "L"]})
    pq.write_table(table, tmp_path / "table", compression="zstd", use_dictionary=False)
    assert len(rows_of(tmp_path / "table", "id", "sequence")) == 2
    monkeypatch.setattr("seqlm.training.data.parquet_file.MAX_EXPANDED_BYTES", 1 << 20)
    with pytest.raises(ValueError, match=r"expands to 4,000,\d+ bytes in the column 'sequence'"):
        rows_of(tmp_path / "table", "id", "sequence")
    assert rows_of(tmp_path / "table", "id") == [("p",), ("q",)]
