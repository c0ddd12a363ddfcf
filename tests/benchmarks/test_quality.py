"""At equal residues, ours learns at least what the best Trainer set-up learns, on real proteins."""

import gzip
import json
import math
from itertools import islice
from pathlib import Path

import pytest
import torch
from transformers import EsmForMaskedLM

from benchmarks import training
from benchmarks.quality import MAX_LOSS_RATIO
from workloads.esm2.data.prepare import prepare
from workloads.esm2.data.sources import SAMPLE
from workloads.esm2.model import published_config
from workloads.esm2.pretrained import save_model

NUM_PROTEINS = 1200
"""Of the sample: more than what any arm sees, and the Trainer's tokenizer needs seconds for each thousand."""
RESIDUES = 100_000


def test_loss_at_equal_residues_is_that_of_the_best_trainer(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fasta = tmp_path / "proteins.fasta"
    with gzip.open(SAMPLE, "rt") as sample:
        records = sample.read().split(">")[1:]
    fasta.write_text("".join(f">{record}" for record in islice(records, NUM_PROTEINS)))
    prepare([fasta], tmp_path / "data", seed=0, validation_fraction=0.1, test_fraction=0, progress=False)
    # A model small enough to learn something within a test.
    config = published_config("8M")
    config.num_hidden_layers, config.hidden_size, config.intermediate_size = 2, 64, 256
    config.num_attention_heads = 4
    torch.manual_seed(0)
    save_model(tmp_path / "model", config, EsmForMaskedLM(config).state_dict())
    arguments = ["--quick", "--quality", "--residues", str(RESIDUES), "--json", str(tmp_path / "out.json")]
    arguments += ["--model", str(tmp_path / "model"), "--data", str(tmp_path / "data")]
    training.main(arguments)
    result = json.loads((tmp_path / "out.json").read_text())["quality"]
    runs = {run["arm"]: run["points"] for run in result["runs"]}
    assert list(runs) == ["A", "A'", "B"]
    for points in runs.values():
        residues = [point["residues"] for point in points]
        assert residues == sorted(residues)
        assert residues[-1] == pytest.approx(RESIDUES, rel=0.2)
        assert all(point["loss"] < math.log(33) for point in points)
    first, last = (runs["B"][index]["loss"] for index in (0, -1))
    assert last < first - 0.1, "the comparison must be about something learnt"
    assert result["loss_of_b_over_a_prime"] <= MAX_LOSS_RATIO
    assert "loss of B over A'" in capfd.readouterr().out
