"""Output path of a command of inference. Imported by job supervisors: standard library only."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from seqlm.runs.inference_commands import inference_command

if TYPE_CHECKING:
    from seqlm.runs.run_file import RunFile


def output_file(config: "RunFile", command: str) -> Path:
    """Return ``inference.output``, or the command's default file.

    Raises:
        ValueError: if the name has none of the command's formats.
    """
    record = inference_command(command)
    formats = record.formats
    if config.inference.output:
        path = Path(config.inference.output)
    else:
        path = default_folder(config) / f"{record.output_name}{formats[0]}"
    if path.suffix not in formats:
        raise ValueError(
            f"inference.output: got {path}; its name must end in {' or '.join(formats)}"
        )
    return path


def default_folder(config: "RunFile") -> Path:
    """Return the folder that holds the model, or the run folder of a checkpoint.

    For hub ids, and if the user cannot write beside the model, it is the folder of this run.
    """
    model = Path(config.inference.model or config.run_dir / "model")
    holder = model.parent.parent if model.parent.name == "checkpoints" else model.parent
    return holder if os.path.isdir(model) and os.access(holder, os.W_OK) else config.run_dir
