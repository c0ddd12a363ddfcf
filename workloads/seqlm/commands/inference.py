"""Run a command of inference; most mistakes are reported before torch is imported."""

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

from seqlm.commands.functions import function_named
from seqlm.commands.kinds import prepare
from seqlm.launch.local import on_every_device, processes_and_threads
from seqlm.proteins.data.sources import PROTEINS
from seqlm.proteins.families.table import saved_architectures, saved_config
from seqlm.proteins.inference.model_head import check_head
from seqlm.proteins.inference.output_file import output_file
from seqlm.runs.inference_commands import (
    FEW_BYTES,
    INFERENCE_COMMANDS,
    MASKED_LM,
    InferenceCommand,
    inference_command,
)
from seqlm.runs.model_names import check_model_name, short_training
from seqlm.runs.run_file import RunFile
from seqlm.training.command_line import importing
from seqlm.training.data.manifest import MANIFEST_FILE
from seqlm.training.data.transfer import fetch, local_files
from seqlm.training.heartbeat import beat


def run_inference(name: str, config: RunFile) -> None:
    """Run a command of inference, with one process per device unless the input is small.

    Raises:
        ValueError: if the model, the input or the output cannot be used, or data are missing and cannot be
            prepared.
    """
    command = inference_command(name)
    if command.needs_task and config.task is None:
        raise ValueError(
            f"task: {name} needs a labelled table; give the run file of a task: CONFIG= with make, else "
            "--config"
        )
    named_by = "inference.model"
    if command.uses_starting_model and config.inference.model is None and config.model.init_from:
        named_by = "model.init_from"
        inference = dataclasses.replace(config.inference, model=config.model.init_from)
        config = dataclasses.replace(config, inference=inference)
    output_file(config, name)
    if command.by_parts:
        for location in local_files(
            [*config.inference.input, config.inference.mutations], PROTEINS
        ):
            fetch(location, Path(config.data.downloads), PROTEINS)
    check_models(name, command, config, named_by)
    if "RANK" not in os.environ:
        _before_processes(name, command, config)
    with importing():
        from seqlm.training.processes import processes  # imports torch

    beat("starting", slow=True)
    with processes() as here:
        function_named(command.run)(config, here)
        if not command.by_parts:
            here.sum_on_host(
                0.0
            )  # a job on Kubernetes ends when one of its pods does, so all wait here


def check_models(name: str, command: InferenceCommand, config: RunFile, named_by: str) -> None:
    """Raise ValueError if a folder of a model does not exist, or holds a model without the needed head.

    Args:
        name: name of the command.
        command: command.
        config: run file.
        named_by: field that names the model, for the message.
    """
    models = config.inference.models
    if models and not command.takes_models:
        others = ", ".join(key for key, one in INFERENCE_COMMANDS.items() if one.takes_models)
        raise ValueError(
            f"inference.models: {name} reads one model; set inference.model. Several are read by {others}"
        )
    if not models:
        check_model(config, named_by)
    for model in models:
        check_model_name("inference.models", model)
    for model in config.scored_models:
        if saved_config(Path(model)):  # a model of the hub is checked when it is loaded
            check_head(name, model, saved_architectures(Path(model)) or [MASKED_LM])


def _before_processes(name: str, command: InferenceCommand, config: RunFile) -> None:
    """Check what needs no model, prepare missing data, and start one process per device for large inputs.

    Raises:
        ValueError: for a mistake in the input or the output, or data that cannot be prepared.
        SystemExit: with the status of the processes, if this started them.
    """
    if command.by_parts:
        _check_files(name, command, config)
    for model in config.scored_models:
        if warning := short_training(model):
            print(warning, file=sys.stderr)
    if command.reads_prepared_data and not (Path(config.data.path) / MANIFEST_FILE).exists():
        prepare(config)
    if not is_small(command, config) and processes_and_threads()[0] > 1:
        raise SystemExit(on_every_device(f"{name} {config.name}"))


def check_model(config: RunFile, named_by: str = "inference.model") -> None:
    """Raise ValueError if the folder of the model does not exist.

    Args:
        config: run file.
        named_by: field that names the model, for the message.
    """
    name = config.inference.model
    trained = config.run_dir / "model"
    if (name is None or Path(name) == trained) and not trained.is_dir():
        merges_none = ", or merges no model (lora.merge)" if config.lora else ""
        raise ValueError(
            f"{trained} does not exist: the run {config.name} has not finished{merges_none}. Train it first, "
            "or name a model folder, checkpoint or hub id: MODEL= with make, else --model (inference.model)"
        )
    if name is not None:
        check_model_name(named_by, name)


def _check_files(name: str, command: InferenceCommand, config: RunFile) -> None:
    """Raise ValueError for mistakes in local inputs and the output that can be found without the model."""
    from seqlm.proteins.inference.mutation_table import read_mutations
    from seqlm.proteins.inference.output import Output
    from seqlm.proteins.inference.records import records_of
    from seqlm.proteins.structures.matching import read_named

    locations = local_files(config.inference.input, PROTEINS)
    for location in locations:
        next(records_of(config, [location]), None)
    inference = config.inference
    if command.reads_structure and inference.structure is not None:
        read_named(inference.structure)
    if command.reads_mutations and inference.mutations is not None:
        read_mutations(Path(inference.mutations), inference.mutation_column, inference.id_column)
    if len(locations) == len(config.inference.input):
        Output(config, name).check_free()


def is_small(command: InferenceCommand, config: RunFile) -> bool:
    """Return whether this process computes the inputs alone, because starting others would take longer."""
    if command.one_process:
        return True
    paths = [Path(location) for field in command.inputs for location in _values(config, field)]
    if not all(path.is_file() and path.suffix != ".gz" for path in paths):
        return False
    has_list = command.reads_mutations and config.inference.mutations is not None
    limit = FEW_BYTES if has_list else command.small_bytes
    return sum(path.stat().st_size for path in paths) <= limit


def _values(config: RunFile, field: str) -> tuple[str, ...]:
    """Return the locations in a field of the run file."""
    value: Any = config
    for part in field.split("."):
        value = getattr(value, part)
    return tuple(value)
