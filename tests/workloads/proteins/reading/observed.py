"""Run the real commands on an odd input, and tell from their results what they did with it."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from seqlm.api import Model
from seqlm.proteins.alphabet import decode, encode
from seqlm.proteins.data.prepare import prepare_proteins
from seqlm.proteins.explore.command import explore
from seqlm.proteins.finetune.labelled import LabelledSplit
from seqlm.proteins.finetune.prepare import prepare_table
from seqlm.proteins.reading.policies import Decision, Kind
from seqlm.proteins.reading.rejects import REJECTS_FILE
from seqlm.runs.run_file import RunFile, load_config
from seqlm.training.data.manifest import Manifest
from seqlm.training.processes import Processes
from seqlm.training.records import RecordSplit
from tests.workloads.proteins.inference.written import rows
from tests.workloads.proteins.reading.odd_inputs import (
    GOOD,
    MAX_RESIDUES,
    ODD,
    ODDITIES,
    ONLY_TABLES,
    PLAIN,
    REFERENCES,
    Given,
    Oddity,
    fasta_of,
)
from tests.workloads.proteins.serving.served import Served

Run = Callable[[RunFile, Processes], None]
Value = Any
"""Result of a protein, which can be compared."""


@dataclasses.dataclass(frozen=True)
class Observed:
    """Behaviour of a command."""

    decision: Decision
    said: str
    """Output of the command, or its error."""


def treatment(oddity: Oddity, found: Sequence[tuple[str, Value]], expected: Value) -> Decision:
    """Return what was done with an odd record.

    Args:
        oddity: input.
        found: id and value of each record of the result, in their order.
        expected: value of a record that is used.
    """
    [odd] = oddity.records
    if {name for name, _ in found} - set(GOOD) == {f"{odd.id}.A", f"{odd.id}.B"}:
        return Decision.CLEAN  # each chain became a record
    if len(found) < len(oddity.all_records):
        is_kept_once = odd.sequence in GOOD.values()
        assert [name for name, _ in found if name in GOOD] or is_kept_once
        return Decision.CLEAN if is_kept_once else Decision.REJECT
    assert len(found) == len(oddity.all_records)
    values = [value for name, value in found if name == odd.id]
    np.testing.assert_allclose(values[-1], expected, atol=1e-5)
    return Decision.USE if odd.sequence == oddity.equals else Decision.CLEAN


def write_csv(path: Path, table: Iterable[Sequence[object]]) -> Path:
    """Write rows, the header first."""
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(table)
    return path


def table_of(oddity: Oddity) -> list[Sequence[str]]:
    """Return the rows of an input, the header first. The last one has the extra cells."""
    records = [[record.id, record.sequence] for record in oddity.all_records]
    if oddity.extra_cells:
        records[-1] += oddity.extra_cells
    return [("id", "sequence"), *records]


class Inference:
    """Command of inference.

    Args:
        run: function of the command.
        model: folder of the model.
        here: this process.
        value: function from the rows of a protein to its value.
        suffix: ending of the output's name.
    """

    def __init__(
        self,
        run: Run,
        model: Path,
        here: Processes,
        value: Callable[[list[dict[str, Any]]], Value],
        suffix: str = ".csv",
    ) -> None:
        self._run = run
        self._model = model
        self._here = here
        self._value = value
        self._suffix = suffix
        self._references: dict[str, Value] = {}

    def observe(
        self, kind: Kind, form: str, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> Observed:
        """Run the command on an odd input of proteins in a format, ``fasta`` or ``csv``."""
        oddity = ODDITIES[kind]
        path = folder / f"input.{form}"
        if form == "fasta":
            path.write_text(fasta_of(oddity))
        else:
            write_csv(path, table_of(oddity))
        return self._observed(kind, path, folder, capsys)

    def observe_mutation(
        self, kind: Kind, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> Observed:
        """Run the command on a table with an odd mutation."""
        protein, mutation = {
            Kind.BAD_MUTATION: (ODD, "10R"),
            Kind.OTHER_PROTEIN: (ODD, "W1A"),
            Kind.NO_PROTEIN: ("missing", "M1A"),
        }[kind]
        path = folder / "input.fasta"
        path.write_text(f">{ODD}\n{PLAIN}\n")
        table = write_csv(
            folder / "mutations.csv", [("id", "mutation"), (ODD, "K2R"), (protein, mutation)]
        )
        output = folder / f"out{self._suffix}"
        said = self._run_on(path, output, capsys, mutations=str(table))
        assert [row["mutation"] for row in rows(output)] == ["K2R"]
        assert listed_kinds(output) == [kind.value]
        return Observed(Decision.REJECT, said)

    def _observed(
        self, kind: Kind, path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> Observed:
        oddity = ODDITIES[kind]
        output = folder / f"out{self._suffix}"
        try:
            said = self._run_on(path, output, capsys)
        except ValueError as error:
            assert not output.exists()
            return Observed(Decision.STOP, str(error))
        by_protein: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for row in rows(output):
            by_protein.setdefault((row["id"], row.get("occurrence", "")), []).append(row)
        found = [(name, self._value(of_one)) for (name, _), of_one in by_protein.items()]
        decision = treatment(oddity, found, self._reference(oddity.equals, folder, capsys))
        assert listed_kinds(output) == ([kind.value] if decision is Decision.REJECT else [])
        return Observed(decision, said)

    def _reference(self, sequence: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Value:
        """Return the value of a protein without an oddity, None for one that is not compared."""
        if not self._references:
            path = folder / "references.fasta"
            path.write_text("".join(f">{n}\n{text}\n" for n, text in enumerate(REFERENCES)))
            output = folder / f"references{self._suffix}"
            self._run_on(path, output, capsys)
            for number, text in enumerate(REFERENCES):
                of_one = [row for row in rows(output) if row["id"] == str(number)]
                self._references[text] = self._value(of_one) if of_one else None
        return self._references.get(sequence)

    def _run_on(
        self, path: Path, output: Path, capsys: pytest.CaptureFixture[str], **inference: Any
    ) -> str:
        settings = {
            "name": "run",
            "runs": str(path.parent / "runs"),
            "model": {"max_residues": MAX_RESIDUES},
            "train": {"precision": "fp32"},
            "inference": {
                "model": str(self._model),
                "input": [str(path)],
                "output": str(output),
                **inference,
            },
        }
        file = path.parent / "run.yaml"
        file.write_text(yaml.safe_dump(settings))
        capsys.readouterr()
        self._run(load_config(file), self._here)
        return capsys.readouterr().out


def listed_kinds(output: Path) -> list[str]:
    """Return the kinds of the rejects of an output."""
    rejects = output.with_name(f"{output.name}.rejects.csv")
    return [row["kind"] for row in rows(rejects)] if rejects.exists() else []


def observe_data(kind: Kind, folder: Path, capsys: pytest.CaptureFixture[str]) -> Observed:
    """Prepare proteins with an odd record for pre-training."""
    oddity = ODDITIES[kind]
    if kind is Kind.NUCLEOTIDES:  # fewer than half of the records are used with a warning
        oddity = dataclasses.replace(oddity, alone=True)
    path = folder / "proteins"
    if kind in ONLY_TABLES:
        write_csv(path, table_of(oddity))
    else:
        path.write_text(fasta_of(oddity))
    data = folder / "data"
    capsys.readouterr()
    try:
        prepare_proteins(
            load_config("esm2_8m_sample", [f"data.source=[{path}]", f"data.path={data}"])
        )
    except ValueError as error:
        assert not data.exists()
        return Observed(Decision.STOP, str(error))
    found = []
    for name, split in Manifest.load(data).splits.items():
        if split.records:
            for batch in RecordSplit(data, name).record_batches:  # type: ignore[arg-type]
                found += zip(
                    batch.column("id").to_pylist(), batch.column("tokens").to_pylist(), strict=True
                )
    is_left_out = len(found) < len(oddity.all_records)
    decision = treatment(oddity, found, None if is_left_out else encode(oddity.equals))
    rejects = data / REJECTS_FILE
    listed = [row["kind"] for row in rows(rejects)] if rejects.exists() else []
    assert listed == ([kind.value] if decision is Decision.REJECT else [])
    return Observed(decision, capsys.readouterr().err)


LABELLED = [
    (
        f"P{number}",
        ("MALWKG", "MCDEFH")[number % 2] * (number + 4),
        number % 2,
        ("train", "train", "train", "validation", "test")[number % 5],
    )
    for number in range(20)
]
"""Labelled proteins: id, sequence, label and split."""
HEADER = ("id", "sequence", "label", "split")


def observe_mask(folder: Path, capsys: pytest.CaptureFixture[str]) -> Observed:
    """Prepare labels of residues, one of which a mask leaves out."""
    splits = ["train", "train", "validation", "test"]
    masks = ["1011", "1111", "1111", "1111"]
    labelled = [
        (f"P{number}", "MKT" + "ACDE"[number], "HEHE", masks[number], splits[number])
        for number in range(len(splits))
    ]
    header = ("id", "sequence", "structure", "resolved", "split")
    path = write_csv(folder / "table.csv", [header, *labelled])
    task = {"kind": "residue", "table": [str(path)], "label_columns": ["structure"]}
    file = folder / "task.yaml"
    settings = {"name": "run", "data": {"path": str(folder / "data")}, "task": task}
    file.write_text(yaml.safe_dump(settings))
    prepare_table(load_config(file))
    said = capsys.readouterr().err
    assert "labels: read 16, used 15, " in said
    train = LabelledSplit(folder / "data", "train")
    num_masked = train.num_masked(np.arange(train.num_units), len("MKTA")).sum()
    return Observed(Decision.REJECT if num_masked else Decision.USE, said)


OF_VARIANTS: Mapping[Kind, tuple[str, Decision]] = {
    Kind.BAD_MUTATION: ("10R", Decision.REJECT),
    Kind.OTHER_PROTEIN: ("W1A", Decision.REJECT),
    Kind.REPEATED_MEASUREMENT: (f"{PLAIN[0]}1C", Decision.CLEAN),
}
"""Odd names in a table of variants, and what is seen if they are left out or averaged."""


def observe_variant(kind: Kind, folder: Path, capsys: pytest.CaptureFixture[str]) -> Observed:
    """Prepare a table of variants of one protein with an odd name."""
    name, seen = OF_VARIANTS[kind]
    variants = [(f"{letter}{place}C", 0) for place, letter in enumerate(PLAIN, start=1)]
    table = write_csv(folder / "table.csv", [("mutation", "label"), *variants, (name, 1)])
    settings = {
        "name": "run",
        "data": {"path": str(folder / "data")},
        "task": {
            "kind": "regression",
            "table": [str(table)],
            "wild_type": PLAIN,
            "split": {"variants": "random", "folds": 3},
        },
    }
    file = folder / "task.yaml"
    file.write_text(yaml.safe_dump(settings))
    capsys.readouterr()
    prepare_table(load_config(file))
    values = {}
    for split in ("train", "validation", "test"):
        part = LabelledSplit(folder / "data", split)  # type: ignore[arg-type]
        units = np.arange(part.num_units)
        values |= dict(zip(part.ids(units), part.labels(units)[:, 0].tolist(), strict=True))
    assert set(values) == {variant for variant, _ in variants}
    rejects = folder / "data" / REJECTS_FILE
    listed = [row["kind"] for row in rows(rejects)] if rejects.exists() else []
    assert listed == ([kind.value] if seen is Decision.REJECT else [])
    assert sum(values.values()) == (0.5 if seen is Decision.CLEAN else 0)
    return Observed(seen, capsys.readouterr().err)


def observe_finetune(kind: Kind, folder: Path, capsys: pytest.CaptureFixture[str]) -> Observed:
    """Prepare a table with an odd record."""
    if kind is Kind.MASKED:
        return observe_mask(folder, capsys)
    if kind in OF_VARIANTS:
        return observe_variant(kind, folder, capsys)
    records: list[Sequence[object]] = list(LABELLED)
    oddity = ODDITIES.get(kind, Oddity([Given(ODD, PLAIN)], PLAIN))
    label: object = {Kind.NO_LABEL: "", Kind.BAD_LABEL: "maybe"}.get(kind, 1)
    if oddity.alone or kind is Kind.NUCLEOTIDES:
        records = []
    for record in oddity.records:
        name = "P1" if record.id == "good0" else record.id
        sequence = LABELLED[1][1] if record.sequence == GOOD["good0"] else record.sequence
        fold = "test2" if kind is Kind.OTHER_SET else "train"
        records.append((name, sequence, label, fold, *oddity.extra_cells))
    table: list[Sequence[object]] = [HEADER, *records]
    task: dict[str, Any] = {}
    if kind in (Kind.NO_ROW, Kind.NO_PROTEIN, Kind.REPEATED_ROW):
        proteins = records if kind is Kind.NO_ROW else LABELLED
        labels = {
            Kind.NO_ROW: LABELLED,
            Kind.NO_PROTEIN: records,
            Kind.REPEATED_ROW: [*LABELLED, LABELLED[0]],
        }[kind]
        path = folder / "proteins.fasta"
        path.write_text("".join(f">{row[0]}\n{row[1]}\n" for row in proteins))
        task["labels"] = str(write_csv(folder / "labels.csv", [HEADER, *labels]))
    else:
        path = write_csv(folder / "table.csv", table)
    settings = {
        "name": "run",
        "data": {"path": str(folder / "data")},
        "task": {
            "kind": "binary",
            "table": [str(path)],
            "label_columns": ["label"],
            "split": {"column": "split"},
            **task,
        },
    }
    file = folder / "task.yaml"
    file.write_text(yaml.safe_dump(settings))
    capsys.readouterr()
    try:
        prepare_table(load_config(file))
    except ValueError as error:
        assert not (folder / "data").exists()
        return Observed(Decision.STOP, str(error))
    said = capsys.readouterr().err
    train = LabelledSplit(folder / "data", "train")
    places, _ = train.draw(0, train.num_units, 0, 0)
    found = dict(zip(train.ids(np.arange(train.num_units)), places, strict=True))
    rejects = folder / "data" / REJECTS_FILE
    listed = [row["kind"] for row in rows(rejects)] if rejects.exists() else []
    if ODD not in found or kind is Kind.REPEATED_SEQUENCE:
        assert listed == [kind.value]
        is_cleaned = kind is Kind.REPEATED_SEQUENCE
        return Observed(Decision.CLEAN if is_cleaned else Decision.REJECT, said)
    assert not listed and decode(train.token_ids(found[ODD])) == oddity.equals.replace("J", "<unk>")
    is_same = oddity.records[0].sequence == oddity.equals
    return Observed(Decision.USE if is_same else Decision.CLEAN, said)


def observe_server(kind: Kind, served: Served) -> Observed:
    """Send a request with an odd record. The answers have the lengths of the proteins."""
    oddity = ODDITIES[kind]
    records = [[record.id, record.sequence, *oddity.extra_cells] for record in oddity.all_records]
    if kind in ONLY_TABLES:
        text = "id,sequence\n" + "".join(",".join(cells) + "\n" for cells in records)
        reply = served.invoke(text.encode(), "text/csv", Accept="application/json")
    else:
        named = [{"id": name, "sequence": sequence} for name, sequence in records]
        reply = served.invoke({"proteins": named})
    if reply.status != 200:
        assert reply.status in (400, 422)
        return Observed(Decision.STOP, json.dumps(reply.json))
    found = [(one["id"], one["length"]) for one in reply.json["predictions"]]
    return Observed(treatment(oddity, found, len(oddity.equals)), "")


def observe_python(kind: Kind, model: Model, references: Mapping[str, Value]) -> Observed:
    """Call the Python interface with an odd record or mutation."""
    try:
        if kind in (Kind.BAD_MUTATION, Kind.OTHER_PROTEIN):
            model.variants(PLAIN, ["10R" if kind is Kind.BAD_MUTATION else "W1A"])
            return Observed(Decision.USE, "")
        oddity = ODDITIES[kind]
        found = model.embed(oddity.sequences)
    except ValueError as error:
        return Observed(Decision.STOP, str(error))
    pairs = list(zip(oddity.sequences, found, strict=True))
    return Observed(treatment(oddity, pairs, references[oddity.equals]), "")


NUM_EMBEDDINGS = 12
SIZE = 4


def observe_explore(kind: Kind, folder: Path, capsys: pytest.CaptureFixture[str]) -> Observed:
    """Draw a map with an odd embedding, or an odd table beside it."""
    ids = [f"P{number}" for number in range(NUM_EMBEDDINGS)]
    labels: list[Sequence[object]] = [
        (name, f"group {number % 3}") for number, name in enumerate(ids)
    ]
    options: list[str] = []
    match kind:
        case Kind.REPEATED_ID:
            ids[1] = ids[0]
            del labels[1]
        case Kind.FIELDS:
            labels[1] = (*labels[1], "extra")
        case Kind.NO_LABEL:
            labels[1] = (ids[1], "")
        case Kind.NO_ROW:
            del labels[1]
        case Kind.NO_PROTEIN:
            labels.append(("missing", "group 0"))
        case Kind.REPEATED_ROW:
            labels.append(labels[0])
        case Kind.NOT_DRAWN:
            options.append(f"explore.max_proteins={NUM_EMBEDDINGS - 1}")
        case Kind.NO_RECORD:
            labels = []
        case Kind.NOTHING_USED:
            labels = [("missing", "group 0")]
        case _:
            raise KeyError(f"explore has no input with {kind}")
    table = write_csv(folder / "labels.csv", [("id", "group"), *labels])
    vectors = np.random.default_rng(0).normal(size=(NUM_EMBEDDINGS, SIZE)).astype(np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), SIZE)
    source = folder / "e.parquet"
    pq.write_table(pa.table({"id": ids, "embedding": column}), source)
    fields = [f"explore.embeddings={source}", f"explore.table=[{table}]", "explore.columns=[group]"]
    if kind is Kind.NO_LABEL:
        fields.append("explore.label=group")
    capsys.readouterr()
    try:
        explore(load_config("esm2_8m_sample", [*fields, *options]))
    except ValueError as error:
        assert not source.with_suffix(".html").exists()
        return Observed(Decision.STOP, str(error))
    said = capsys.readouterr().out
    num_drawn = NUM_EMBEDDINGS - (kind is Kind.NOT_DRAWN)
    assert f"proteins: read {NUM_EMBEDDINGS}, used {num_drawn}, " in said
    num_rows = len(labels) - (kind is Kind.NO_PROTEIN)
    assert f"rows of the table: read {len(labels)}, used {num_rows}, " in said
    is_left_out = num_drawn < NUM_EMBEDDINGS or num_rows < len(labels)
    return Observed(Decision.REJECT if is_left_out else Decision.USE, said)
