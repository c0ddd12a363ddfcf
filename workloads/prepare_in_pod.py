"""A run's data before its pods start: ``python -m workloads.prepare_in_pod --config RUN.yaml [...]``.

Every pod of a training job runs it. The first one fetches and prepares what is not there yet; the others wait
for it. What is there is taken without asking for its sources, which may be gone when a job starts again.
"""

from __future__ import annotations

from workloads import run_kinds
from workloads.launch.pod_data import once
from workloads.run_file import RunFile, run_stage


def main(config: RunFile) -> None:
    """Return when the data are there; how long that takes is the source's matter, and no time limit's.

    Raises:
        ValueError: if they cannot be had, or others are in their place.
    """
    once(
        lambda: run_kinds.is_prepared(config),
        lambda: run_kinds.prepare(config),
        f"another pod prepares {config.data.path}",
    )


if __name__ == "__main__":
    run_stage(main)
