"""Load for a server: real proteins, as many clients as are asked for; a file for locust, which runs it.

    make bench-serve ARGS="--users 16 --run-time 60s"

It has an environment of its own (.venv-locust) and imports nothing of this repository. PROTEINS_A_REQUEST is
how many proteins a request has (1).
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import random
from pathlib import Path

from locust import FastHttpUser, constant, task

SAMPLE = Path(__file__).parents[1] / "workloads/esm2/data/sample/proteins.fasta.gz"
MAX_RESIDUES = 1022
NUM_PROTEINS = 2000
PER_REQUEST = int(os.environ.get("PROTEINS_A_REQUEST", "1"))


def proteins() -> list[str]:
    """The first of the sample that the server takes."""
    with gzip.open(SAMPLE, "rt") as file:
        records = file.read().split(">")[1:]
    sequences = ("".join(record.splitlines()[1:]) for record in records)
    short = (sequence for sequence in sequences if len(sequence) <= MAX_RESIDUES)
    return list(itertools.islice(short, NUM_PROTEINS))


PROTEINS = proteins()


class Client(FastHttpUser):  # type: ignore[misc]  # mypy sees no locust
    """Sends the next request when it has the answer to the last one."""

    wait_time = constant(0)

    def on_start(self) -> None:
        self.random = random.Random(id(self))

    @task  # type: ignore[untyped-decorator]
    def invoke(self) -> None:
        body = json.dumps({"proteins": self.random.sample(PROTEINS, PER_REQUEST)})
        headers = {"Content-Type": "application/json"}
        self.client.post("/invocations", data=body, headers=headers, name="POST /invocations")
