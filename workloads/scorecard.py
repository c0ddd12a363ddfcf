"""Score what a model knows (``seqlm scorecard``).

Writes an HTML page and JSON: perplexity, variant effects, contacts, and frozen probes of secondary structure
and localization. ``scorecard.proteingym`` adds ProteinGym (``workloads/esm2/scorecard/command.py``).
"""

import os
import sys
from pathlib import Path

from workloads import run_kinds
from workloads.families import INFERENCE
from workloads.inference import check_head, check_model
from workloads.launch.local import on_every_device, processes_and_threads
from workloads.run_file import RunFile
from workloads.training.data.manifest import MANIFEST_FILE
from workloads.training.heartbeat import beat


def main(config: RunFile) -> None:
    """Score the model. Data that are not prepared yet are prepared first, unless torchrun started this.

    Raises:
        ValueError: for a missing model, or data that are missing and cannot be prepared.
    """
    check_model(config)
    model = config.inference.model or str(config.run_dir / "model")
    check_head("variants", model)
    if "RANK" not in os.environ:
        if warning := run_kinds.short_training(model):
            print(warning, file=sys.stderr)
        if not (Path(config.data.path) / MANIFEST_FILE).exists():
            run_kinds.prepare(config)
        # The bundled parts are small: one process computes them with all cores.
        if config.scorecard.proteingym and processes_and_threads()[0] > 1:
            raise SystemExit(on_every_device(f"scorecard {config.name}"))
    from workloads.training.processes import processes

    beat("starting", slow=True)
    with processes() as here:
        INFERENCE["scorecard"](config, here)
        here.sum_on_host(0.0)  # the others wait here: a job ends when one of its pods does
