"""Start a command of inference; most mistakes are reported before torch is imported."""

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from seqlm.launch.local import on_every_device, processes_and_threads
from seqlm.proteins.data.sources import PROTEINS
from seqlm.proteins.families.table import saved_config
from seqlm.proteins.inference.output_file import output_file
from seqlm.runs.families import INFERENCE
from seqlm.runs.kinds import check_model_name, short_training
from seqlm.runs.run_file import RunFile
from seqlm.training.data.transfer import fetch, local_files
from seqlm.training.heartbeat import beat

SMALL_BYTES = {"embed": 30_000, "predict": 30_000, "variants": 1_000, "contacts": 30_000}
"""Largest input that this process computes alone, because starting others would take longer. All mutants of
a protein of L residues take the arithmetic of about L**2 residues."""

MASKED_LM, FINE_TUNED = "ForMaskedLM", ("ForSequenceClassification", "ForTokenClassification")
"""Ends of the architectures' names of models without and with a task."""


def run_inference(name: str, config: RunFile) -> None:
    """Run a command of inference, with one process per device unless the input is small.

    Raises:
        ValueError: if the model, the input or the output cannot be used.
    """
    output_file(config, name)
    for location in local_files([*config.inference.input, config.inference.mutations], PROTEINS):
        fetch(location, Path(config.data.downloads), PROTEINS)
    check_model(config)
    check_head(name, config.inference.model or str(config.run_dir / "model"))
    if "RANK" not in os.environ:
        _check_files(name, config)
        if warning := short_training(config.inference.model or str(config.run_dir / "model")):
            print(warning, file=sys.stderr)
        if not _is_small(name, config) and processes_and_threads()[0] > 1:
            raise SystemExit(on_every_device(f"{name} {config.name}"))
    from seqlm.training.processes import processes

    beat("starting", slow=True)
    with processes() as here:
        INFERENCE[name](config, here)


# The subcommands that workloads/seqlm/runs/stages.py names.
embed = partial(run_inference, "embed")
predict = partial(run_inference, "predict")
variants = partial(run_inference, "variants")
contacts = partial(run_inference, "contacts")


def check_model(config: RunFile) -> None:
    """Raise ValueError if the folder of the model does not exist."""
    name = config.inference.model
    trained = config.run_dir / "model"
    if (name is None or Path(name) == trained) and not trained.is_dir():
        merges_none = ", or merges no model (lora.merge)" if config.lora else ""
        raise ValueError(
            f"{trained} does not exist: the run {config.name} has not finished{merges_none}. Train it first, "
            "or name a model folder, checkpoint or hub id: MODEL= with make, else --model (inference.model)"
        )
    if name is not None:
        check_model_name("inference.model", name)


def check_head(command: str, model: str, architectures: Sequence[str] | None = None) -> None:
    """Raise ValueError if the model has no task for ``predict``, or one for ``variants``.

    Args:
        command: command of inference.
        model: folder, or hub id.
        architectures: names in its config.json; by default those of the folder, if it is one.
    """
    if architectures is None:
        if not (saved := saved_config(Path(model))):
            return
        architectures = saved.get("architectures") or [MASKED_LM]
    if command == "predict" and any(name.endswith(MASKED_LM) for name in architectures):
        raise ValueError(
            f"{model} is a masked language model without a task, so it has nothing to predict; "
            "fine-tune it first (make finetune-lora), or use make embed or make variants"
        )
    if command == "variants" and any(name.endswith(FINE_TUNED) for name in architectures):
        raise ValueError(
            f"{model} has been fine-tuned for a task and predicts no residues; give a masked "
            "language model, as facebook/esm2_t6_8M_UR50D or the model of a pre-training run"
        )


def _check_files(name: str, config: RunFile) -> None:
    """Raise ValueError for mistakes in local inputs and the output that can be found without the model."""
    from seqlm.proteins.inference.mutations import read_mutations
    from seqlm.proteins.inference.output import Output
    from seqlm.proteins.inference.records import records_of

    locations = local_files(config.inference.input, PROTEINS)
    for location in locations:
        next(records_of(config, [location]), None)
    if config.inference.mutations is not None:
        read_mutations(Path(config.inference.mutations))
    if len(locations) == len(config.inference.input):
        Output(config, name).check_free()


def _is_small(name: str, config: RunFile) -> bool:
    paths = [Path(location) for location in config.inference.input]
    if not all(path.is_file() and path.suffix != ".gz" for path in paths):
        return False
    wild_types = SMALL_BYTES["embed" if config.inference.mutations else name]
    return sum(path.stat().st_size for path in paths) <= wild_types
