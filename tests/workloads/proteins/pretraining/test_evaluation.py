"""Scores under fixed masks, and every way to name the model that is scored."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub.constants
import numpy as np
import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForMaskedLM

from seqlm.commands import kinds
from seqlm.commands.evaluate import main
from seqlm.proteins.alphabet import CLS, EOS, MASK
from seqlm.proteins.data.prepare import Execution, prepare
from seqlm.proteins.data.sources import ProteinFiles
from seqlm.proteins.model.masking import mask_pack
from seqlm.proteins.model.pretrained import starting_config, starting_weights, with_weights
from seqlm.proteins.model.protein_packs import ProteinStream
from seqlm.proteins.pretraining.evaluation import pseudo_perplexity, score, unigram_perplexity
from seqlm.runs.run_file import ModelConfig, load_config
from seqlm.training.objective import Place
from seqlm.training.packing import PackShape
from seqlm.training.processes import processes
from seqlm.training.records import RecordSplit
from seqlm.training.scoring import EVALUATION_SEED
from seqlm.training.tracking import progress as work_progress
from tests.workloads.training.training_runs import REPOSITORY, train_here

BOTH_FAMILIES = {
    "test_score_is_that_of_transformers_on_the_same_masks",
    "test_pseudo_perplexity_masks_one_residue_at_a_time",
    "test_a_run_its_checkpoint_and_a_folder_score_alike",
}

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_process_group_stays() -> Iterator[None]:
    """An error leaves it behind, as it should: the process would end."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def reference(tiny_model: Path) -> Any:
    return AutoModelForMaskedLM.from_pretrained(tiny_model).eval()


@torch.no_grad()
def test_score_is_that_of_transformers_on_the_same_masks(prepared: Path, reference: Any) -> None:
    split = RecordSplit(prepared, "validation")
    with processes() as here:
        model = with_weights(
            reference.config, {k: v.clone() for k, v in reference.state_dict().items()}
        )
        result = score(
            model,
            split,
            Place(here, PackShape.of(split, 256, 126), torch.float32),
            mask_fraction=0.15,
        )
    stream = ProteinStream(split, PackShape.of(split, 256, 126), EVALUATION_SEED)
    loss = 0.0
    correct = 0
    predicted = 0
    for planned in stream.epoch(0):
        host = stream.load(planned)
        pack = mask_pack(host, 128, 0.15, CPU)
        labels = torch.full_like(pack.tokens, -100)
        known = pack.targets != -100
        labels[pack.rows[known]] = pack.targets[known]
        for index in range(len(planned.units)):
            place = slice(host.cumulative[index], host.cumulative[index + 1])
            logits = reference(input_ids=pack.tokens[None, place]).logits[0]
            here_known = labels[place] != -100
            loss += float(
                torch.nn.functional.cross_entropy(
                    logits[here_known], labels[place][here_known], reduction="sum"
                )
            )
            correct += int((logits.argmax(-1) == labels[place]).sum())
            predicted += int(here_known.sum())
    assert result.num_predicted == predicted > 100
    assert result.values["eval_loss"] == pytest.approx(loss / predicted, rel=1e-5)
    assert result.values["eval_accuracy"] == pytest.approx(correct / predicted)
    assert result.num_records == split.num_units
    assert result.values["perplexity"] == pytest.approx(math.exp(loss / predicted), rel=1e-5)


@torch.no_grad()
def test_pseudo_perplexity_masks_one_residue_at_a_time(prepared: Path, reference: Any) -> None:
    split = RecordSplit(prepared, "validation")
    model = with_weights(
        reference.config, {k: v.clone() for k, v in reference.state_dict().items()}
    )
    got = pseudo_perplexity(
        model,
        split,
        PackShape.of(split, 300, 40),
        num_proteins=2,
        dtype=torch.float32,
        device=CPU,
    )
    expected = []
    places, _ = split.draw(0, 2, EVALUATION_SEED, 0)
    for place in places:
        protein = torch.from_numpy(
            np.concatenate([[CLS], split.token_ids(place)[:40], [EOS]]).astype(np.int64)
        )
        losses = []
        for position in range(1, len(protein) - 1):
            masked = protein.clone()
            masked[position] = MASK
            log_probabilities = (
                reference(input_ids=masked[None]).logits[0, position].log_softmax(-1)
            )
            losses.append(-float(log_probabilities[protein[position]]))
        expected.append(math.exp(np.mean(losses)))
    assert got == pytest.approx(np.mean(expected), rel=1e-5)


def test_split_without_a_masked_residue_has_no_score(tiny_model: Path, tmp_path: Path) -> None:
    fasta = tmp_path / "two.fasta"
    lines = [f">P{n}\nM{'ACDEFGHIKLNP'[n]}\n" for n in range(12)]
    fasta.write_text("".join(lines))
    prepare(
        ProteinFiles([fasta]),
        tmp_path / "out",
        seed=0,
        validation_fraction=0.4,
        test_fraction=0,
        execution=Execution(progress=False),
    )
    split = RecordSplit(tmp_path / "out", "validation")
    model = with_weights(
        starting_config(ModelConfig(init_from=str(tiny_model))),
        starting_weights(ModelConfig(init_from=str(tiny_model)), 0),
    )
    with processes() as here:
        result = score(
            model,
            split,
            Place(here, PackShape.of(split, 128, 126), torch.float32),
            mask_fraction=1e-9,
        )
    assert (
        math.isnan(result.values["eval_loss"])
        and math.isnan(result.values["perplexity"])
        and result.num_predicted == 0
    )


def test_unigram_perplexity(prepared: Path) -> None:
    split = RecordSplit(prepared, "validation")
    places, _ = split.draw(0, split.num_units, 0, 0)
    residues = np.concatenate([split.token_ids(place) for place in places])
    frequencies = np.bincount(residues) / len(residues)
    frequencies = frequencies[frequencies > 0]
    assert unigram_perplexity(split) == pytest.approx(
        np.exp(-(frequencies * np.log(frequencies)).sum())
    )


def scores_of(config: Path, *overrides: str) -> dict[str, object]:
    """Return the results of ``evaluate``, called in this process."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        main(load_config(config, overrides))
    path = said.getvalue().rpartition("written to")[2].split()[0]
    scores: dict[str, Any] = json.loads(Path(path).read_text())
    return scores


def test_a_run_its_checkpoint_and_a_folder_score_alike(run_file: Path, tiny_model: Path) -> None:
    train_here(run_file, "train.max_steps=6")
    run_dir = run_file.parent / "runs" / "run"
    results = json.loads((run_dir / "all_results.json").read_text())
    for source in ("null", run_dir / "checkpoints" / "step-00000006", run_dir / "model"):
        scores = scores_of(run_file, f"model.init_from={source}")
        assert scores["eval_loss"] == pytest.approx(results["eval_loss"], rel=1e-6), source
    assert (run_dir / "evaluation-validation.json").exists()
    scores = scores_of(run_file, "evaluate.split=test", "evaluate.pseudo_perplexity_proteins=1")
    assert scores["model"] == str(tiny_model) and scores["pseudo_perplexity"] > 1
    number = scores["proteins"]
    assert scores["scored"] == f"{number} of {number} proteins"
    bounded = scores_of(run_file, "evaluate.split=test", "evaluate.packs=1")
    assert bounded["scored"] == f"{bounded['proteins']} of {number} proteins"
    assert bounded["proteins"] < number
    report = (run_dir / "report.html").read_text()
    assert f"scored {results['scored']}" in report


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--dry-run", "evaluate", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=240)


def test_make_scores_the_run_that_is_named(run_file: Path, tmp_path: Path) -> None:
    """Its own model, and not the one that it started from, by its own settings and in its own folder."""
    train_here(run_file, "train.max_steps=6")
    mine = (tmp_path / "runs" / "run").rename(tmp_path / "mine")
    command = shlex.split(make(f"RUN={mine}/").stdout.replace("\\\n", " "))
    config, *overrides = command[command.index("--config") + 1 :]
    scores = scores_of(Path(config), *overrides)
    results = json.loads((mine / "all_results.json").read_text())
    assert scores["model"] == str(mine / "model")
    assert scores["eval_loss"] == pytest.approx(results["eval_loss"], rel=1e-6)
    assert (mine / "evaluation-validation.json").exists()
    (mine / "model").rename(tmp_path / "model")
    with pytest.raises(ValueError, match="the run mine has not finished"):
        scores_of(Path(config), *overrides)
    elsewhere = make("RUN=runs/mine", "TARGET=slurm")
    assert (
        elsewhere.returncode and "RUN: got runs/mine, a folder of this machine" in elsewhere.stderr
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.init_from=null", "the run run has not finished"),
        ("model.init_from=.", "holds neither config.json (transformers) nor checkpoint.json"),
        ("model.init_from=absent/none", "'absent/none' was not found as a folder here"),
    ],
)
def test_what_is_wrong_is_said(
    run_file: Path, override: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=re.escape(message)):
        scores_of(run_file, override)


def test_missing_data_are_prepared_and_the_scores_lie_beside_the_model(
    run_file: Path,
    tiny_model: Path,
    prepared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = shutil.copytree(tiny_model, tmp_path / "mine" / "model")
    data = [f"data.path={tmp_path / 'new'}", f"data.source=[{prepared.parent / 'proteins.fasta'}]"]
    scores_of(run_file, f"inference.model={model}", *data)
    assert (tmp_path / "new" / "manifest.json").exists()
    written = json.loads((tmp_path / "mine" / "evaluation-validation.json").read_text())
    assert written["model"] == str(model)
    monkeypatch.setattr(kinds, "prepare", lambda config: None)
    with pytest.raises(ValueError, match=r"none holds no prepared data: .* run make data first"):
        scores_of(run_file, f"data.path={tmp_path / 'none'}")


def test_progress_of_a_scoring_is_printed_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for unit, end in (("", ""), ("residues", " residues")):
        clock = iter([0.0, 4.0, 11.0, 15.0])
        # Only this module's clock: threads of other tests read the real one.
        monkeypatch.setattr(work_progress, "time", SimpleNamespace(monotonic=partial(next, clock)))
        shown = work_progress.WorkProgress("scoring", 2000, unit)
        for _ in range(3):
            shown.add(550)
        rate = ", 100 residues/s, ETA 0:00:09" if unit else ""
        assert capsys.readouterr().err == f"scoring: 1,100 of 2,000{end} (55%){rate}\n"
