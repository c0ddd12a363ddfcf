"""Every stage of a run on the embedded sample, and what ``make status``, ``tail`` and ``fetch`` say of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from transformers import AutoModelForMaskedLM

from tests.cluster.cluster import Cluster
from tests.cluster.training import HOME, job_of, log_of, submit, tool, wait_for_end

# Paths are below the user's folder, as in the shipped run files.
SAMPLE = (
    *("data.source=[sample]", "data.path=data/sample", "train.max_steps=10"),
    *("train.tokens_per_pack=512", "train.tokens_per_step=1024"),
)
MORE_THAN_THERE_IS = 1 << 40
"""Tokens of a pack: 1 TiB, a byte each."""


@pytest.fixture(scope="module")
def hopeless(cluster: Cluster, home: Path) -> dict[str, str]:
    """On a node of its own, beside the other stages."""
    size = (
        f"train.tokens_per_pack={MORE_THAN_THERE_IS}",
        f"train.tokens_per_step={MORE_THAN_THERE_IS}",
    )
    return submit(cluster, "name=hopeless", *size, nodes="1")


def test_data_then_training_then_a_score(
    cluster: Cluster, home: Path, hopeless: dict[str, str]
) -> None:
    """Training of a model that is sharded over the nodes; all others of these tests have copies."""
    data = submit(cluster, "name=sample", *SAMPLE, stage="data", nodes="1")
    wait_for_end(cluster, data["job"], log_of(cluster, data))
    splits = json.loads((home / "data/sample/manifest.json").read_text())["splits"]
    assert splits["train"]["records"] > 1000
    fsdp = submit(cluster, "name=sample", *SAMPLE, "parallel.mode=fsdp")
    shown = tool(cluster, "tools.jobs", "status")
    for job, run in ((fsdp, "sample"), (hopeless, "hopeless")):
        assert f"job {job['job']}  run {run}  " in shown
    # Ends with the job, by itself.
    said = tool(cluster, "tools.jobs", "tail", fsdp["job"])
    assert f"{HOME}/data/sample" not in said, "data are prepared once"
    assert f"done: {HOME}/runs/sample\n" in said
    wait_for_end(cluster, fsdp["job"], log_of(cluster, fsdp))
    score = submit(
        cluster, "name=sample", *SAMPLE, "model.init_from=null", stage="evaluate", nodes="1"
    )
    wait_for_end(cluster, score["job"], log_of(cluster, score))
    results = json.loads((home / "runs/sample/all_results.json").read_text())
    assert results["world_size"] == 2 and job_of(cluster, fsdp["job"])["NumNodes"] == "2"

    printed = tool(cluster, "tools.jobs", "fetch", score["job"], f"--to={HOME}/fetched")
    fetched = home / "fetched" / "sample"
    assert f"{HOME}/fetched/sample/report.html" in printed
    assert "<svg" in (fetched / "report.html").read_text()
    model = AutoModelForMaskedLM.from_pretrained(fetched / "model")
    assert model.num_parameters() >= results["parameters"]
    found = json.loads((fetched / "evaluation-validation.json").read_text())
    assert found["eval_loss"] == pytest.approx(results["eval_loss"], rel=1e-5)


def test_a_crash_that_comes_again_is_given_up(cluster: Cluster, hopeless: dict[str, str]) -> None:
    """A batch that does not fit into memory, anywhere and at any time."""
    log = log_of(cluster, hopeless)
    found = wait_for_end(cluster, hopeless["job"], log, "FAILED")
    assert found["ExitCode"] == "1:0" and found["Restarts"] == "0"
    said = log.read_text()
    assert said.count("Traceback") == 3 and "crash 3 of 3 since step 0" in said
    last = said.strip().rpartition("\n[")[2]
    assert re.search(
        r"given up; the first of these crashes was ip-\S+, process 0: status 1\n.*Unable to alloc",
        last,
    ), last
