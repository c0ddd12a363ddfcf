"""Judge a model: ``seqlm evaluate``, ``seqlm scorecard`` and ``seqlm layers``.

``evaluate`` scores a prepared split. The model is the run's own, or ``inference.model``: a folder that
transformers reads, a checkpoint, or a hub id. A pre-training run scores ``model.init_from`` if that is set.
``evaluate.split`` selects the split. Masks, crops and drawn cluster members are fixed, so the scores of
different models can be compared. A run with a task has the task's scores. A run on questions has ROUGE in
addition to the loss.

``scorecard`` writes an HTML page and JSON: perplexity, variant effects, contacts, and frozen probes of
secondary structure and localization. ``scorecard.proteingym`` adds ProteinGym
(``proteins/scorecard/command.py``).

``layers`` writes a CSV and a picture with the scores of frozen probes (``proteins/scorecard/layers.py``).

Data that are not prepared yet are prepared first, unless torchrun started this.
"""

import os
import re
import sys
from pathlib import Path

from seqlm.commands.inference import check_head, check_model
from seqlm.launch.local import on_every_device, processes_and_threads
from seqlm.proteins.inference.output_file import default_folder
from seqlm.runs import kinds as run_kinds
from seqlm.runs.families import INFERENCE
from seqlm.runs.run_file import RunFile
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
    # These bring torch.
    from seqlm.training.hardware import environment
    from seqlm.training.processes import processes
    from seqlm.training.tracking.run_log import write_results

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


def scorecard(config: RunFile) -> None:
    """Score what a model knows.

    Raises:
        ValueError: for a missing model, or data that are missing and cannot be prepared.
    """
    check_model(config)
    model = config.inference.model or str(config.run_dir / "model")
    check_head("variants", model)
    _prepare(config, model)
    # The bundled parts are small: one process computes them with all cores.
    if "RANK" not in os.environ and config.scorecard.proteingym and processes_and_threads()[0] > 1:
        raise SystemExit(on_every_device(f"scorecard {config.name}"))
    _run("scorecard", config)


def layers(config: RunFile) -> None:
    """Compare layers for a task.

    Raises:
        ValueError: if the run file has no task.
    """
    if config.task is None:
        raise ValueError("task: make layers needs a labelled table; set CONFIG to the run file of a task")
    _prepare(config, None)
    _run("layers", config)


def _prepare(config: RunFile, model: str | None) -> None:
    """Warn of a model that was hardly trained, and prepare missing data, unless torchrun started this."""
    if "RANK" in os.environ:
        return
    if warning := run_kinds.short_training(model):
        print(warning, file=sys.stderr)
    if not (Path(config.data.path) / MANIFEST_FILE).exists():
        run_kinds.prepare(config)


def _run(name: str, config: RunFile) -> None:
    """Run a command on all processes, which end together: a job ends when one of its pods does."""
    from seqlm.training.processes import processes

    beat("starting", slow=True)
    with processes() as here:
        INFERENCE[name](config, here)
        here.sum_on_host(0.0)  # the others wait here
