"""Splits of the variants of one protein: folds as in ProteinGym, the wild type, and repeated measurements."""

from __future__ import annotations

import csv
import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from seqlm.api import split_variants
from seqlm.proteins.alphabet import STANDARD_RESIDUES, decode, encode
from seqlm.proteins.config import SplitConfig, TaskConfig
from seqlm.proteins.finetune.labelled import LabelledSplit
from seqlm.proteins.finetune.prepare import is_prepared, paths_read, prepare_table
from seqlm.proteins.finetune.variants.kinds import (
    TEST,
    TRAIN,
    VALIDATION,
    VARIANT_SPLITS,
    Choice,
    Placed,
)
from seqlm.proteins.finetune.variants.wild_type import WildTypeProtein
from seqlm.proteins.mutations.edits import Variant, edits_between
from seqlm.proteins.mutations.fitting import parse_variant
from seqlm.proteins.mutations.spelling import spelt
from seqlm.runs.run_file import RunFile, load_config
from seqlm.training.config import DataConfig
from seqlm.training.data.labelled_records import LABELS_FILE
from seqlm.training.data.manifest import SPLITS

WILD = "MKTAYIAKQRQISFVKSHFS"
POSITIONS = (2, 3, 5, 6, 9, 10, 11, 12, 14, 15, 17, 19)
"""Mutated positions, from 1."""
CHOICE = Choice(folds=5, fold=0, max_train_mutations=1, validation_fraction=0.5)


def single(position: int, mutant: str) -> str:
    return f"{WILD[position - 1]}{position}{mutant}"


ROWS: list[tuple[str, float]] = [
    ("WT", 1.0),
    *((single(position, mutant), position / 10) for position in POSITIONS for mutant in "WC"),
    *(
        (f"{single(first, 'D')}:{single(second, 'P')}", first / second)
        for first, second in itertools.pairwise(POSITIONS)
    ),
]
"""Names of variants, with their values."""


def sequence(name: str) -> str:
    if name == "WT":
        return WILD
    letters = list(WILD)
    for mutation in name.split(":"):
        letters[int(mutation[1:-1]) - 1] = mutation[-1]
    return "".join(letters)


def write(path: Path, rows: list[tuple[Any, ...]], header: tuple[str, ...]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def names_table(folder: Path, rows: list[tuple[str, float]] = ROWS) -> Path:
    return write(folder / "names.csv", rows, ("mutation", "fitness"))


def run_of(
    folder: Path,
    table: Path,
    kind: str = "random",
    *,
    task: dict[str, Any] | None = None,
    **split: Any,
) -> RunFile:
    given: dict[str, Any] = {"kind": "regression", "wild_type": WILD, **(task or {})}
    return RunFile(
        name="t",
        data=DataConfig(
            path=str(folder / "prepared"),
            downloads=str(folder / "downloads"),
            validation_fraction=0.2,
        ),
        task=TaskConfig(table=(str(table),), split=SplitConfig(variants=kind, **split), **given),
    )


def contents(folder: Path) -> dict[str, dict[str, tuple[str, float]]]:
    """Sequence and value of each id, by split."""
    found = {}
    for name in SPLITS:
        split = LabelledSplit(folder / "prepared", name)  # type: ignore[arg-type]
        units = np.arange(split.num_units)
        places, _ = split.draw(0, split.num_units, 0, 0)
        rows = zip(split.ids(units), places, split.labels(units)[:, 0].tolist(), strict=True)
        found[name] = {
            key: (decode(split.token_ids(place)), round(value, 6)) for key, place, value in rows
        }
    return found


def assigned(kind: str, choice: Choice, placed: list[Placed]) -> list[str]:
    return VARIANT_SPLITS[kind].assign(placed, choice)


def test_folds_by_position_are_those_of_proteingym() -> None:
    """Five stretches of 12 mutated positions have 3, 3, 2, 2 and 2 of them; other positions do not count."""
    placed = [Placed(position, 1, 0) for position in POSITIONS]
    folds: dict[str, list[int]] = {"contiguous": [], "modulo": []}
    for kind, found in folds.items():
        for index in range(len(placed)):
            tests = []
            for fold in range(5):
                words = assigned(kind, Choice(5, fold, 1, 0.0), placed)
                if words[index] == TEST:
                    tests.append(fold)
            [only] = tests
            found.append(only)
    assert folds["contiguous"] == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 4]
    assert folds["modulo"] == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]


@pytest.mark.parametrize("kind", [name for name, one in VARIANT_SPLITS.items() if one.by_position])
def test_the_next_fold_validates_and_the_wild_type_trains(kind: str) -> None:
    placed = [Placed(None, 0, 7), *(Placed(position, 1, 0) for position in POSITIONS)]
    tests = [assigned(kind, Choice(5, fold, 1, 0.0), placed) for fold in range(5)]
    for fold in range(5):
        validation = {index for index, word in enumerate(tests[fold]) if word == VALIDATION}
        following = {index for index, word in enumerate(tests[(fold + 1) % 5]) if word == TEST}
        assert validation == following and validation
        assert tests[fold][0] == TRAIN


def test_random_folds_part_the_variants() -> None:
    placed = [Placed(0, 1, key * 977) for key in range(50)]
    tests = [assigned("random", Choice(5, fold, 1, 0.0), placed) for fold in range(5)]
    for index in range(50):
        assert [words[index] for words in tests].count(TEST) == 1
        assert [words[index] for words in tests].count(VALIDATION) == 1


def test_mutations_train_on_few_and_test_on_more() -> None:
    placed = [Placed(0, number, key) for number in range(4) for key in (0, 2**64 - 1)]
    found = assigned("mutations", Choice(5, 0, 2, 0.5), placed)
    assert found == [VALIDATION, TRAIN] * 3 + [TEST] * 2


def test_names_and_sequences_give_the_same_data(tmp_path: Path) -> None:
    named = tmp_path / "named"
    whole = tmp_path / "whole"
    reverted = tmp_path / "reverted"
    for folder in (named, whole, reverted):
        folder.mkdir()
    prepare_table(run_of(named, names_table(tmp_path), "modulo"))
    rows = [(sequence(name), value) for name, value in ROWS]
    table = write(tmp_path / "sequences.csv", rows, ("sequence", "fitness"))
    prepare_table(run_of(whole, table, "modulo"))
    assert contents(named) == contents(whole)
    # The order of the rows does not matter, nor does the form in which the wild type is known.
    gym = [(name, sequence(name), value) for name, value in reversed(ROWS)]
    table = write(tmp_path / "gym.csv", gym, ("mutant", "mutated_sequence", "DMS_score"))
    prepare_table(run_of(reverted, table, "modulo", task={"wild_type": None}))
    assert contents(reverted) == contents(named)
    found = contents(named)
    assert "WT" in found["train"]
    # Positions 2, 10 and 17 have ranks 0, 5 and 10 of the twelve.
    assert {name.split(":")[0][1:-1] for name in found["test"]} == {"2", "10", "17"}


def test_repeats_are_averaged_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extra = [("K2W", 1.2), ("p.Lys2Trp", 1.3), ("wt", 3.0), ("K2R", 0.1)]
    run = run_of(tmp_path, names_table(tmp_path, [*ROWS, *extra]))
    prepare_table(run)
    joined = {key: row for split in contents(tmp_path).values() for key, row in split.items()}
    assert len(joined) == len(ROWS) + 1
    assert joined["K2W"] == (sequence("K2W"), pytest.approx((0.2 + 1.2 + 1.3) / 3, abs=1e-6))
    assert joined["WT"] == (WILD, 2.0)
    # A second preparation finds the data, and says the same.
    prepare_table(run)
    text = capsys.readouterr().err
    assert text.count("3 repeated measurements are averaged") == 2
    line = f"proteins: read {len(ROWS) + 4}, used {len(ROWS) + 1}, left out 3 (3 averaged repeats)"
    assert text.count(line) == 2
    assert text.count("1 with 0, 25 with 1, 11 with 2") == 2


def test_rows_that_are_no_variants_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extra = [("K2*", 0.0), ("A2W", 0.1), ("M1W", "")]
    prepare_table(run_of(tmp_path, names_table(tmp_path, [*ROWS, *extra])))  # type: ignore[list-item]
    assert "left out 3 (1 without a label, 1 not a mutation, 1 that does not fit)" in (
        capsys.readouterr().err
    )
    rejects = (tmp_path / "prepared" / "rejects.csv").read_text()
    assert "is a stop" in rejects and "has K at position 2, not A" in rejects
    assert "task.first_position" in rejects and "has no label" in rejects


def test_variants_with_insertions_and_deletions(tmp_path: Path) -> None:
    rows = [*ROWS, ("p.Ala4del", 0.3), ("p.Ala4_Tyr5insGlyGly", 0.2)]
    table = names_table(tmp_path, rows)
    prepare_table(run_of(tmp_path, table, "mutations"))
    found = contents(tmp_path)
    joined = {**found["train"], **found["validation"]}
    assert joined["p.Ala4del"][0] == WILD[:3] + WILD[4:]
    assert found["test"]["p.Ala4_Tyr5insGlyGly"][0] == WILD[:4] + "GG" + WILD[4:]
    (tmp_path / "other").mkdir()
    with pytest.raises(
        ValueError, match=r"got modulo, and 2 variant\(s\) insert or delete.*random"
    ):
        prepare_table(run_of(tmp_path / "other", table, "modulo"))


MISTAKES: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "no wild type for names": (
        "names",
        {"wild_type": None},
        {},
        "names variants in the column 'mutation' without their sequences",
    ),
    "no wild type, no names": (
        "sequences",
        {"wild_type": None},
        {},
        "no column that is known for mutations; give the wild type",
    ),
    "another protein": (
        "names",
        {"wild_type": "W" * 20},
        {},
        r"no record is a variant of WT.*35 do not fit, the first one",
    ),
    "no residues": ("names", {"wild_type": "*"}, {}, "no such file"),
    "shifted": ("names", {"first_position": 5}, {}, "set task.first_position=1"),
    "too few positions": (
        "names",
        {},
        {"kind": "modulo", "folds": 13},
        "got 13.* 12 different first mutated positions",
    ),
    "nothing to test": (
        "names",
        {},
        {"kind": "mutations", "max_train_mutations": 2},
        "in the test split.*is 2",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_named(tmp_path: Path, case: str) -> None:
    form, task, split, message = MISTAKES[case]
    rows: list[tuple[Any, ...]] = list(ROWS)
    header = ("mutation", "fitness")
    if form == "sequences":
        rows = [(sequence(name), value) for name, value in ROWS]
        header = ("sequence", "fitness")
    table = write(tmp_path / "t.csv", rows, header)
    with pytest.raises(ValueError, match=f"(?s){message}"):
        prepare_table(run_of(tmp_path, table, task=task, **split))
    assert not (tmp_path / "prepared").exists()


def test_names_that_contradict_their_sequences_are_refused_or_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gym = [(name, sequence(name), value) for name, value in ROWS]
    header = ("mutant", "mutated_sequence", "DMS_score")
    swapped = [*gym[:3], (gym[4][0], *gym[3][1:]), *gym[5:]]
    table = write(tmp_path / "t.csv", swapped, header)
    with pytest.raises(ValueError, match=r"t\.csv:5: 'T3C': the sequence of this row has W there"):
        prepare_table(run_of(tmp_path, table, task={"wild_type": None}))
    run = run_of(tmp_path, table, task={"wild_type": None, "first_position": 4})
    with pytest.raises(
        ValueError, match=r"44 of 45 fit if it has the number 1; if .* task\.first_position=1"
    ):
        prepare_table(run)
    two = [*gym, ("A1C", "C" + WILD[1:], 0.5)]
    table = write(tmp_path / "t.csv", two, header)
    with pytest.raises(ValueError, match=r"revert to 2 wild types: they have M and A as residue 1"):
        prepare_table(run_of(tmp_path, table, task={"wild_type": None}))
    table = write(tmp_path / "t.csv", swapped, header)
    assert "other sequences than their names" not in capsys.readouterr().err
    prepare_table(run_of(tmp_path, table))
    assert "note: 1 row(s) have other sequences than their names" in capsys.readouterr().err


def test_classes_are_not_averaged(tmp_path: Path) -> None:
    rows: list[tuple[Any, ...]] = [(name, int(value > 0.7)) for name, value in ROWS]
    table = write(tmp_path / "t.csv", [*rows, rows[1]], ("mutation", "label"))
    prepare_table(run_of(tmp_path, table, task={"kind": "binary"}))
    assert sum(map(len, contents(tmp_path).values())) == len(ROWS)
    table = write(tmp_path / "t2.csv", [*rows, (rows[1][0], 1)], ("mutation", "label"))
    (tmp_path / "other").mkdir()
    with pytest.raises(ValueError, match="its variant has other labels in another row"):
        prepare_table(run_of(tmp_path / "other", table, task={"kind": "binary"}))


def test_the_wild_type_in_a_file_is_a_source(tmp_path: Path) -> None:
    fasta = tmp_path / "wild.fasta"
    fasta.write_text(f">P1 name\n{WILD}\n")
    run = run_of(tmp_path, names_table(tmp_path), task={"wild_type": str(fasta)})
    assert str(fasta) in paths_read(run)
    prepare_table(run)
    assert is_prepared(run)
    fasta.write_text(f">P1 name\n{WILD}A\n")
    with pytest.raises(ValueError, match="their contents changed"):
        prepare_table(run)
    fasta.write_text(f">P1\n{WILD}\n>P2\n{WILD}\n")
    (tmp_path / "other").mkdir()
    other = run_of(tmp_path / "other", names_table(tmp_path), task={"wild_type": str(fasta)})
    with pytest.raises(ValueError, match="has 2 records; give the wild type alone"):
        prepare_table(other)


def test_data_of_earlier_versions_stay_valid(tmp_path: Path) -> None:
    rows = [(f"p{n}", WILD + "ACDEFGHIKL"[n], n, n % 3) for n in range(9)]
    table = write(tmp_path / "t.csv", rows, ("id", "sequence", "label", "fold"))
    task = TaskConfig(
        kind="regression", table=(str(table),), split=SplitConfig(column="fold", fold=0)
    )
    data = DataConfig(path=str(tmp_path / "prepared"), downloads=str(tmp_path))
    run = RunFile(name="t", data=data, task=task)
    prepare_table(run)
    labels = tmp_path / "prepared" / LABELS_FILE
    facts = json.loads(labels.read_text())
    later = ("wild_type", "mutation_column", "first_position")
    of_split = ("split.variants", "split.folds", "split.max_train_mutations")
    for name in (*later, *of_split):
        del facts["task"][name]
    labels.write_text(json.dumps(facts))
    assert is_prepared(run)
    prepare_table(run)


def test_python_gives_the_split_of_a_run(tmp_path: Path) -> None:
    for kind, options in (("contiguous", {"folds": 4, "fold": 3}), ("mutations", {})):
        folder = tmp_path / kind
        folder.mkdir()
        # A position without a measurement has no fold.
        prepare_table(run_of(folder, names_table(folder, [*ROWS, ("M1W", "")]), kind, **options))  # type: ignore[list-item]
        found = split_variants(
            WILD, [name for name, _ in ROWS], kind, validation_fraction=0.2, **options
        )
        names = {split: set(rows) for split, rows in contents(folder).items()}
        assert {split: set(found["variant"][found["split"] == split]) for split in SPLITS} == names
    with pytest.raises(ValueError, match=r"task\.split\.fold: got 5; allowed are 0 to 4"):
        split_variants(WILD, ["K2W"], fold=5)
    with pytest.raises(ValueError, match="set first_position=1"):
        split_variants(WILD, ["K2W", "T3W", "I6W"], first_position=4)
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("kind: got None; allowed are random, contiguous", {"kind": None}),
        ("variants: got one string", {"variants": "K2W"}),
        ("first_position: got 1.5; expected a whole number", {"first_position": 1.5}),
        ("validation_fraction: got 2; allowed are numbers between", {"validation_fraction": 2}),
        ("wild_type: got None; expected a sequence", {"wild_type": None}),
    ]
    for message, options in wrong:
        with pytest.raises(ValueError, match=message):
            split_variants(**{"wild_type": WILD, "variants": ["K2W"], **options})


RULES: dict[str, tuple[dict[str, Any], str]] = {
    "another rule": (
        {"split": {"variants": "random", "cluster": "auto"}},
        "variants and cluster are set",
    ),
    "residues": (
        {"kind": "residue", "split": {"variants": "random"}},
        "with kind residue; allowed",
    ),
    "folds of mutations": (
        {"split": {"variants": "mutations", "folds": 5}},
        "folds: has no effect",
    ),
    "mutations of folds": (
        {"split": {"variants": "modulo", "max_train_mutations": 1}},
        "max_train_mutations: has no effect",
    ),
    "two folds": ({"split": {"variants": "random", "folds": 2}}, "got 2; allowed from 3"),
    "no such fold": ({"split": {"variants": "random", "fold": 5}}, "got 5; allowed are 0 to 4"),
    "zero mutations": (
        {"split": {"variants": "mutations", "max_train_mutations": 0}},
        "got 0; allowed from 1",
    ),
    "wild type of others": (
        {"wild_type": "MK", "split": {"cluster": "auto"}},
        "wild_type: belongs to",
    ),
    "no such kind": (
        {"split": {"variants": "half"}},
        "allowed are random, contiguous, modulo, mutations",
    ),
}


@pytest.mark.parametrize("case", RULES)
def test_rules_of_the_run_file(tmp_path: Path, case: str) -> None:
    task, message = RULES[case]
    path = tmp_path / "t.yaml"
    path.write_text(yaml.safe_dump({"task": {"kind": "regression", "table": ["t.csv"], **task}}))
    with pytest.raises(ValueError, match=message):
        load_config(path)


def test_spelt_names_are_read_again() -> None:
    wild = WildTypeProtein("wild", encode(WILD))
    draw = random.Random(5)
    mutants = ["", "".join(draw.choices(STANDARD_RESIDUES, k=20)), WILD[1:], WILD[:-1], "GG" + WILD]
    mutants += [
        WILD + "GG",
        WILD[:4] + "GG" + WILD[4:],
        WILD[:4] + WILD[7:],
        WILD[:4] + "W" + WILD[8:],
    ]
    for mutant in mutants[1:]:
        edits = edits_between(wild.tokens.tobytes(), encode(mutant).tobytes())
        name = spelt(Variant("", edits, wild.tokens), first_position=10)
        found = parse_variant(name, wild, first_position=10)
        assert decode(found.tokens) == mutant, name
    assert spelt(Variant("", (), wild.tokens)) == "WT"
