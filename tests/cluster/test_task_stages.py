"""A fine-tuning by a user's table, its predictions through a time limit, and what fetch brings."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForSequenceClassification

from seqlm.launch.progress import complete_parts
from tests.cluster.cluster import Cluster
from tests.cluster.patience import wait_until
from tests.cluster.training import HOME, USER, log_of, submit, tool, wait_for_end
from tests.workloads.proteins.finetune.labelled_proteins import write_table

TASK = (
    *("name=tuned", "data.path=data/table", f"task.table=[{HOME}/table.csv]", "task.kind=binary"),
    *("task.label_columns=[membrane]", "task.split.column=fold"),
    *("task.split.validation=[3]", "task.split.test=[4]", "lora.lr=1e-2", "train.max_steps=30"),
)
NUM_OTHERS = 1500
"""Proteins whose predictions take seconds, one by one."""
PREDICT = (
    *(f"inference.input=[{HOME}/table.csv, {HOME}/others.fasta]", "inference.long_proteins=crop"),
    *("inference.tokens_per_pack=128", "inference.part_residues=4000"),
)


@pytest.fixture(scope="module")
def results(cluster: Cluster, home: Path) -> dict[str, Any]:
    """Train a task on two nodes, in a job that also prepares the table, and return the results."""
    write_table(home / "table.csv")
    training = submit(cluster, *TASK)
    wait_for_end(cluster, training["job"], log_of(cluster, training))
    found: dict[str, Any] = json.loads((home / "runs/tuned/all_results.json").read_text())
    assert found["world_size"] == 2 and found["test_samples"] > 20
    return found


@pytest.fixture(scope="module")
def predicted(cluster: Cluster, home: Path, results: dict[str, Any]) -> dict[str, str]:
    """The job that has predicted, through a time limit."""
    (home / "others.fasta").write_text(
        "".join(f">X{n}\n{'MKVLAAGIVG' * 12}\n" for n in range(NUM_OTHERS))
    )
    job = submit(cluster, *TASK, *PREDICT, stage="predict", nodes="1")
    output = home / "runs/tuned/predictions.csv"
    log = log_of(cluster, job)
    assert job["results"] == f"{HOME}/runs/tuned/predictions.csv"
    wait_until(
        lambda: complete_parts(output.parent, str(output)) > 1,
        "some parts",
        seconds=240,
        pause_seconds=0.05,
    )
    # As Slurm does before a time limit.
    cluster.login.run(["scancel", "--batch", "--signal=USR1", job["job"]], user=USER)
    assert wait_for_end(cluster, job["job"], log)["Restarts"] == "1"
    said = log.read_text()
    limit = r"ended on SIGUSR1; parts that are written: (\d+)\n.*requeue 1 since part \1: the time limit"
    stopped = re.search(limit, said)
    assert stopped and f"continuing: {stopped[1]} of " in said, said
    assert f"done: {HOME}/runs/tuned/predictions.csv\n" in said
    return job


def test_everything_is_fetched_and_fits_together(
    cluster: Cluster, home: Path, results: dict[str, Any], predicted: dict[str, str]
) -> None:
    tool(cluster, "tools.jobs", "fetch", predicted["job"], f"--to={HOME}/fetched")
    run = home / "fetched/tuned"
    assert (
        "<svg" in (run / "report.html").read_text()
        and (run / "adapter/adapter_config.json").exists()
    )
    model = AutoModelForSequenceClassification.from_pretrained(run / "model")
    assert model.config.id2label == {0: "membrane"}
    table = rows(home / "table.csv")
    answers = rows(run / "predictions.csv")
    names = [row["id"] for row in table] + [f"X{n}" for n in range(NUM_OTHERS)]
    assert [answer["id"] for answer in answers] == names
    # Those of the run's own test split, which were computed at its end.
    found = {answer["id"]: float(answer["probability_membrane"]) for answer in answers}
    tested = {
        row["id"]: float(row["probability_membrane"]) for row in rows(run / "predictions-test.csv")
    }
    assert len(tested) == results["test_samples"]
    assert {name: found[name] for name in tested} == pytest.approx(tested, abs=1e-5)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))
