"""At equal residues, ours learns at least what the best Trainer set-up learns, on real proteins."""

import json
from pathlib import Path

import torch
from transformers import EsmForMaskedLM

from benchmarks import training
from benchmarks.quality import MAX_LOSS_RATIO
from workloads.esm2.model import published_config
from workloads.esm2.pretrained import save_model

RESIDUES = 300_000


def test_loss_at_equal_residues_is_that_of_the_best_trainer(tmp_path: Path) -> None:
    # A model small enough to get well below the composition of the sample within a test.
    config = published_config("8M")
    config.num_hidden_layers, config.hidden_size, config.intermediate_size = 2, 64, 256
    config.num_attention_heads = 4
    torch.manual_seed(0)
    save_model(tmp_path / "model", config, EsmForMaskedLM(config).state_dict())
    arguments = ["--quick", "--quality", "--residues", str(RESIDUES), "--json", str(tmp_path / "out.json")]
    arguments += ["--model", str(tmp_path / "model"), "--data", str(tmp_path / "sample")]
    training.main(arguments)
    result = json.loads((tmp_path / "out.json").read_text())["quality"]
    first, last = (
        next(run for run in result["runs"] if run["arm"] == "B")["points"][i]["loss"] for i in (0, -1)
    )
    assert last < first - 0.1, "the comparison must be about something learnt"
    assert result["loss_of_b_over_a_prime"] <= MAX_LOSS_RATIO
