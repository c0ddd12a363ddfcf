"""A run's data before its pods start: ``python -m workloads.launch.pod_data --config RUN.yaml [...]``.

Every pod of a training job runs it. The first one fetches and prepares what is not there yet; the others wait
for it. What is there is taken without asking for its sources, which may be gone when a job starts again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from workloads.esm2.data.run_data import prepare_run
from workloads.esm2.finetune.prepare import is_prepared
from workloads.training.command_line import run_command
from workloads.training.config import RunConfig
from workloads.training.data.manifest import MANIFEST_FILE, Manifest, Settings
from workloads.training.data.transfer import BeingFetched
from workloads.training.data.workspace import BeingPrepared

POLL_SECONDS = 5.0


def main(config: RunConfig) -> None:
    """Return when the data are there; how long that takes is the source's matter, and no time limit's.

    Raises:
        ValueError: if they cannot be had, or others are in their place.
    """
    once(
        lambda: is_there(config),
        lambda: prepare_run(config),
        f"another pod prepares {config.data.path}",
    )


def once(is_done: Callable[[], bool], do: Callable[[], object], when_waiting: str) -> None:
    """Have one of several pods do it, and the others wait; ``when_waiting`` is said by these, once."""
    is_told = False
    while not is_done():
        try:
            do()
            return
        except (BeingPrepared, BeingFetched):
            if not is_told:
                print(when_waiting, flush=True)
            is_told = True
            time.sleep(POLL_SECONDS)


def is_there(config: RunConfig) -> bool:
    """Whether data are there that were made of what the configuration names, in the way it says."""
    if config.chat is not None:
        from workloads.causal_lm import prepare  # brings torch

        return prepare.is_prepared(config)
    if config.task is not None:
        return is_prepared(config)
    data, folder = config.data, Path(config.data.path)
    if not (folder / MANIFEST_FILE).exists():
        return False
    manifest = Manifest.load(folder)
    wanted = Settings(
        seed=data.seed,
        validation_fraction=data.validation_fraction,
        test_fraction=data.test_fraction,
        members=bool(data.members),
    )
    locations = {*(data.members or data.source)}
    if data.members and data.membership:
        locations.add(data.membership)
    # A file of a folder is called <folder>/<file> there.
    made_of = {
        source.name if source.name in locations else source.name.rpartition("/")[0]
        for source in manifest.sources
    }
    return manifest.settings == wanted and made_of == locations


if __name__ == "__main__":
    run_command(main)
