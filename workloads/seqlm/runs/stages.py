"""Subcommands of ``seqlm``, and how clusters run those that are stages of a job.

Imported on nodes: standard library only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from seqlm.bionemo.files import checkpoint_step
from seqlm.proteins.inference.output_file import num_parts
from seqlm.training.command_line import NO_USAGE, Usage


def newest_checkpoint(run_dir: str, output: str = "") -> int:
    """Return the step of the last complete checkpoint; 0 if there is none."""
    found = (Path(run_dir) / "checkpoints").glob("step-" + "[0-9]" * 8)
    return max((int(path.name.removeprefix("step-")) for path in found), default=0)


@dataclass(frozen=True)
class Stage:
    """Subcommand of ``seqlm`` that reads a run file, stage of a cluster's job, or both."""

    start: str
    """Function that the subcommand calls with the run file, as ``module:name`` below ``seqlm``."""
    usage: Usage = NO_USAGE
    """Command line of the subcommand."""
    on_clusters: bool = True
    """Whether jobs on clusters have this stage."""
    own_program: bool = False
    """Whether processes on a cluster run the module of ``start`` as a program, not the subcommand."""
    trains: bool = False
    """Runs on all nodes by default, after its data are prepared."""
    writes_table: bool = False
    """Writes a table part by part, as inference does."""
    data_program: tuple[str, ...] = ("seqlm", "data")
    """Program that prepares the training data, in one process."""
    pod_data_program: tuple[str, ...] = ("seqlm.commands.prepare",)
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
PROTEINS, TASK = "esm2_8m_sample", "membrane_sample"
"""Bundled run files."""
MODEL = {"--model": "inference.model"}
START = {"--model": "model.init_from"}
OUTPUT = {**MODEL, "--output": "inference.output"}
PREPARATION = ("data", "task", "guard", "chat", "model.init_from")
SCORING = (
    *("name", "runs", "model", "data", "evaluate", "inference.model", "task", "chat"),
    *("train.precision", "train.tokens_per_pack"),
)
INFERENCE = (
    *("name", "runs", "inference", "model.max_residues", "data.downloads", "data.allow_nucleotides"),
    *("train.precision", "train.compile", "task.id_column", "task.sequence_column"),
)
EXPLORE = (
    *("name", "runs", "explore", "inference.model", "inference.output", "inference.id_column"),
    *("inference.sequence_column", "task.table", "task.id_column", "task.sequence_column"),
)
LAYERS = (*INFERENCE, *PREPARATION)
PUBLISH = ("name", "runs", "publish", "inference.model", "inference.overwrite")
SCORECARD = (*INFERENCE, "data", "evaluate", "scorecard", "model.mask_fraction", "train.tokens_per_pack")
"""Fields of the run file that the subcommands read."""
_usage = partial(Usage, run_file=PROTEINS, options=START)


def _parts(run_dir: str, output: str) -> int:
    return num_parts(Path(output))


def _inference(name: str, summary: str) -> Stage:
    usage = _usage(summary, INFERENCE, options=OUTPUT, files="inference.input")
    return Stage(f"commands.inference:{name}", usage, writes_table=True, retries=RESUMED, progress=_parts)


SUBCOMMANDS: Mapping[str, Stage] = {
    "data": Stage(
        "commands.prepare:main", _usage("prepare the data of a run", PREPARATION, files="data.source")
    ),
    "train": Stage(
        "commands.train:main",
        _usage("pre-train or fine-tune a model, or continue a run"),
        trains=True,
        retries=RESUMED,
    ),
    "finetune": Stage(
        "commands.train:finetune",
        _usage("train for a task or on questions", run_file=TASK),
        on_clusters=False,
    ),
    "evaluate": Stage(
        "commands.evaluate:main", _usage("score a model on prepared data", SCORING, options=MODEL)
    ),
    "embed": _inference("embed", "write embeddings of proteins"),
    "predict": _inference("predict", "label proteins with a fine-tuned model"),
    "variants": _inference("variants", "score the effects of mutations"),
    "contacts": _inference("contacts", "predict contacts within proteins"),
    "scorecard": Stage(
        "commands.evaluate:scorecard",
        _usage("score what a model knows, on an HTML page", SCORECARD, options=OUTPUT),
        retries=RESUMED,
        result_file="scorecard.json",
    ),
    "layers": Stage(
        "commands.evaluate:layers",
        _usage("compare layers and poolings for a task", LAYERS, run_file=TASK, options=OUTPUT),
        retries=RESUMED,
        result_file="layers.csv",
    ),
    "explore": Stage(
        "proteins.explore.command:explore",
        _usage(
            "draw a map of embeddings as an HTML page",
            EXPLORE,
            options={**MODEL, "--output": "explore.output"},
            files="explore.embeddings",
        ),
        on_clusters=False,
    ),
    "publish": Stage(
        "commands.publish:main",
        _usage("write a folder for the Hugging Face Hub, and push it", PUBLISH, options=MODEL),
        on_clusters=False,
    ),
    "train-bionemo": Stage(
        "bionemo.train:start",
        _usage("train with NVIDIA BioNeMo, in its image"),
        own_program=True,
        trains=True,
        retries=RESUMED,
        data_program=("seqlm.bionemo.data",),
        pod_data_program=("seqlm.bionemo.data",),
        progress=lambda run_dir, _: checkpoint_step(Path(run_dir)),
    ),
    "convert-bionemo": Stage("bionemo.convert:main", _usage("convert checkpoints of BioNeMo")),
}
STAGES: Mapping[str, Stage] = {
    **{name: stage for name, stage in SUBCOMMANDS.items() if stage.on_clusters},
    # No subcommand, because it reads no run file.
    "bandwidth": Stage(
        "launch.network.bandwidth:main", own_program=True, retries=1, result_file="bandwidth.json"
    ),
}
"""Stages that clusters run."""


def program_of(stage: str) -> tuple[str, ...]:
    """Return the module of each process on a cluster, and its subcommand."""
    module, _, _ = STAGES[stage].start.partition(":")
    return (f"seqlm.{module}",) if STAGES[stage].own_program else ("seqlm", stage)
