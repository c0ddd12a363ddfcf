"""Table of the subcommands of ``seqlm``, and of the stages that clusters run.

Nodes import this: standard library only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from seqlm.runs.inference_commands import (
    INFERENCE_COMMANDS,
    INPUT_FIELD,
    MEASURED_FIELD,
    PREPARING,
    PROTEIN_RUN,
    TASK_RUN,
    InferenceCommand,
)
from seqlm.training.command_line import NO_USAGE, Usage


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Subcommand of ``seqlm`` that reads a run file, stage of a cluster's job, or both."""

    start: str
    """Function that the subcommand calls, as ``module:function`` below ``seqlm``."""
    arguments: tuple[str, ...] = ()
    """First arguments of the function; the run file is the last one."""
    usage: Usage = NO_USAGE
    """Command line of the subcommand."""
    on_clusters: bool = True
    """Whether jobs on clusters have this stage."""
    own_program: bool = False
    """Whether processes on a cluster run the module of ``start`` as a program, not the subcommand."""
    reads_run_file: bool = True
    """Whether the stage reads a run file. Others are no subcommands."""
    one_process: bool = False
    """Whether a job runs one process on one node, without accelerators and without network checks."""
    trained_by: Literal["", "seqlm", "bionemo"] = ""
    """Software of a training; empty for other stages."""
    on_all_nodes: bool = False
    """Whether a job takes all nodes of its partition by default, not one."""
    resizes: bool = False
    """Whether a job may change its number of nodes."""
    has_metrics: bool = False
    """Whether a process of the job answers Prometheus."""
    on_neuron: bool = False
    """Whether the stage runs on NeuronCores."""
    framework: str = ""
    """Framework of the image (``tools/images/build.py``); empty for the default image."""
    reads_data: Literal["", "prepared", "bionemo"] = ""
    """Form of the training data that must be complete before the stage starts; empty if it reads none."""
    reads_model: bool = False
    """Whether it reads ``inference.model``."""
    reads_mutations: bool = False
    """Whether it reads ``inference.mutations``."""
    reads_structure: bool = False
    """Whether it reads ``inference.structure``."""
    reads_input: bool = False
    """Whether it reads ``inference.input``."""
    reads_measured: bool = False
    """Whether it reads ``propose.measured``."""
    names_output: bool = False
    """Whether ``inference.output`` names its result, as for all commands of inference."""
    writes_table: bool = False
    """Whether it reads ``inference.input`` and writes a table part by part."""
    data_program: tuple[str, ...] = ("seqlm", "data")
    """Program that prepares the training data, in one process."""
    pod_data_program: tuple[str, ...] = ("seqlm.commands.prepare",)
    """Program that prepares the data in the pods of a job; all of them run it."""
    retries: int = 3
    """Restarts by Kubernetes; few for stages whose failures are mostly permanent."""
    result_file: str = ""
    """Name of the result in the run folder; empty if ``inference.output`` names it, or without a file."""
    writes_report: bool = False
    """Whether the stage writes ``report.html`` into the run folder."""
    progress: Literal["checkpoints", "bionemo", "parts"] = "checkpoints"
    """Name of the measure of progress, a key of ``seqlm.launch.progress.PROGRESS``."""

    @property
    def trains(self) -> bool:
        """Whether the stage trains, after its data are prepared."""
        return bool(self.trained_by)

    @property
    def resumes(self) -> bool:
        """Whether the stage continues where an earlier start stopped."""
        return self.trains or self.writes_table

    def results(self, run_dir: str, output: str) -> dict[str, str]:
        """Return the paths of the results by name."""
        if output:
            return {"results": output}
        found = {}
        if self.result_file:
            name = "metrics" if self.result_file == METRICS_FILE else "results"
            found[name] = f"{run_dir}/{self.result_file}"
        if self.writes_report:
            found["report"] = f"{run_dir}/report.html"
        return found


METRICS_FILE = "metrics.jsonl"
"""File of a training's metrics in the run folder."""
RESUMED = 10
"""Restarts of stages that resume, and of the other commands of inference."""
MODEL_OPTION = {"--model": "inference.model"}
START_OPTION = {"--model": "model.init_from"}
OUTPUT_OPTIONS = {**MODEL_OPTION, "--output": "inference.output"}
EXPLORE_OPTIONS = {**MODEL_OPTION, "--output": "explore.output"}
"""Short forms of fields on the command line."""
SCORING = (
    "name",
    "runs",
    "model",
    "data",
    "evaluate",
    "inference.kernels",
    "inference.model",
    "task",
    "chat",
    "train.precision",
    "train.tokens_per_pack",
)
"""Fields of the run file that ``evaluate`` reads."""
EXPLORING = (
    "name",
    "runs",
    "explore",
    "inference.model",
    "inference.output",
    "inference.id_column",
    "inference.sequence_column",
    "inference.sequence_columns",
    "task.table",
    "task.id_column",
    "task.sequence_column",
    "task.sequence_columns",
)
"""Fields of the run file that ``explore`` reads."""
PUBLISHING = ("name", "runs", "publish", "inference.model", "inference.overwrite")
"""Fields of the run file that ``publish`` reads."""
_usage = partial(Usage, run_file=PROTEIN_RUN, options=START_OPTION)


def _inference_stage(name: str, command: InferenceCommand) -> Stage:
    """Return the stage of a command of inference."""
    usage = Usage(
        command.summary,
        command.fields,
        run_file=command.run_file,
        options=OUTPUT_OPTIONS,
        files=INPUT_FIELD if INPUT_FIELD in command.inputs else None,
    )
    stage = Stage(
        start="commands.inference:run_inference",
        arguments=(name,),
        usage=usage,
        retries=RESUMED,
        reads_model=True,
        reads_mutations=command.reads_mutations,
        reads_structure=command.reads_structure,
        reads_input=INPUT_FIELD in command.inputs,
        reads_measured=MEASURED_FIELD in command.inputs,
        names_output=True,
    )
    if command.by_parts:
        return replace(stage, writes_table=True, progress="parts")
    return replace(stage, reads_data="prepared") if command.reads_prepared_data else stage


SUBCOMMANDS: Mapping[str, Stage] = {
    "data": Stage(
        start="commands.prepare:main",
        usage=_usage("prepare the data of a run", PREPARING, files="data.source"),
        one_process=True,
        reads_data="prepared",
    ),
    "train": Stage(
        start="commands.train:main",
        usage=_usage("pre-train or fine-tune a model, or continue a run"),
        trained_by="seqlm",
        on_all_nodes=True,
        resizes=True,
        has_metrics=True,
        on_neuron=True,
        reads_data="prepared",
        retries=RESUMED,
        result_file=METRICS_FILE,
        writes_report=True,
    ),
    "finetune": Stage(
        start="commands.train:finetune",
        usage=_usage("train for a task or on questions", run_file=TASK_RUN),
        on_clusters=False,
    ),
    "evaluate": Stage(
        start="commands.evaluate:main",
        usage=_usage("score a model on prepared data", SCORING, options=MODEL_OPTION),
        reads_data="prepared",
        reads_model=True,
    ),
    **{name: _inference_stage(name, command) for name, command in INFERENCE_COMMANDS.items()},
    "explore": Stage(
        start="proteins.explore.command:explore",
        usage=_usage(
            "draw a map of embeddings as an HTML page",
            EXPLORING,
            options=EXPLORE_OPTIONS,
            files="explore.embeddings",
        ),
        on_clusters=False,
    ),
    "publish": Stage(
        start="commands.publish:main",
        usage=_usage(
            "write a folder for the Hugging Face Hub, and push it", PUBLISHING, options=MODEL_OPTION
        ),
        on_clusters=False,
    ),
    "train-bionemo": Stage(
        start="commands.train_bionemo:start",
        usage=_usage("train with NVIDIA BioNeMo, in its image"),
        own_program=True,
        trained_by="bionemo",
        on_all_nodes=True,
        framework="bionemo",
        reads_data="bionemo",
        data_program=("seqlm.commands.bionemo_data",),
        pod_data_program=("seqlm.commands.bionemo_data",),
        retries=RESUMED,
        result_file=METRICS_FILE,
        writes_report=True,
        progress="bionemo",
    ),
    "convert-bionemo": Stage(
        start="bionemo.convert:main",
        usage=_usage("convert checkpoints of BioNeMo"),
        framework="bionemo",
    ),
}
STAGES: Mapping[str, Stage] = {
    **{name: stage for name, stage in SUBCOMMANDS.items() if stage.on_clusters},
    "bandwidth": Stage(
        start="launch.network.bandwidth:main",
        own_program=True,
        reads_run_file=False,
        on_all_nodes=True,
        retries=1,
        result_file="bandwidth.json",
        writes_report=True,
    ),
}
"""Stages that clusters run."""


def program_of(stage: str) -> tuple[str, ...]:
    """Return the module of each process on a cluster, and its subcommand."""
    module, _, _ = STAGES[stage].start.partition(":")
    return (f"seqlm.{module}",) if STAGES[stage].own_program else ("seqlm", stage)
