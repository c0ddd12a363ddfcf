"""Tables of labelled proteins: every format gives the same shards, every bad input its message."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqlm.proteins.alphabet import decode
from seqlm.proteins.config import SplitConfig, TaskConfig
from seqlm.proteins.finetune.labelled import LabelledSplit
from seqlm.proteins.finetune.prepare import prepare_table
from seqlm.runs.run_file import RunFile, load_config
from seqlm.training.config import DataConfig
from seqlm.training.data.manifest import SPLITS, Manifest

BY_COLUMN = SplitConfig(column="fold", validation=("1",), test=("2",))
HEADER = ("id", "sequence", "fold", "group", "membrane", "place", "stability", "state")
ROWS = (
    ("p0", "MKLV", "0", "a", "0", "nucleus", "0.5", "HHC-"),
    ("p1", "MACD", "0", "b", "1", "cytosol", "-1.25", "CCCC"),
    ("p2", "MEFGH", "1", "c", "1", "nucleus", "3e2", "HHHCC"),
    ("p3", "MIKLMN*", "2", "d", "0", "cytosol", "7", "-HHCC-"),
    ("p4", "mwwy", "0", "e", "", "", "", ""),
)


def write_csv(
    path: Path, rows: Sequence[Sequence[str]] = ROWS, header: Sequence[str] = HEADER
) -> Path:
    opened = gzip.open if path.suffix == ".gz" else open
    delimiter = "\t" if ".tsv" in path.name else ","
    with opened(path, "wt", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([header, *rows])
    return path


def run_of(
    folder: Path, table: Path | tuple[str, ...], kind: Any = "binary", **task: Any
) -> RunFile:
    given = {"label_columns": ("membrane",), "split": BY_COLUMN, **task}
    names = (str(table),) if isinstance(table, Path) else table
    return RunFile(
        name="t",
        data=DataConfig(
            path=str(folder / "prepared"),
            downloads=str(folder / "downloads"),
            validation_fraction=0.2,
            test_fraction=0.2,
        ),
        task=TaskConfig(kind=kind, table=names, **given),
    )


def contents(folder: Path) -> dict[str, list[tuple[str, str, list[float]]]]:
    """(id, sequence, labels) of every protein by split, for a sequence task."""
    found = {}
    for name in SPLITS:
        split = LabelledSplit(folder, name)  # type: ignore[arg-type]
        units = np.arange(split.num_units)
        places, _ = split.draw(0, split.num_units, 0, 0)
        found[name] = [
            (name_, decode(split.token_ids(place)), row)
            for name_, place, row in zip(
                split.ids(units), places, split.labels(units).tolist(), strict=True
            )
        ]
    return found


def test_a_table_becomes_splits_with_the_labels_of_each_protein(tmp_path: Path) -> None:
    manifest = prepare_table(run_of(tmp_path, write_csv(tmp_path / "t.csv")))
    found = contents(tmp_path / "prepared")
    assert sorted(found["train"]) == [("p0", "MKLV", [0.0]), ("p1", "MACD", [1.0])]
    assert found["validation"] == [("p2", "MEFGH", [1.0])]
    assert found["test"] == [("p3", "MIKLMN", [0.0])]
    assert [manifest.splits[name].residues for name in SPLITS] == [8, 5, 6]
    train = LabelledSplit(tmp_path / "prepared", "train")
    assert train.schema.classes == ("not membrane", "membrane")
    assert train.class_counts().tolist() == [[1, 1]]
    assert train.facts["unlabelled_dropped"] == 1


@pytest.mark.parametrize("name", ["t.csv.gz", "t.tsv", "t.parquet", "t.fasta"])
def test_every_format_gives_the_same_shards(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    task = {}
    if name.endswith(".parquet"):
        columns = dict(zip(HEADER, zip(*reversed(ROWS), strict=True), strict=True))
        truth = [int(value) if value else None for value in columns["membrane"]]
        pq.write_table(
            pa.table({**columns, "membrane": truth, "fold": [int(f) for f in columns["fold"]]}),
            path,
        )
    elif name.endswith(".fasta"):
        path.write_text("".join(f">{row[0]} described\n{row[1]}\n" for row in ROWS))
        table = write_csv(
            tmp_path / "labels.csv", [(r[0], *r[2:]) for r in ROWS], ("id", *HEADER[2:])
        )
        task = {"labels": str(table)}
    else:
        write_csv(path, ROWS[::-1])
    got = prepare_table(run_of(tmp_path, path, **task))
    (tmp_path / "other").mkdir()
    expected = prepare_table(run_of(tmp_path / "other", write_csv(tmp_path / "other.csv")))
    assert got.splits == expected.splits  # the shards' checksums among it


def test_several_tables_are_one(tmp_path: Path) -> None:
    parts = (write_csv(tmp_path / "a.csv", ROWS[:2]), write_csv(tmp_path / "b.csv", ROWS[2:]))
    got = prepare_table(run_of(tmp_path, tuple(map(str, parts))))
    assert got.records == 4 and [source.name for source in got.sources] == sorted(map(str, parts))


def test_classes_are_numbered_as_given_or_else_sorted(tmp_path: Path) -> None:
    table = write_csv(tmp_path / "t.csv")
    prepare_table(run_of(tmp_path, table, "multiclass", label_columns=("place",)))
    split = LabelledSplit(tmp_path / "prepared", "validation")
    assert split.schema.output_names == ("cytosol", "nucleus") and split.schema.num_outputs == 2
    assert split.labels(np.array([0])).tolist() == [[1.0]]
    (tmp_path / "b").mkdir()
    classes = ("nucleus", "cytosol")
    prepare_table(
        run_of(tmp_path / "b", table, "multiclass", label_columns=("place",), classes=classes)
    )
    split = LabelledSplit(tmp_path / "b" / "prepared", "train")
    assert sorted(split.labels(np.arange(2)).ravel().tolist()) == [0.0, 1.0]
    assert split.schema.output_names == classes and split.class_counts().tolist() == [[1, 1]]


def test_measurements_keep_their_values_and_gaps(tmp_path: Path) -> None:
    rows = [*ROWS[:4], ("p4", "MWWY", "0", "e", "1", "", "", "")]
    columns = ("stability", "membrane")
    table = write_csv(tmp_path / "t.csv", rows)
    prepare_table(run_of(tmp_path, table, "regression", label_columns=columns))
    split = LabelledSplit(tmp_path / "prepared", "train")
    by_id = dict(zip(split.ids(np.arange(3)), split.labels(np.arange(3)), strict=True))
    assert by_id["p1"].tolist() == [-1.25, 1.0]
    assert np.isnan(by_id["p4"][0]) and by_id["p4"][1] == 1.0


def test_residue_labels_stand_at_their_residues(tmp_path: Path) -> None:
    prepare_table(
        run_of(tmp_path, write_csv(tmp_path / "t.csv"), "residue", label_columns=("state",))
    )
    train = LabelledSplit(tmp_path / "prepared", "train")
    assert train.schema.classes == ("C", "H")
    by_id = dict(zip(train.ids(np.arange(2)), train.token_labels(np.arange(2)), strict=True))
    assert by_id["p0"].tolist() == [1, 1, 0, -100] and by_id["p1"].tolist() == [0, 0, 0, 0]
    assert train.class_counts().tolist() == [[5, 2]]


def test_residue_labels_have_names_between_blanks_too(tmp_path: Path) -> None:
    words = {"H": "helix", "C": "coil", "-": "-"}
    rows = [(*row[:-1], " ".join(words[letter] for letter in row[-1])) for row in ROWS]
    prepare_table(
        run_of(tmp_path, write_csv(tmp_path / "t.csv", rows), "residue", label_columns=("state",))
    )
    split = LabelledSplit(tmp_path / "prepared", "test")
    assert split.schema.classes == ("coil", "helix")
    assert split.token_labels(np.array([0]))[0].tolist() == [-100, 1, 1, 0, 0, -100]


def test_residue_labels_come_as_lists_too(tmp_path: Path) -> None:
    rows = [row for row in ROWS if row[-1]]
    columns = dict(zip(HEADER, zip(*rows, strict=True), strict=True))
    states = [
        [None if c == "-" else {"C": 0, "H": 1}[c] for c in text] for text in columns["state"]
    ]
    pq.write_table(pa.table({**columns, "state": states}), tmp_path / "t.parquet")
    prepare_table(run_of(tmp_path, tmp_path / "t.parquet", "residue", label_columns=("state",)))
    split = LabelledSplit(tmp_path / "prepared", "test")
    assert split.schema.classes == ("0", "1")
    assert split.token_labels(np.array([0]))[0].tolist() == [-100, 1, 1, 0, 0, -100]


@pytest.mark.parametrize("word", ["NA", "nan", "None", "N/A", "null"])
def test_words_for_missing_labels_are_no_classes(tmp_path: Path, word: str) -> None:
    rows = [
        ("a", "MKT", "x", "0"),
        ("b", "MKL", "y", "1"),
        ("c", "MKV", word, "2"),
        ("d", "MK", "x", "1"),
    ]
    table = write_csv(tmp_path / "t.csv", rows, ("id", "sequence", "where", "fold"))
    task: dict[str, Any] = {"kind": "multiclass", "label_columns": ("where",)}
    with pytest.raises(ValueError, match=f"'where' has '{word}' beside x, y; .* in task.classes"):
        prepare_table(run_of(tmp_path, table, **task))
    named = run_of(tmp_path, table, classes=("x", "y", word), **task)
    with pytest.raises(ValueError, match=f"training split has no example of y, {word};"):
        prepare_table(named)


def test_letters_for_missing_labels_are_no_classes(tmp_path: Path) -> None:
    rows = [("a", "MKT", "HE.", "0"), ("b", "MKL", "H?E", "1"), ("c", "MKV", "EEX", "2")]
    table = write_csv(tmp_path / "t.csv", rows, ("id", "sequence", "states", "fold"))
    with pytest.raises(
        ValueError, match=r"has '\.', '\?', 'X' beside E, H; .* Write '-' for such residues"
    ):
        prepare_table(run_of(tmp_path, table, kind="residue", label_columns=("states",)))


def test_classes_that_differ_in_case_only_are_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        (f"p{number}", "MKT" + "AV"[number % 2] * number, name, fold)
        for number, (name, fold) in enumerate(
            [
                ("membrane", "0"),
                ("Membrane", "0"),
                ("soluble", "0"),
                ("membrane", "1"),
                ("soluble", "2"),
            ]
        )
    ]
    table = write_csv(tmp_path / "t.csv", rows, ("id", "sequence", "where", "fold"))
    prepare_table(run_of(tmp_path, table, kind="multiclass", label_columns=("where",)))
    printed = capsys.readouterr()
    assert "classes 'Membrane', 'membrane' differ in case" in printed.out + printed.err


@pytest.mark.parametrize("classes", [(), ("E", "H", "-")])
def test_residues_without_a_label_are_counted(
    tmp_path: Path, classes: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        ("a", "MKTV", "HE--", "0"),
        ("b", "MKLA", "H--E", "1"),
        ("c", "MKVG", "EE--", "2"),
        ("d", "MK", "", "0"),
    ]
    table = write_csv(tmp_path / "t.csv", rows, ("id", "sequence", "states", "fold"))
    prepare_table(
        run_of(tmp_path, table, kind="residue", label_columns=("states",), classes=classes)
    )
    captured = capsys.readouterr()
    printed = captured.out + captured.err
    unknown = "0 (0.0%)" if classes else "6 (50.0%)"
    assert f"labels of residues: 12, of which {unknown} have none" in printed
    assert ('task.classes: [E, H, "-"]' in printed) == (not classes)


def test_the_same_again_is_known_and_something_else_refused(tmp_path: Path) -> None:
    table = write_csv(tmp_path / "t.csv")
    first = prepare_table(run_of(tmp_path, table))
    assert prepare_table(run_of(tmp_path, table, class_weights="balanced")) == first
    with pytest.raises(
        ValueError, match=r"task\.label_columns \(there \['membrane'\], wanted \['place'\]\)"
    ):
        prepare_table(run_of(tmp_path, table, "multiclass", label_columns=("place",)))
    write_csv(table, ROWS[:4])
    with pytest.raises(ValueError, match="contents changed"):
        prepare_table(run_of(tmp_path, table))


def test_copies_count_once_and_contradictions_are_noted(tmp_path: Path) -> None:
    rows = [
        *ROWS,
        ("p5", "MKLV", "0", "a", "0", *ROWS[0][5:]),
        ("p6", "MKLV", "0", "a", "1", *ROWS[0][5:]),
    ]
    manifest = prepare_table(run_of(tmp_path, write_csv(tmp_path / "t.csv", rows)))
    assert manifest.duplicates_dropped == 1 and manifest.splits["train"].records == 3
    assert LabelledSplit(tmp_path / "prepared", "train").facts["contradicting_labels"] == 1


@pytest.mark.parametrize("task", ["membrane", "localization"])
def test_the_columns_of_deeploc_2_are_read_as_they_are(tmp_path: Path, task: str) -> None:
    """The header of the public file, an unnamed column of numbers first; labels are written as floats."""
    places = ("Cytoplasm", "Nucleus", "Extracellular", "Cell membrane", "Mitochondrion", "Plastid")
    places += ("Endoplasmic reticulum", "Lysosome/Vacuole", "Golgi apparatus", "Peroxisome")
    header = ("", "ACC", "Kingdom", "Partition", "Membrane", *places, "Sequence")
    rows = []
    for number in range(50):  # ten places, each in every partition
        place = number // 5
        labels = [place % 2, *(place == other for other in range(len(places)))]
        sequence = "M" + "ACDEFGHIKL"[place] * (5 + number)
        cells = (number, f"Q{number}", "Metazoa", number % 5, *map(float, labels), sequence)
        rows.append(tuple(map(str, cells)))
    table = write_csv(tmp_path / "Swissprot_Train_Validation_dataset.csv", rows, header)
    run = load_config(
        f"workloads/seqlm/configs/finetune/deeploc_{task}.yaml",
        [f"task.table=[{table}]", f"data.path={tmp_path / 'prepared'}"],
    )
    manifest = prepare_table(run)
    assert [manifest.splits[name].records for name in SPLITS] == [30, 10, 10]
    counts = LabelledSplit(tmp_path / "prepared", "train").class_counts().tolist()
    assert counts == ([[15, 15]] if task == "membrane" else [[27, 3]] * 10)


def test_the_embedded_sample_is_whole_and_splits_by_its_partition(tmp_path: Path) -> None:
    run = run_of(
        tmp_path,
        ("sample",),
        id_column="ACC",
        sequence_column="Sequence",
        label_columns=("Membrane",),
        split=SplitConfig(column="Partition", validation=("3",), test=("4",)),
    )
    manifest = prepare_table(run)
    assert [manifest.splits[name].records for name in SPLITS] == [3216, 1047, 1084]
    positives = LabelledSplit(tmp_path / "prepared", "test").class_counts()[0, 1]
    assert 0.3 < positives / 1084 < 0.45


REFUSALS: dict[str, tuple[dict[str, Any], list[tuple[int, int, str]], str]] = {
    "no such column": (
        {"label_columns": ("membran",)},
        [],
        r"no column 'membran' \(did you mean 'membrane'\?\)",
    ),
    "no label column": ({"label_columns": ()}, [], "label_columns: got none"),
    "two columns for one label": (
        {"label_columns": ("membrane", "place")},
        [],
        "a binary task has one",
    ),
    "three classes for a binary task": ({"classes": ("a", "b", "c")}, [], "a binary task has two"),
    "a label that is neither 0 nor 1": (
        {},
        [(1, 4, "2")],
        r"t\.csv:3: record p1: '2' in column 'membrane'; .* 0 or 1",
    ),
    "a name that is no class": (
        {"kind": "multiclass", "label_columns": ("place",), "classes": ("nucleus", "golgi")},
        [],
        r"t\.csv:3: record p1: 'cytosol' in column 'place'; allowed is one of nucleus, golgi",
    ),
    "text for a number": (
        {"kind": "regression", "label_columns": ("stability",)},
        [(0, 6, "high")],
        r"t\.csv:2: record p0: 'high' .* a number",
    ),
    "an infinite number": (
        {"kind": "regression", "label_columns": ("stability",)},
        [(0, 6, "1e39")],
        "'1e39'",
    ),
    "measurements as classes": (
        {"kind": "multiclass", "label_columns": ("fold",), "classes": ()},
        [(index, 2, "0") for index in range(5)],
        r"has 1 different values \(0\);",
    ),
    "too few residue labels": (
        {"kind": "residue", "label_columns": ("state",)},
        [(2, 7, "HHC")],
        r"t\.csv:4: record p2: 3 labels in column 'state' for 5 residues; allowed are as many letters",
    ),
    "an unknown residue class": (
        {"kind": "residue", "label_columns": ("state",), "classes": ("C", "H")},
        [(0, 7, "HHE-")],
        r"t\.csv:2: record p0: 'E' at residue 3",
    ),
    "no id": ({}, [(3, 0, "")], r"t\.csv:5: no id in column 'id'"),
    "an id twice": ({}, [(3, 0, "p1")], r"t\.csv:5: the id p1 was used before, at .*t\.csv:3"),
    "no sequence": ({}, [(0, 1, " ")], r"t\.csv:2: record p0 has no sequence"),
    "no residue": (
        {},
        [(1, 1, "MA1D")],
        r"t\.csv:3: record p1: '1' at position 3 is not a residue",
    ),
    "a class that is never trained": ({}, [(1, 4, "0")], "no example of membrane;"),
    "a label that is never trained": (
        {"kind": "multilabel", "label_columns": ("membrane",)},
        [(1, 4, "0")],
        "no example of membrane = 1;",
    ),
    "a residue class that is never trained": (
        {"kind": "residue", "label_columns": ("state",)},
        [(2, 7, "HHHCE")],
        "no example of E;",
    ),
    "a measurement that is never trained": (
        {"kind": "regression", "label_columns": ("stability", "membrane")},
        [(0, 6, ""), (1, 6, "")],
        "no example of stability;",
    ),
    "a split without labels": (
        {"kind": "regression", "label_columns": ("stability",)},
        [(2, 6, "")],
        r"none of the 1 protein\(s\) of the validation split has a label in stability",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_bad_tables_are_refused_with_their_lines(tmp_path: Path, case: str) -> None:
    task, changes, message = REFUSALS[case]
    rows = [list(row) for row in ROWS]
    for row, column, value in changes:
        rows[row][column] = value
    with pytest.raises(ValueError, match=message):
        prepare_table(run_of(tmp_path, write_csv(tmp_path / "t.csv", rows), **task))
    assert not (tmp_path / "prepared").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"", "no column that is known for sequences; it has nothing"),
        ("t.csv", b"id,sequence,fold,membrane\n", "no record below the header"),
        ("t.csv", b"id,sequence,fold,membrane\np0,MK,0\n", r"t\.csv:2: 3 fields, the header has 4"),
        ("t.csv", b'id,sequence,fold,membrane\np0,"MK,0,1\n', r"t\.csv:2: unexpected end of data"),
        ("t.csv", b"id,id,sequence,fold,membrane\n", "the column 'id' twice"),
        (
            "t.csv.gz",
            gzip.compress(b"id,sequence,fold,membrane\n" * 99, mtime=0)[:30],
            "truncated gzip",
        ),
        (
            "t.csv.gz",
            gzip.compress(b"id,sequence,fold,membrane\n", mtime=0) + b"\n",
            "has other bytes behind its gzip data",
        ),
        (
            "t.csv",
            b"id,sequence,fold,membrane\np\x1b[0m,MK,0,1\n",
            r"t\.csv:2: the id 'p\\x1b\[0m' has control",
        ),
        (
            "t.csv",
            b'id,sequence,fold,membrane\n"p\n0",MK,0,1\n',
            r"t\.csv:2: the id 'p\\n0' has control",
        ),
        ("t.parquet", b"PAR1, not", "cannot be read as Parquet"),
        ("t.xlsx", b"PK", "is not a table; give CSV"),
        ("t.csv", b"%PDF-1.7", "is a PDF document"),
        ("t.fasta", b">p0\nMK\n", "is FASTA, which has no labels"),
    ],
)
def test_files_that_are_no_tables_are_refused(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        prepare_table(run_of(tmp_path, tmp_path / name))


def test_a_table_on_a_failing_disk_is_named(tmp_path: Path) -> None:
    for name in ("t.csv", "t.parquet"):
        (tmp_path / name).symlink_to("/proc/self/mem")
        with pytest.raises(
            (OSError, ValueError), match=rf"Input/output error.*{name}|{name}.*Parquet"
        ):
            prepare_table(run_of(tmp_path, tmp_path / name))


def test_a_row_over_several_lines_is_found_by_its_first(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text(
        '\ufeffid,sequence,fold,membrane\np0,"MK\nLV",0,1\np1,MACD,0,x\n', encoding="utf-8"
    )
    with pytest.raises(ValueError, match=r"t\.csv:4: record p1: 'x'"):
        prepare_table(run_of(tmp_path, table))


def test_labels_of_unknown_proteins_are_refused(tmp_path: Path) -> None:
    fasta = tmp_path / "t.fasta"
    fasta.write_text(">p0\nMKLV\n>p9\nMACD\n")
    labels = write_csv(
        tmp_path / "labels.csv", [("p0", "0", "1"), ("p8", "0", "0")], ("id", "fold", "membrane")
    )
    with pytest.raises(ValueError, match=r"labels.csv:3: no protein p8 in t\.fasta"):
        prepare_table(run_of(tmp_path, fasta, labels=str(labels)))


def test_proteins_without_a_row_of_labels_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fasta = tmp_path / "t.fasta"
    fasta.write_text("".join(f">{row[0]}\n{row[1]}\n" for row in ROWS) + ">p9\nMACW\n")
    table = write_csv(tmp_path / "l.csv", [(r[0], *r[2:]) for r in ROWS], ("id", *HEADER[2:]))
    prepare_table(run_of(tmp_path, fasta, labels=str(table)))
    assert "read 6, used 4, left out 2 (1 without a label, 1 without a row)" in (
        capsys.readouterr().err
    )
    rejects = (tmp_path / "prepared" / "rejects.csv").read_text()
    assert "t.fasta:11,no row,record p9 has no row in l.csv" in rejects


def test_a_folder_of_pretraining_data_is_not_taken_for_labelled(
    tmp_path: Path, prepared: Path
) -> None:
    assert Manifest.load(prepared).records
    with pytest.raises(ValueError, match=r"no labels\.json"):
        LabelledSplit(prepared, "train")
