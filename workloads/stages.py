"""Stages of a run, for whoever starts them on a cluster. Standard library alone: nodes read it, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from workloads.bionemo.checkpoints import checkpoint_step
from workloads.esm2.inference.output_file import num_parts


def newest_checkpoint(run_dir: str, output: str = "") -> int:
    """Step of the last whole checkpoint; 0 without."""
    found = (Path(run_dir) / "checkpoints").glob("step-" + "[0-9]" * 8)
    return max((int(path.name.removeprefix("step-")) for path in found), default=0)


@dataclass(frozen=True)
class Stage:
    module: str
    """Program of each process."""
    trains: bool = False
    """On all nodes if no number is asked for, and with its data prepared before."""
    writes_table: bool = False
    """Part by part: inference."""
    data_module: str = "workloads.prepare"
    """Program that prepares what it trains on, in one process."""
    pod_data_module: str = "workloads.prepare_in_pod"
    """The same, run by all pods of a job."""
    retries: int = 3
    """Restarts by Kubernetes. A stage that does not resume has little to lose, and mostly fails for good."""
    result_file: str = "metrics.jsonl"
    """In the run folder, unless it writes a table."""
    progress: Callable[[str, str], int] = newest_checkpoint
    """(run folder, output) -> how far it has come; it only grows."""

    @property
    def resumes(self) -> bool:
        """Whether it goes on where an earlier start has come to."""
        return self.trains or self.writes_table

    def results(self, run_dir: str, output: str) -> dict[str, str]:
        """Return the paths of its results by name."""
        if output:
            return {"results": output}
        name = "metrics" if self.result_file == "metrics.jsonl" else "results"
        return {name: f"{run_dir}/{self.result_file}", "report": f"{run_dir}/report.html"}


RESUMED = 10
"""Retries of a stage that resumes."""


def _parts(run_dir: str, output: str) -> int:
    return num_parts(Path(output))


STAGES: Mapping[str, Stage] = {
    "data": Stage("workloads.prepare"),
    "train": Stage("workloads.train", trains=True, retries=RESUMED),
    "evaluate": Stage("workloads.evaluate"),
    "embed": Stage("workloads.embed", writes_table=True, retries=RESUMED, progress=_parts),
    "predict": Stage("workloads.predict", writes_table=True, retries=RESUMED, progress=_parts),
    "variants": Stage("workloads.variants", writes_table=True, retries=RESUMED, progress=_parts),
    "bandwidth": Stage("workloads.launch.network.bandwidth", retries=1, result_file="bandwidth.json"),
    "train-bionemo": Stage(
        "workloads.bionemo.train",
        trains=True,
        retries=RESUMED,
        data_module="workloads.bionemo.data",
        pod_data_module="workloads.bionemo.data",
        progress=lambda run_dir, _: checkpoint_step(Path(run_dir)),
    ),
    "convert-bionemo": Stage("workloads.bionemo.convert"),
}
