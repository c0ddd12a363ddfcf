"""Score a model on a prepared split (``seqlm evaluate``).

The model is the run's own, or ``inference.model``: a folder that transformers reads, a checkpoint, or a hub
id. A pre-training run scores ``model.init_from`` if that is set.

``evaluate.split`` selects the split. Masks, crops and drawn cluster members are fixed, so the scores of
different models can be compared. A run with a task has the task's scores. A run on questions has ROUGE in
addition to the loss.

Data that are not prepared yet are prepared first, unless torchrun started this.
"""

import os
import re
import sys
from pathlib import Path

from seqlm.commands import kinds
from seqlm.commands.inference import check_model
from seqlm.proteins.inference.output_file import default_folder
from seqlm.runs.model_names import short_training
from seqlm.runs.run_file import RunFile
from seqlm.training.command_line import importing
from seqlm.training.data.manifest import MANIFEST_FILE
from seqlm.training.heartbeat import beat


def main(config: RunFile) -> None:
    """Score a model on a split.

    Raises:
        ValueError: for a missing model, or data that are missing and cannot be prepared.
    """
    base = None if config.task or config.chat else config.model.init_from
    if config.inference.model or not base:
        check_model(config)
    _prepare(config, config.inference.model or base or str(config.run_dir / "model"))
    with importing():
        from seqlm.training.hardware import environment  # these bring torch
        from seqlm.training.processes import processes
        from seqlm.training.tracking.run_log import write_results

    beat("starting", slow=True)
    with processes() as here:
        kind = kinds.kind_of(config)
        scores = kind.score(config, here)
        if not here.is_first:
            return
        for name, value in scores.items():
            shown = f"{value:.4f}" if isinstance(value, float) else value
            print(f"{name:18} {shown}")
        folder = default_folder(config)
        folder.mkdir(parents=True, exist_ok=True)
        file = _result_file(config, str(scores["model"]), folder)
        write_results(folder, {**scores, "environment": environment(here.device)}, file)
        print(f"{'written to':18} {folder / file}")
        for line in kind.counted(config, config.evaluate.split):
            print(line)


def _result_file(config: RunFile, model: str, folder: Path) -> str:
    """Return the name of the result; the score of another model must not replace the run's own."""
    stem = f"evaluation-{config.evaluate.split}"
    if Path(model) != folder / "model":
        stem += "-" + re.sub(r"[^\w.-]+", "-", model).strip("-.")
    return f"{stem}.json"


def _prepare(config: RunFile, model: str | None) -> None:
    """Warn of a model that was hardly trained, and prepare missing data, unless torchrun started this."""
    if "RANK" in os.environ:
        return
    if warning := short_training(model):
        print(warning, file=sys.stderr)
    if not (Path(config.data.path) / MANIFEST_FILE).exists():
        kinds.prepare(config)
