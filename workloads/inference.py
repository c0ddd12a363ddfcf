"""Start of the commands of inference: what is wrong is reported before torch is imported."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from workloads.esm2.data.sources import PROTEINS
from workloads.esm2.inference.output_file import output_file
from workloads.families import INFERENCE, function
from workloads.launch.local import on_every_device, processes_and_threads
from workloads.run_file import RunFile
from workloads.run_kinds import short_training
from workloads.training.data.transfer import fetch, local_files
from workloads.training.heartbeat import beat

SMALL_BYTES = {"embed": 30_000, "predict": 30_000, "variants": 1_000}
"""Input up to this size is computed in this process: starting others takes longer. All mutants of L residues
take about L**2 residues of arithmetic."""


def run_inference(name: str, config: RunFile) -> None:
    """Run a command of inference, with one process for each device unless the input is small.

    Raises:
        ValueError: for a model, an input or an output that cannot be used.
    """
    output_file(config, name)
    for location in local_files([*config.inference.input, config.inference.mutations], PROTEINS):
        fetch(location, Path(config.data.downloads), PROTEINS)
    check_model(config)
    if "RANK" not in os.environ:
        if warning := short_training(config.inference.model or str(config.run_dir / "model")):
            print(warning, file=sys.stderr)
        if not _is_small(name, config) and processes_and_threads()[0] > 1:
            raise SystemExit(on_every_device(f"workloads.{name}", f"{name} {config.name}"))
    from workloads.training.processes import processes

    beat("starting", slow=True)
    with processes() as here:
        function(INFERENCE[name])(config, here)


def check_model(config: RunFile) -> None:
    """Raise ValueError if the model is a folder that is not there."""
    name = config.inference.model
    trained = config.run_dir / "model"
    if (name is None or Path(name) == trained) and not trained.is_dir():
        raise ValueError(
            f"{trained} does not exist: the run {config.name} has not finished. Train it first, or name a "
            "model: MODEL=<folder or hub id> (inference.model)"
        )
    # A hub id has the form owner/name, and so may a folder.
    if name is not None and not Path(name).is_dir() and (name[0] in "./~" or name.count("/") != 1):
        raise ValueError(
            f"inference.model: there is no folder {name} (looked in {Path.cwd()}); give the model folder of "
            "a run, such as runs/<name>/model, or a hub id, such as facebook/esm2_t6_8M_UR50D"
        )


def _is_small(name: str, config: RunFile) -> bool:
    paths = [Path(location) for location in config.inference.input]
    if not all(path.is_file() and path.suffix != ".gz" for path in paths):
        return False
    wild_types = SMALL_BYTES["embed" if config.inference.mutations else name]
    return sum(path.stat().st_size for path in paths) <= wild_types
