"""Every stage of a run on the embedded sample, and what ``make status``, ``tail`` and ``fetch`` say of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoModelForMaskedLM

from tests.cluster.cluster import Cluster
from tests.cluster.training import HOME, job_of, log_of, submit, tool, wait_for_end
from tests.workloads.esm2.training_runs import largest_difference, losses

# Paths are below the user's folder, as in the shipped run files.
SAMPLE = (
    *("data.source=[sample]", "data.path=data/sample", "train.max_steps=30"),
    *("train.tokens_per_pack=512", "train.tokens_per_step=1024"),
)


def test_data_then_both_modes_then_a_score(cluster: Cluster, home: Path) -> None:
    data = submit(cluster, "name=sample", *SAMPLE, stage="data", nodes="1")
    wait_for_end(cluster, data["job"], log_of(cluster, data))
    splits = json.loads((home / "data/sample/manifest.json").read_text())["splits"]
    assert splits["train"]["records"] > 1000
    ddp = submit(cluster, "name=sample", *SAMPLE, "parallel.mode=ddp")
    fsdp = submit(cluster, "name=sample_fsdp", *SAMPLE, "parallel.mode=fsdp")
    shown = tool(cluster, "tools.jobs", "status")
    assert f"job {ddp['job']}  run sample  " in shown and f"job {fsdp['job']}  run sample_fsdp  " in shown
    # Ends with the job, by itself.
    said = tool(cluster, "tools.jobs", "tail", ddp["job"])
    assert f"{HOME}/data/sample" not in said, "data are prepared once"
    assert f"done: {HOME}/runs/sample\n" in said
    wait_for_end(cluster, ddp["job"], log_of(cluster, ddp))
    score = submit(cluster, "name=sample", *SAMPLE, "model.init_from=null", stage="evaluate", nodes="1")
    # Beside the second training: there are three nodes.
    wait_for_end(cluster, score["job"], log_of(cluster, score))
    wait_for_end(cluster, fsdp["job"], log_of(cluster, fsdp))
    runs = home / "runs"
    assert largest_difference(losses(runs / "sample"), losses(runs / "sample_fsdp")) < 1e-5
    results = json.loads((runs / "sample" / "all_results.json").read_text())
    assert results["world_size"] == 2 and job_of(cluster, ddp["job"])["NumNodes"] == "2"

    printed = tool(cluster, "tools.jobs", "fetch", score["job"], f"--to={HOME}/fetched")
    fetched = home / "fetched" / "sample"
    assert f"{HOME}/fetched/sample/report.html" in printed
    assert "<svg" in (fetched / "report.html").read_text()
    model = AutoModelForMaskedLM.from_pretrained(fetched / "model")
    assert model.num_parameters() >= results["parameters"]
    found = json.loads((fetched / "evaluation-validation.json").read_text())
    assert found["eval_loss"] == pytest.approx(results["eval_loss"], rel=1e-5)
