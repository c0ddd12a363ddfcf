"""Embeddings equal those of transformers, also after bad records and kills."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
)

from seqlm.proteins.alphabet import encode
from seqlm.proteins.inference import output, records
from seqlm.proteins.inference.embed import embed
from seqlm.proteins.inference.engine import EMBEDDING, Engine
from seqlm.proteins.inference.output import Output
from seqlm.proteins.inference.output_file import output_file
from seqlm.proteins.inference.variants import variants
from seqlm.proteins.model.pretrained import load_model
from seqlm.proteins.reading.policies import Reader
from seqlm.runs.run_file import RunFile, load_config
from seqlm.training.data.locks import try_lock
from seqlm.training.data.transfer import BeingFetched, SourceKind
from seqlm.training.processes import Processes, processes
from seqlm.training.tracking import progress as work_progress
from tests.workloads.proteins.inference.killed_commands import kill_at_call
from tests.workloads.proteins.inference.written import rows
from tests.workloads.training.forked_processes import forked

BOTH_FAMILIES = {
    "test_embeddings_are_those_of_transformers",
    "test_layers_and_poolings_are_those_of_numpy",
    "test_bf16_stays_near_fp32",
}

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def hidden(tiny_model: Path, sequences: list[str]) -> list[np.ndarray]:
    """Last hidden states of transformers for the residues, one protein at a time, with its own tokenizer."""
    model = AutoModelForMaskedLM.from_pretrained(tiny_model).base_model.eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    with torch.no_grad():
        return [
            model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0, 1:-1].numpy()
            for text in sequences
        ]


@pytest.mark.parametrize("pooling", ["mean", "none"])
def test_embeddings_are_those_of_transformers(
    configured: Callable[..., RunFile],
    here: Processes,
    fasta: Path,
    hidden: list[np.ndarray],
    tmp_path: Path,
    pooling: str,
) -> None:
    out = tmp_path / "out.parquet"
    embed(configured(input=[str(fasta)], output=str(out), pooling=[pooling]), here)
    found = rows(out)
    assert [row["id"] for row in found] == [f"P{index}" for index in range(len(hidden))]
    for row, expected in zip(found, hidden, strict=True):
        wanted = expected.mean(axis=0) if pooling == "mean" else expected
        assert row["length"] == len(expected)
        np.testing.assert_allclose(row["embedding"], wanted, atol=1e-5)
    about = json.loads(pq.read_schema(out).metadata[b"esm2"])
    assert about["precision"] == "fp32" and about["stored_as"] == "float32"
    assert not (tmp_path / "out.parquet.parts").exists()


def test_records_with_one_id_are_numbered(
    configured: Callable[..., RunFile],
    here: Processes,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fasta = tmp_path / "repeated.fasta"
    fasta.write_text(">a\nMKT\n>b\nMKL\n>a\nMKTW\n>1\nM1\n>a\nMKTWY\n")
    out = tmp_path / "out.parquet"
    embed(configured(input=[str(fasta)], output=str(out), part_residues=4), here)
    found = [(row["id"], row["occurrence"], row["length"]) for row in rows(out)]
    assert found == [("a", 1, 3), ("b", 1, 3), ("a", 2, 4), ("a", 3, 5)]
    assert "2 records have the id of an earlier one" in capsys.readouterr().out
    fasta.write_text(">a\nMKT\n>b\nMKL\n")
    embed(configured(input=[str(fasta)], output=str(tmp_path / "unique.parquet")), here)
    assert "occurrence" not in rows(tmp_path / "unique.parquet")[0]


def test_layers_and_poolings_are_those_of_numpy(
    configured: Callable[..., RunFile],
    here: Processes,
    fasta: Path,
    tiny_model: Path,
    sequences: list[str],
    tmp_path: Path,
) -> None:
    model = AutoModelForMaskedLM.from_pretrained(tiny_model).base_model.eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    out = tmp_path / "out.parquet"
    poolings: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "std": lambda x: x[1:-1].std(axis=0),
        "max": lambda x: x[1:-1].max(axis=0),
        "cls": lambda x: x[0],
        "mean": lambda x: x[1:-1].mean(axis=0),
    }
    embed(
        configured(input=[str(fasta)], output=str(out), pooling=list(poolings), layers=[0, 1, -1]),
        here,
    )
    last = model.config.num_hidden_layers
    found = rows(out)
    assert list(found[0]) == ["id", "length"] + [
        f"layer{n}_{p}" for p in poolings for n in (0, 1, last)
    ]
    with torch.no_grad():
        for row, text in zip(found, sequences, strict=True):
            states = model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True)
            hidden = {n: states.hidden_states[n][0].numpy() for n in (0, 1)}
            hidden[last] = states.last_hidden_state[0].numpy()
            for name, pooled in poolings.items():
                for number, values in hidden.items():
                    np.testing.assert_allclose(
                        row[f"layer{number}_{name}"], pooled(values), atol=1e-5
                    )


def test_a_layer_that_the_model_lacks_is_refused(
    configured: Callable[..., RunFile], here: Processes, fasta: Path, tmp_path: Path
) -> None:
    config = configured(input=[str(fasta)], output=str(tmp_path / "out.parquet"), layers=[0, 9])
    with pytest.raises(
        ValueError, match=r"inference\.layers: got 9; the model has the layers 0 .* to 2"
    ):
        embed(config, here)


def test_bf16_stays_near_fp32(
    tiny_model: Path, sequences: list[str], hidden: list[np.ndarray]
) -> None:
    engine = Engine(load_model(str(tiny_model)), device=CPU, dtype=torch.bfloat16)
    for found, expected in zip(
        engine.run([encode(text) for text in sequences], EMBEDDING), hidden, strict=True
    ):
        mean = expected.mean(axis=0)
        assert np.dot(found, mean) / (np.linalg.norm(found) * np.linalg.norm(mean)) > 0.9995


def test_embeddings_in_float16(
    configured: Callable[..., RunFile],
    here: Processes,
    fasta: Path,
    hidden: list[np.ndarray],
    tmp_path: Path,
) -> None:
    out = tmp_path / "out.parquet"
    embed(configured(input=[str(fasta)], output=str(out), stored_as="float16"), here)
    schema = pq.read_schema(out)
    assert schema.field("embedding").type.value_type == pa.float16()
    np.testing.assert_allclose(rows(out)[3]["embedding"], hidden[3].mean(axis=0), atol=2e-3)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".tsv", ".parquet", ".fasta.gz"])
def test_other_formats_give_the_same(
    configured: Callable[..., RunFile],
    here: Processes,
    sequences: list[str],
    hidden: list[np.ndarray],
    tmp_path: Path,
    suffix: str,
) -> None:
    path = tmp_path / f"proteins{suffix}"
    names = [f"P{index}" for index in range(len(sequences))]
    if suffix == ".parquet":
        pq.write_table(pa.table({"name": names, "seq": sequences}), path)
    elif suffix == ".fasta.gz":
        path.write_bytes(
            gzip.compress(
                "".join(f">{n}\n{s}\n" for n, s in zip(names, sequences, strict=True)).encode()
            )
        )
    else:
        comma = "\t" if suffix == ".tsv" else ","
        text = "".join(
            f"{name}{comma}{text}\n"
            for name, text in [("name", "seq"), *zip(names, sequences, strict=True)]
        ).encode()
        path.write_bytes(gzip.compress(text) if suffix.endswith(".gz") else text)
    out = tmp_path / "out.parquet"
    embed(
        configured(input=[str(path)], output=str(out), id_column="name", sequence_column="seq"),
        here,
    )
    found = rows(out)
    assert [row["id"] for row in found] == names
    np.testing.assert_allclose(found[-1]["embedding"], hidden[-1].mean(axis=0), atol=1e-5)


def test_bad_records_are_reported_and_the_rest_is_computed(
    configured: Callable[..., RunFile],
    here: Processes,
    sequences: list[str],
    hidden: list[np.ndarray],
    tmp_path: Path,
) -> None:
    fasta = tmp_path / "bad.fasta"
    fasta.write_text(
        f">a\nMK-L\n>good\n{sequences[7]}\n>empty\n>\nMK\n>z\n{sequences[8]}*\n>q\nMK\nL7\n"
    )
    table = tmp_path / "bad.csv"
    table.write_text(f"id,sequence\n,MKL\nnone,\nt,{sequences[9]}\nwide,MK,L\ngap,M.K\n")
    out = tmp_path / "out.parquet"
    embed(configured(input=[str(fasta), str(table)], output=str(out)), here)
    found = rows(out)
    assert [row["id"] for row in found] == ["good", "z", "t"]
    for row, expected in zip(found, hidden[7:10], strict=True):
        np.testing.assert_allclose(row["embedding"], expected.mean(axis=0), atol=1e-5)
    rejects = [
        (Path(row["where"]).name, row["reason"])
        for row in rows(tmp_path / "out.parquet.rejects.csv")
    ]
    assert [where for where, _ in rejects] == [
        "bad.fasta:2",
        "bad.fasta:5",
        "bad.fasta:6",
        "bad.fasta:12",
        "bad.csv:2",
        "bad.csv:3",
        "bad.csv:5",
        "bad.csv:6",
    ]
    assert "'-' in record a is not a residue" in rejects[0][1]
    assert "has no sequence" in rejects[1][1] and "header without an id" in rejects[2][1]
    assert "no id" in rejects[4][1] and "3 fields, the header has 2" in rejects[6][1]
    # A run without rejects deletes the old list.
    fasta.write_text(f">good\n{sequences[7]}\n")
    embed(configured(input=[str(fasta)], output=str(out), overwrite=True), here)
    assert not (tmp_path / "out.parquet.rejects.csv").exists()


DNA = "ATGGCTAAAGTTCTGATCGGTACC" * 3


def test_nucleotides_among_proteins_are_rejected_with_a_warning(
    configured: Callable[..., RunFile],
    here: Processes,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fasta = tmp_path / "mixed.fasta"
    out = tmp_path / "out.parquet"
    fasta.write_text(f">gene\n{DNA}\n>gene2\n{DNA}\n>protein\nMKTAYIAKQRQISFVKSHFSRQ\n")
    embed(configured(input=[str(fasta)], output=str(out)), here)
    assert [row["id"] for row in rows(out)] == ["protein"]
    assert (
        "warning: 2 records are rejected because they look like DNA or RNA, for example gene; allow them "
        "with data.allow_nucleotides=true"
    ) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            f">gene\n{DNA}\n",
            r"proteins: read 1, used 0, left out 1 \(1 DNA or RNA\), the first one at .*none.fasta: record "
            "gene looks like DNA or RNA .* data.allow_nucleotides=true",
        ),
        (
            ">>mine\nMKTAYIAKQRQ\n",
            r"proteins: read 1, used 0, left out 1 \(1 id with >\), the first one at .*none.fasta:1: ",
        ),
    ],
)
def test_an_input_without_proteins_is_an_error(
    configured: Callable[..., RunFile], here: Processes, tmp_path: Path, text: str, reason: str
) -> None:
    fasta = tmp_path / "none.fasta"
    out = tmp_path / "out.parquet"
    fasta.write_text(text)
    with pytest.raises(
        ValueError, match=f"inference.input: .*none.fasta: nothing can be used. {reason}"
    ):
        embed(configured(input=[str(fasta)], output=str(out)), here)
    assert not out.exists()


@pytest.mark.parametrize(("command", "total"), [(embed, 28), (variants, 22 * 22 + 6 * 6)])
def test_progress_is_shown_within_a_part(
    command: Callable[[RunFile, Processes], None],
    total: int,
    configured: Callable[..., RunFile],
    here: Processes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fasta = tmp_path / "two.fasta"
    fasta.write_text(">a\nMKTAYIAKQRQISFVKSHFSRQ\n>b\nMKTAYI\n")
    monkeypatch.setattr(work_progress, "PROGRESS_SECONDS", 0)
    output = str(tmp_path / f"out.{'parquet' if command is embed else 'csv'}")
    command(configured(input=[str(fasta)], output=output, tokens_per_pack=20), here)
    lines = [line for line in capsys.readouterr().err.splitlines() if " residues (" in line]
    assert len(lines) > 1 and lines[-1].startswith(
        f"{command.__name__}: {total:,} of {total:,} residues (100%), "
    )
    assert lines[-1].endswith("residues/s, ETA 0:00:00")


def test_a_killed_command_continues_with_the_missing_parts(
    configured: Callable[..., RunFile],
    here: Processes,
    fasta: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = tmp_path / "whole.parquet"
    settings = {"input": [str(fasta)], "part_residues": 100}
    embed(configured(**settings, output=str(whole)), here)
    assert "part 5 of 5" in capsys.readouterr().err
    out = tmp_path / "out.parquet"
    calls = kill_at_call(3, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        embed(configured(**settings, output=str(out)), here)
    assert not out.exists() and len(list((tmp_path / "out.parquet.parts").iterdir())) == 2
    embed(configured(**settings, output=str(out)), here)
    assert calls.number == 3 + 3, "two parts were there"
    assert pq.read_table(out).equals(pq.read_table(whole))
    embed(configured(**settings, output=str(out)), here)
    assert calls.number == 6 and "already exists" in capsys.readouterr().out
    # With another protein in the input, only the changed part is computed again.
    fasta.write_text(fasta.read_text() + ">new\nMKTAYIAK\n")
    embed(configured(**settings, output=str(out), overwrite=True), here)
    assert [row["id"] for row in rows(out)][-1] == "new"


def killed_while_joining(monkeypatch: pytest.MonkeyPatch, after: str) -> None:
    """Kill the next command just before it writes the file with this name or ending."""
    whole = output.write_whole
    replace = Path.replace

    def write(path: Path, text: str) -> None:
        if path.name.endswith(after):
            raise KeyboardInterrupt
        whole(path, text)

    def rename(path: Path, target: Path) -> Path:
        if target.name == after:
            raise KeyboardInterrupt
        return replace(path, target)

    monkeypatch.setattr(output, "write_whole", write)
    monkeypatch.setattr(Path, "replace", rename)


@pytest.mark.parametrize("after", ["out.parquet.json", "out.parquet.rejects.csv", "out.parquet"])
@pytest.mark.parametrize("is_new", [True, False])
def test_a_command_killed_while_it_joins_is_finished_by_the_next_one(
    configured: Callable[..., RunFile],
    here: Processes,
    fasta: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    after: str,
    is_new: bool,
) -> None:
    out = tmp_path / "out.parquet"
    if not is_new:
        embed(configured(input=[str(fasta)], output=str(out)), here)
    fasta.write_text(">bad\n7\n" + fasta.read_text())
    config = configured(input=[str(fasta)], output=str(out), overwrite=not is_new)
    with monkeypatch.context() as patch:
        killed_while_joining(patch, after)
        with pytest.raises(KeyboardInterrupt):
            embed(config, here)
    embed(config, here)
    assert len(rows(out)) == 14 and len(rows(tmp_path / "out.parquet.rejects.csv")) == 1
    assert not (tmp_path / "out.parquet.parts").exists()


@pytest.mark.parametrize("name", ["out.parquet", "out.parquet.json", "out.parquet.rejects.csv"])
def test_existing_files_are_replaced_only_with_the_option(
    configured: Callable[..., RunFile], here: Processes, fasta: Path, tmp_path: Path, name: str
) -> None:
    out = tmp_path / "out.parquet"
    (tmp_path / name).write_text("kept")
    with pytest.raises(
        ValueError, match=rf"{name} exists .* or set inference.overwrite=true to replace it$"
    ) as told:
        embed(configured(input=[str(fasta)], output=str(out)), here)
    assert "\n" not in str(told.value) and (tmp_path / name).read_text() == "kept"
    embed(configured(input=[str(fasta)], output=str(out), overwrite=True), here)
    assert len(rows(out)) == 14 and not (tmp_path / "out.parquet.rejects.csv").exists()
    # Our own result of other proteins is not replaced either.
    fasta.write_text(fasta.read_text() + ">new\nMKTAYIAK\n")
    with pytest.raises(ValueError, match=r"out.parquet exists and is not from the same proteins"):
        embed(configured(input=[str(fasta)], output=str(out)), here)
    assert len(rows(out)) == 14


def test_the_table_lies_beside_the_model(
    configured: Callable[..., RunFile],
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_dir = tmp_path / "runs" / "run"
    mine = tmp_path / "runs" / "mine"
    checkpoint = mine / "checkpoints" / "step-00000002"
    checkpoint.mkdir(parents=True)
    shutil.copytree(tiny_model, mine / "model")
    cases = {str(mine / "model"): mine, f"{mine}/model/": mine, str(checkpoint): mine}
    for model, folder in (
        cases | {"facebook/esm2_t6_8M_UR50D": run_dir, "no/such/model": run_dir}
    ).items():
        assert output_file(configured(model=model), "embed") == folder / "embeddings.parquet"
        assert output_file(configured(model=model, output="e.csv"), "variants") == Path("e.csv")
    assert output_file(configured(model=None), "predict") == run_dir / "predictions.csv"
    monkeypatch.setattr(os, "access", lambda path, mode: path != mine)
    for model in cases:
        assert output_file(configured(model=model), "embed") == run_dir / "embeddings.parquet"


def test_two_commands_do_not_write_one_output(
    configured: Callable[..., RunFile], here: Processes, fasta: Path, tmp_path: Path
) -> None:
    """The first one to finish would delete the other's parts."""
    config = configured(input=[str(fasta)], output=str(tmp_path / "out.parquet"))
    held = try_lock(Output(config, "embed").path)
    assert held is not None
    with (
        held,
        pytest.raises(ValueError, match=r"out.parquet is being written by another command; wait"),
    ):
        embed(config, here)
    embed(config, here)
    assert len(rows(tmp_path / "out.parquet")) == 14
    assert [path.name for path in tmp_path.glob(".*")] == [], "no partial file stays"


def test_one_process_downloads_and_the_others_wait(
    configured: Callable[..., RunFile],
    here: Processes,
    fasta: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def fetch(location: str, downloads: Path, kind: SourceKind) -> list[Path]:
        asked.append(location)
        if len(asked) < 3:
            raise BeingFetched("another process downloads it")
        return [fasta]

    monkeypatch.setattr(records, "fetch", fetch)
    monkeypatch.setattr(records, "POLL_SECONDS", 0.0)
    embed(configured(input=["s3://bucket/p.fasta"], output=str(tmp_path / "out.parquet")), here)
    assert len(rows(tmp_path / "out.parquet")) == 14 and len(asked) == 3, "the input is read once"


@pytest.mark.long
def test_two_processes_make_what_one_makes(
    configured: Callable[..., RunFile], here: Processes, fasta: Path, tmp_path: Path
) -> None:
    """``make embed`` starts two processes on a machine with two cores."""
    config = configured(input=[str(fasta)], part_residues=100, output=str(tmp_path / "one.parquet"))
    embed(config, here)
    fields = config.to_dict()["inference"] | {"output": str(tmp_path / "two.parquet")}
    overrides = [f"inference.{name}={json.dumps(value)}" for name, value in fields.items()]
    with forked(
        2, embed_the_run, tmp_path / "run.yaml", overrides, log=tmp_path / "log"
    ) as started:
        assert started.ends() == [0, 0], started.output
    assert pq.read_table(tmp_path / "two.parquet").equals(pq.read_table(tmp_path / "one.parquet"))
    assert f"wrote {tmp_path / 'two.parquet'}: proteins 14, residues 628, in " in started.output
    assert started.output.count("proteins: read 14, used 14, left out 0") == 1
    assert started.output.count(READING) == 1, "one process parses the input, and once"
    wrong = [*overrides, f"inference.input={json.dumps([str(tmp_path / 'run.yaml')])}"]
    with forked(2, embed_the_run, tmp_path / "run.yaml", wrong, log=tmp_path / "log2") as refused:
        assert refused.ends() == [1, 1], refused.output
    assert refused.output.count("run.yaml") >= 2, "each process has the message"


READING = "the input is parsed"


def embed_the_run(path: Path, overrides: list[str]) -> None:
    read = records.read_proteins

    def counted(*arguments: Any, **named: Any) -> Any:
        print(READING)
        return read(*arguments, **named)

    with mock.patch.object(records, "read_proteins", counted), processes() as here:
        embed(load_config(path, overrides), here)


def test_the_summary_has_the_key_of_the_input(
    configured: Callable[..., RunFile], here: Processes, fasta: Path, tmp_path: Path
) -> None:
    """It is made in the pass that writes the parts."""
    fasta.write_text(">bad\n7\n" + fasta.read_text())
    out = tmp_path / "out.parquet"
    config = configured(input=[str(fasta)], output=str(out), part_residues=100)
    embed(config, here)
    summary = json.loads((tmp_path / "out.parquet.json").read_text())
    assert summary["input_key"] == records.input_key(config, Reader.INFERENCE)
    assert not any(path.name.startswith(".") for path in tmp_path.iterdir())
