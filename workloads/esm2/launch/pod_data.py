"""A run's data before its pods start: ``python -m workloads.esm2.launch.pod_data --config RUN.yaml [...]``.

Every pod of a training job runs it. The first one prepares what is not there yet; the others wait for it.
"""

from __future__ import annotations

import time

from ..command_line import run_command
from ..config import RunConfig
from ..data.run_data import prepare_run
from ..data.workspace import BeingPrepared

POLL_SECONDS = 5.0


def main(config: RunConfig) -> None:
    """Return when the data are there; how long that takes is the source's matter, and no time limit's."""
    is_told = False
    while True:
        try:
            prepare_run(config)
            return
        except BeingPrepared:
            if not is_told:
                print(f"another pod prepares {config.data.path}", flush=True)
            is_told = True
            time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    run_command(main)
