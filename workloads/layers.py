"""Compare layers for a task (``seqlm layers``).

Writes a CSV and a picture with the scores of frozen probes (``workloads/esm2/layers.py``).
"""

import os
from pathlib import Path

from workloads import run_kinds
from workloads.families import INFERENCE
from workloads.run_file import RunFile
from workloads.training.data.manifest import MANIFEST_FILE
from workloads.training.heartbeat import beat


def main(config: RunFile) -> None:
    """Compare the layers. Data that are not prepared yet are prepared first, unless torchrun started this.

    Raises:
        ValueError: if the run file has no task.
    """
    if config.task is None:
        raise ValueError("task: make layers needs a labelled table; set CONFIG to the run file of a task")
    if "RANK" not in os.environ and not (Path(config.data.path) / MANIFEST_FILE).exists():
        run_kinds.prepare(config)
    from workloads.training.processes import processes

    beat("starting", slow=True)
    with processes() as here:
        INFERENCE["layers"](config, here)
        here.sum_on_host(0.0)  # the others wait here: a job ends when one of its pods does
