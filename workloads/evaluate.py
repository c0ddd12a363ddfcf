"""Score a model on a prepared split (``seqlm evaluate``).

The model is the run's own, or ``inference.model``: a folder that transformers reads, a checkpoint, or a hub
id. A pre-training run scores ``model.init_from`` if that is set. ``evaluate.split`` selects the split. Masks,
crops and drawn cluster members are fixed, so the scores of different models can be compared.

A run with a task has the task's scores. A run on questions has ROUGE in addition to the loss.
"""

import os
import re
import sys
from pathlib import Path

from workloads import run_kinds
from workloads.esm2.inference.output_file import default_folder
from workloads.inference import check_model
from workloads.run_file import RunFile
from workloads.training.data.manifest import MANIFEST_FILE
from workloads.training.heartbeat import beat


def main(config: RunFile) -> None:
    """Score the model. Data that are not prepared yet are prepared first, unless torchrun started this.

    Raises:
        ValueError: for a missing model, or data that are missing and cannot be prepared.
    """
    base = None if config.task or config.chat else config.model.init_from
    if config.inference.model or not base:
        check_model(config)
    if "RANK" not in os.environ:
        named = config.inference.model or base or str(config.run_dir / "model")
        if warning := run_kinds.short_training(named):
            print(warning, file=sys.stderr)
        if not (Path(config.data.path) / MANIFEST_FILE).exists():
            run_kinds.prepare(config)
    # These bring torch.
    from workloads.training.hardware import environment
    from workloads.training.processes import processes
    from workloads.training.tracking.run_log import write_results

    beat("starting", slow=True)
    with processes() as here:
        scores = run_kinds.kind_of(config).score(config, here)
        if not here.is_first:
            return
        for name, value in scores.items():
            print(f"{name:18} {value:.4f}" if isinstance(value, float) else f"{name:18} {value}")
        folder = default_folder(config)
        folder.mkdir(parents=True, exist_ok=True)
        # The score of another model must not replace the run's own.
        model = str(scores["model"])
        name = "" if Path(model) == folder / "model" else re.sub(r"[^\w.-]+", "-", model).strip("-.")
        file = f"evaluation-{config.evaluate.split}{'-' if name else ''}{name}.json"
        write_results(folder, {**scores, "environment": environment(here.device)}, file)
        print(f"{'written to':18} {folder / file}")
