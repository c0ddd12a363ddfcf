"""Stages of a run, for programs that start them on a cluster. Imported on nodes: standard library only."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from workloads.bionemo.files import checkpoint_step
from workloads.esm2.inference.output_file import num_parts


def newest_checkpoint(run_dir: str, output: str = "") -> int:
    """Return the step of the last complete checkpoint; 0 if there is none."""
    found = (Path(run_dir) / "checkpoints").glob("step-" + "[0-9]" * 8)
    return max((int(path.name.removeprefix("step-")) for path in found), default=0)


@dataclass(frozen=True)
class Stage:
    program: tuple[str, ...]
    """Module of each process, and its subcommand."""
    trains: bool = False
    """Runs on all nodes by default, after its data are prepared."""
    writes_table: bool = False
    """Writes a table part by part, as inference does."""
    data_program: tuple[str, ...] = ("workloads", "data")
    """Program that prepares the training data, in one process."""
    pod_data_program: tuple[str, ...] = ("workloads.prepare",)
    """Program that prepares the data in the pods of a job; all of them run it."""
    retries: int = 3
    """Restarts by Kubernetes. Stages that cannot resume get few, because most failures are permanent."""
    result_file: str = "metrics.jsonl"
    """Name of the result in the run folder, unless the stage writes a table."""
    progress: Callable[[str, str], int] = newest_checkpoint
    """Returns the progress for a run folder and an output, as a number that only grows."""

    @property
    def resumes(self) -> bool:
        """Whether the stage continues where an earlier start stopped."""
        return self.trains or self.writes_table

    def results(self, run_dir: str, output: str) -> dict[str, str]:
        """Return the paths of the results by name."""
        if output:
            return {"results": output}
        name = "metrics" if self.result_file == "metrics.jsonl" else "results"
        return {name: f"{run_dir}/{self.result_file}", "report": f"{run_dir}/report.html"}


RESUMED = 10
"""Restarts of a stage that resumes."""


def _parts(run_dir: str, output: str) -> int:
    return num_parts(Path(output))


STAGES: Mapping[str, Stage] = {
    "data": Stage(("workloads", "data")),
    "train": Stage(("workloads", "train"), trains=True, retries=RESUMED),
    "evaluate": Stage(("workloads", "evaluate")),
    "embed": Stage(("workloads", "embed"), writes_table=True, retries=RESUMED, progress=_parts),
    "predict": Stage(("workloads", "predict"), writes_table=True, retries=RESUMED, progress=_parts),
    "variants": Stage(("workloads", "variants"), writes_table=True, retries=RESUMED, progress=_parts),
    "contacts": Stage(("workloads", "contacts"), writes_table=True, retries=RESUMED, progress=_parts),
    "scorecard": Stage(("workloads", "scorecard"), retries=RESUMED, result_file="scorecard.json"),
    "layers": Stage(("workloads", "layers"), retries=RESUMED, result_file="layers.csv"),
    "bandwidth": Stage(("workloads.launch.network.bandwidth",), retries=1, result_file="bandwidth.json"),
    "train-bionemo": Stage(
        ("workloads.bionemo.train",),
        trains=True,
        retries=RESUMED,
        data_program=("workloads.bionemo.data",),
        pod_data_program=("workloads.bionemo.data",),
        progress=lambda run_dir, _: checkpoint_step(Path(run_dir)),
    ),
    "convert-bionemo": Stage(("workloads", "convert-bionemo")),
}
