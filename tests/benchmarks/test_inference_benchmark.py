"""The benchmark of embeddings compares arms that compute the same."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import EsmForMaskedLM

from benchmarks.inference import main
from workloads.esm2.model import published_config
from workloads.esm2.pretrained import save_model


def test_arms_give_the_same_embeddings(tmp_path: Path) -> None:
    config = published_config("8M")
    config.num_hidden_layers, config.hidden_size = 2, 32
    config.num_attention_heads, config.intermediate_size = 4, 64
    torch.manual_seed(0)
    save_model(tmp_path / "model", config, EsmForMaskedLM(config).state_dict())
    out = tmp_path / "out.json"
    threads = torch.get_num_threads()
    try:
        sizes = ["--batch-sizes", "1", "--proteins", "3", "--rounds", "2"]
        main(["--model", str(tmp_path / "model"), *sizes, "--json", str(out)])
    finally:
        torch.set_num_threads(threads)
    result = json.loads(out.read_text())
    differences = {name: arm["largest_relative_difference"] for name, arm in result["arms"].items()}
    assert {"pipeline, batch 1", "pipeline, batch 8", "ours, fp32"} <= differences.keys()
    for name, difference in differences.items():
        assert difference < (0.03 if "bf16" in name else 1e-5), name
    assert set(result["ratios"]) >= {f"ours, fp32 / {name}" for name in differences if "ours" not in name}
