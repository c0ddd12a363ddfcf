"""Every entry of the tables runs on tiny models, so that an entry that is only half added is found here."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqlm
from seqlm.commands.inference import run_inference
from seqlm.commands.train import train
from seqlm.proteins.contacts import head as contact_head
from seqlm.proteins.finetune.task_kinds import TASK_KINDS
from seqlm.proteins.inference.poolings import MEAN, MEAN_SQUARE, POOLINGS, Pooling, pooling_of
from seqlm.proteins.scorecard import layers, localization, sequence_parts, structure_parts
from seqlm.runs.inference_commands import (
    INFERENCE_COMMANDS,
    INPUT_FIELD,
    MASKED_LM,
    inference_command,
)
from seqlm.runs.run_file import RunFile, load_config
from seqlm.runs.schema import json_schema
from tests.workloads.proteins.finetune.labelled_proteins import TASKS, write_task_file
from tests.workloads.training.training_runs import curves_not_drawn

BOTH_FAMILIES = {"test_every_pooling_is_computed"}
SEQUENCE = "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQ"
OUTPUTS = [
    (name, suffix) for name, command in INFERENCE_COMMANDS.items() for suffix in command.formats
]


def test_every_pooling_is_computed(tiny_model: Path, family: str) -> None:
    model = seqlm.load(str(tiny_model), precision="fp32")
    found = {name: model.embed([SEQUENCE], pooling=name)[0] for name in POOLINGS}
    for name, pooling in POOLINGS.items():
        length = (len(SEQUENCE),) if pooling.per_residue else ()
        assert found[name].shape == (*length, 32)
    pooled = {name: vector for name, vector in found.items() if not POOLINGS[name].per_residue}
    for one, other in itertools.combinations(pooled, 2):
        assert not np.allclose(pooled[one], pooled[other]), f"{one} is computed as {other}"


def test_a_pooling_that_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(
        ValueError, match=f"pooling: got 'nowhere'; allowed are {', '.join(POOLINGS)}"
    ):
        pooling_of("nowhere")
    with pytest.raises(ValueError, match=r"2 statistics needs a function of the result"):
        Pooling(statistics=(MEAN, MEAN_SQUARE))


def test_the_run_file_allows_the_poolings_of_the_table() -> None:
    inference = json_schema(RunFile)["properties"]["inference"]["properties"]
    assert json.dumps({"enum": list(POOLINGS)}) in json.dumps(inference["pooling"])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the bundled samples small."""
    chains = contact_head.chains
    monkeypatch.setattr(localization, "LOCALIZATION_PROTEINS", 60)
    monkeypatch.setattr(sequence_parts, "PSEUDO_PERPLEXITY_RESIDUES", 20)
    monkeypatch.setattr(structure_parts, "chains", lambda use: chains(use)[:18])
    monkeypatch.setattr(
        "seqlm.proteins.contacts.command.known_chains", lambda use: chains(use)[:18]
    )
    monkeypatch.setattr(
        layers, "similarity_clusters", lambda records: ([one.id for one in records], "id")
    )
    monkeypatch.setattr("seqlm.commands.inference.processes_and_threads", lambda: (1, 1))


def fine_tuned(folder: Path, tiny_model: Path, kind: str) -> RunFile:
    """Train a task for three steps."""
    config = load_config(write_task_file(folder, tiny_model, kind), ["train.max_steps=3"])
    with curves_not_drawn():
        train(config)
    return config


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("name", "suffix"), OUTPUTS)
def test_every_command_of_inference_writes_each_of_its_formats(
    name: str, suffix: str, tiny_model: Path, run_file: Path, tmp_path: Path
) -> None:
    command = inference_command(name)
    model = tmp_path / "given" / "model"
    overrides = ["train.precision=fp32", f"inference.output={tmp_path}/out{suffix}"]
    if command.needs_task:
        run_file = write_task_file(tmp_path / "task", tiny_model, "multiclass")
    if MASKED_LM in command.heads:
        shutil.copytree(tiny_model, model)
    else:
        model = fine_tuned(tmp_path / "task", tiny_model, "multiclass").run_dir / "model"
    if INPUT_FIELD in command.inputs:
        (tmp_path / "proteins.fasta").write_text(f">a\n{SEQUENCE}\n")
        overrides.append(f"inference.input=[{tmp_path}/proteins.fasta]")
    if name == "contacts":  # the tiny model has no fitted head
        overrides.append("inference.fit_contacts=true")
    run_inference(name, load_config(run_file, [*overrides, f"inference.model={model}"]))
    assert (tmp_path / f"out{suffix}").stat().st_size > 0


@pytest.mark.parametrize("kind", TASK_KINDS)
def test_every_kind_of_task_trains_and_predicts(
    kind: str, tiny_model: Path, tmp_path: Path
) -> None:
    assert kind in TASKS, (
        f"give the table of {write_task_file.__module__} a label column of kind {kind}"
    )
    config = fine_tuned(tmp_path, tiny_model, kind)
    table: Any = seqlm.load(str(config.run_dir / "model"), precision="fp32").predict([SEQUENCE])
    assert table["length"].tolist() == [len(SEQUENCE)] and len(table.columns) > 2


def test_a_command_that_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(
        ValueError, match=f"command: got 'nowhere'; allowed are {', '.join(INFERENCE_COMMANDS)}"
    ):
        inference_command("nowhere")
