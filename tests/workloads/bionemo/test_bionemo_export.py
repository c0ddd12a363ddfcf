"""Prepared data as BioNeMo reads them: read back with pandas and sqlite3, as its datasets do."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas
import pytest

from seqlm.bionemo import export
from seqlm.bionemo.export import Facts, class_order, export_run, is_exported
from seqlm.bionemo.files import ExportFiles, export_files
from seqlm.bionemo.installed import DATA_MODULE
from seqlm.commands.kinds import prepare as prepare_run
from seqlm.proteins.alphabet import TOKENS
from seqlm.proteins.data.prepare import Execution, prepare
from seqlm.proteins.data.sources import ProteinFiles
from seqlm.proteins.finetune.labelled import LabelledSplit
from seqlm.runs.run_file import RunFile, load_config
from seqlm.training.data.manifest import SPLITS, Manifest
from seqlm.training.records import RecordSplit, Split
from tests.workloads.proteins.finetune.labelled_proteins import write_task_file


def of_data(folder: Path) -> RunFile:
    file = folder.parent / "run.yaml"
    file.write_text(f"data: {{path: {folder}}}\n")
    return load_config(file)


def sequences(database: Path) -> dict[str, str]:
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute("SELECT id, sequence FROM protein").fetchall()
        (plan,) = connection.execute(
            "EXPLAIN QUERY PLAN SELECT sequence FROM protein WHERE id = ?", ("x",)
        ).fetchall()
    assert "USING INDEX" in str(plan), "BioNeMo looks each protein up by its id"
    assert len(dict(rows)) == len(rows)
    return dict(rows)


def prepared_sequences(folder: Path, split: Split) -> list[str]:
    """Return the records of each unit in order, from the reader of the training."""
    proteins = RecordSplit(folder, split)
    letters = np.array([token if len(token) == 1 else "X" for token in TOKENS])
    places, _ = proteins.draw(0, proteins.num_units, seed=0, epoch=0)
    return ["".join(letters[proteins.token_ids(place)]) for place in places]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFile, Facts, ExportFiles]:
    """The embedded real proteins."""
    config = of_data(tmp_path_factory.mktemp("sample") / "data")
    prepare_run(config)
    return config, export_run(config), export_files(config.data.path)


def test_splits_ids_and_sequences_are_those_of_the_data(
    sample: tuple[RunFile, Facts, ExportFiles],
) -> None:
    config, facts, files = sample
    manifest = Manifest.load(config.data.path)
    train = sequences(files.proteins("train"))
    validation = sequences(files.proteins("validation"))
    assert not {*train} & {*validation}
    assert (facts.num_train, facts.num_validation) == (len(train), len(validation))
    assert len(train) == manifest.splits["train"].records > 5000
    clusters = pandas.read_parquet(files.clusters("train"))["ur90_id"]
    assert [train[ids[0]] for ids in clusters] == prepared_sequences(
        Path(config.data.path), "train"
    )
    assert {len(ids) for ids in clusters} == {1}
    held_out = pandas.read_parquet(files.clusters("validation"))["ur50_id"]
    assert [validation[name] for name in held_out] == prepared_sequences(
        Path(config.data.path), "validation"
    )
    assert facts.train_residues == sum(map(len, train.values()))


def test_an_export_is_made_once(
    sample: tuple[RunFile, Facts, ExportFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, facts, _ = sample
    monkeypatch.setattr(export, "workspace", lambda _: pytest.fail("made again"))
    assert is_exported(config) and export_run(config) == facts


def write_members(folder: Path) -> tuple[Path, Path]:
    """240 members of 60 clusters, of 1 to 7."""
    rng = np.random.default_rng(1)
    lines = []
    table = []
    number = 0
    for cluster in range(60):
        for _ in range(1 + cluster % 7):
            lines.append(
                f">UniRef90_M{number}\n{''.join(rng.choice(list('ACDEFGHIKL'), size=40))}\n"
            )
            table.append(f"UniRef90_M{number}\tUniRef50_C{cluster}\n")
            number += 1
    (folder / "members.fasta").write_text("".join(lines))
    (folder / "table.tsv").write_text("".join(table))
    return folder / "members.fasta", folder / "table.tsv"


def test_clusters_keep_their_members(tmp_path: Path) -> None:
    fasta, table = write_members(tmp_path)
    out = tmp_path / "data"
    prepare(
        ProteinFiles([fasta], table),
        out,
        seed=0,
        validation_fraction=0.2,
        test_fraction=0.1,
        execution=Execution(workers=1),
    )
    config = of_data(out)
    facts = export_run(config)
    files = export_files(out)
    cluster_of = dict(line.split("\t") for line in table.read_text().splitlines())
    clusters = pandas.read_parquet(files.clusters("train"))["ur90_id"]
    members = sequences(files.proteins("train"))
    names = [{cluster_of[member] for member in ids} for ids in clusters]
    assert all(len(found) == 1 for found in names) and facts.num_train == len(names)
    sizes = {name: list(cluster_of.values()).count(name) for name in cluster_of.values()}
    assert [len(ids) for ids in clusters] == [sizes[found.pop()] for found in names], (
        "whole clusters"
    )
    assert {member for ids in clusters for member in ids} == {*members}
    held_out = pandas.read_parquet(files.clusters("validation"))["ur50_id"]
    assert {*held_out} == {*sequences(files.proteins("validation"))} and len(
        held_out
    ) == facts.num_validation
    assert len({cluster_of[name] for name in held_out}) == len(held_out), "one of each"


def test_what_is_interrupted_leaves_nothing(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "data"
    out.symlink_to(prepared)
    config = of_data(out)
    files = export_files(out)
    written = export._write_split

    def interrupted(folder: Path, split: Split, made: ExportFiles) -> int:
        if split == "validation":
            raise SystemExit(143)
        return written(folder, split, made)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(export, "_write_split", interrupted)
        export_run(config)
    assert not files.folder.exists() and not list(tmp_path.glob(".*.partial"))
    assert not is_exported(config)
    assert export_run(config).num_train == len(sequences(files.proteins("train")))


def test_an_export_of_other_data_is_in_the_way(prepared: Path, tmp_path: Path) -> None:
    fasta = tmp_path / "one.fasta"
    fasta.write_text("".join(f">Q{n}\n{'ACDEFGHIKL'[n % 10] * (20 + n)}\n" for n in range(60)))
    out = tmp_path / "data"

    def prepare_with(seed: int) -> None:
        prepare(
            ProteinFiles([fasta]),
            out,
            seed=seed,
            validation_fraction=0.3,
            test_fraction=0.1,
            execution=Execution(workers=1),
        )

    prepare_with(seed=0)
    config = of_data(out)
    export_run(config)
    out.rename(tmp_path / "before")
    prepare_with(seed=1)
    assert not is_exported(config)
    with pytest.raises(
        ValueError, match=r"is an export of other data than .* delete it to export again"
    ):
        export_run(config)


@pytest.mark.parametrize("kind", ["binary", "multiclass", "regression"])
def test_tables_keep_labels_and_splits(kind: str, tiny_model: Path, tmp_path: Path) -> None:
    config = load_config(write_task_file(tmp_path, tiny_model, kind))
    facts = export_run(config)
    files = export_files(config.data.path)
    for name in SPLITS:
        split = LabelledSplit(config.data.path, name)
        units = np.arange(split.num_units)
        table = pandas.read_csv(files.table(name))
        assert table["id"].tolist() == split.ids(units)
        assert table["labels"].tolist() == pytest.approx(split.labels(units)[:, 0].tolist())
        assert table["sequences"].str.len().sum() == split.num_tokens
    assert len(facts.classes) == {"binary": 2, "multiclass": 3, "regression": 0}[kind]
    if kind != "regression":
        train = pandas.read_csv(files.table("train"))["labels"]
        # As BioNeMo numbers them: our numbers.
        assert class_order(map(str, train), per_residue=False) == [
            str(n) for n in range(len(facts.classes))
        ]


def test_residues_without_a_class_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    config = load_config(write_task_file(tmp_path, tiny_model, "residue"))
    with pytest.raises(ValueError, match="has residues without a class"):
        export_run(config)
    assert not export_files(config.data.path).folder.exists()


def residues(
    folder: Path, model: Path, structure: Callable[[int, str], str], classes: str
) -> RunFile:
    """A residue task with other labels, made of the fold and the labels that there were."""
    write_task_file(folder, model, "residue")
    header, *lines = [line.split(",") for line in (folder / "table.csv").read_text().splitlines()]
    changed = [[*fields[:-1], structure(int(fields[2]), fields[-1])] for fields in lines]
    (folder / "table.csv").write_text(
        "".join(f"{','.join(fields)}\n" for fields in (header, *changed))
    )
    config = load_config(folder / "run.yaml", [f"task.classes={classes}", f"data.path={folder}/b"])
    prepare_run(config)
    return config


def test_residue_classes_of_digits_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    """A column of which pandas, and so BioNeMo, would make numbers."""
    digits = str.maketrans("-CEH", "0012")
    config = residues(
        tmp_path, tiny_model, lambda _, labels: labels.translate(digits), "['0', '1', '2']"
    )
    with pytest.raises(ValueError, match=r"task\.classes: 0, 1, 2; BioNeMo's residue classes"):
        export_run(config)


def test_residue_classes_have_bionemos_numbers(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of training, as they are met there; where validation has its own, both must be the same."""
    ends = {True: "EH", False: "HE"}  # fold 3 is that of validation
    config = residues(
        tmp_path,
        tiny_model,
        lambda fold, labels: "C" * (len(labels) - 2) + ends[fold == 3],
        "[C, E, H]",
    )
    with pytest.raises(ValueError, match="C H E in training, C E H in validation"):
        export_run(config)
    module = tmp_path / "packages" / f"{DATA_MODULE.replace('.', '/')}.py"
    module.parent.mkdir(parents=True)
    module.write_text(
        "def setup(self):\n    self.valid.label_tokenizer = self.train.label_tokenizer\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "packages")
    assert export_run(config).classes == ("C", "H", "E")


def test_classes_that_bionemo_would_number_otherwise_are_refused(
    tiny_model: Path, tmp_path: Path
) -> None:
    """It numbers the letters of each file in the order in which it meets them."""
    assert class_order(["HEC", "CHE"], per_residue=True) == ["C", "H", "E"]
    config = load_config(write_task_file(tmp_path / "a", tiny_model, "multiclass"))
    table = (tmp_path / "a/table.csv").read_text().splitlines()
    # Fold 3 is that of validation.
    kept = [line for line in table if ",golgi," not in line or line.split(",")[2] != "3"]
    (tmp_path / "a/table.csv").write_text("\n".join(kept) + "\n")
    config = load_config(tmp_path / "a/run.yaml", [f"data.path={tmp_path}/b"])
    prepare_run(config)
    with pytest.raises(ValueError, match="orders differ: 0 1 2 in training"):
        export_run(config)
