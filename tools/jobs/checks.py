"""What is checked of a job before anything is asked of a cluster, on Slurm as on Kubernetes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from config.facts.instance_catalogue import InstanceType
from workloads.bionemo.command import batch_problems, unsupported
from workloads.bionemo.export_files import export_files
from workloads.esm2.data.sources import PROTEINS
from workloads.esm2.inference.output_file import output_file
from workloads.launch.neuron import STAGES as NEURON_STAGES
from workloads.run_file import RunFile, xla_violations
from workloads.run_kinds import paths_read
from workloads.stages import STAGES
from workloads.training.data.manifest import MANIFEST_FILE
from workloads.training.data.transfer import local_files


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Options of a job that do not depend on the scheduler."""

    stage: str
    image: str | None = None
    nodes: str | None = None
    """How many, or a range: ``2-3`` starts with 2 at least, and takes what there is up to 3."""
    gpus_per_node: int | None = None
    folder: str | None = None
    """Folder on the shared file system that holds runs, data and downloads."""
    hang_seconds: int


@dataclass(frozen=True, kw_only=True)
class Share:
    """What a job takes of nodes of one type."""

    hardware: InstanceType
    sizes: range
    """Every number of nodes that the job may run on; none if there is a problem."""
    accelerators: int
    """Of each node."""

    @property
    def gpus(self) -> int:
        """Of each node."""
        return 0 if self.hardware.is_neuron else self.accelerators

    @property
    def neuron_devices(self) -> int:
        """Of each node."""
        return self.accelerators - self.gpus

    @property
    def num_processes(self) -> int:
        """Of each node."""
        return max(1, self.accelerators * self.hardware.processes_per_accelerator)


def listed(problems: list[str]) -> str:
    return f"{len(problems)} problem(s)\n" + "\n".join(f"  {problem}" for problem in problems)


def path_problems(
    config: RunFile, stage: str, folder: str, is_shared: Callable[[str], bool], *, who: str, where: str
) -> list[str]:
    """What those who run the job could not read or write.

    Args:
        config: the run.
        stage: of it.
        folder: what its relative paths are relative to.
        is_shared: whether a path is on a file system that all of them share.
        who: they, for messages.
        where: these file systems, for messages.
    """
    is_inference = STAGES[stage].writes_table
    # A hub id looks like a relative path, and is taken for one below the folder.
    below: list[tuple[str, str | None]] = [
        ("runs", config.runs),
        ("data.downloads", config.data.downloads),
        *([] if is_inference else [("data.path", config.data.path)]),
        *([("inference.output", config.inference.output)] if is_inference else []),
        *([("inference.model", config.inference.model)] if is_inference or stage == "evaluate" else []),
    ]
    problems = [
        f"{name}: got {path}; {who} share {where}. Relative paths are below {folder}"
        for name, path in below
        if path is not None and not is_shared(str(PurePosixPath(folder) / path))
    ]
    if is_inference:
        name, read = "inference.input", local_files(config.inference.input, PROTEINS)
    else:
        name, read = "data", paths_read(config)
    start = config.model.init_from or ""
    if PurePosixPath(start).is_absolute() and not is_shared(start):
        problems.append(f"model.init_from: {start} is on this machine; {who} read below {where}, and the hub")
    problems += [
        f"{name}: {path} is on this machine; {who} read below {where}, https:// and s3://"
        for path in read
        if not is_shared(path)
    ]
    mutations = config.inference.mutations
    if stage == "variants" and mutations is not None and not is_shared(mutations):
        problems.append(f"inference.mutations: {mutations} is on this machine; {who} read below {where}")
    return problems


def output_of(config: RunFile, stage: str, folder: str, problems: list[str]) -> str:
    """The table that a stage of inference writes, by its whole path; empty for other stages.

    Args:
        config: the run.
        stage: of it.
        folder: what its relative paths are relative to.
        problems: what is wrong is added to them.
    """
    if not STAGES[stage].writes_table:
        return ""
    try:
        return str(PurePosixPath(folder) / output_file(config, stage))
    except ValueError as error:
        problems.append(str(error))
        return ""


def files_needed(config: RunFile, stage: str, folder: str) -> tuple[str, ...]:
    """What a stage of inference reads that nothing fetches, by whole paths: input, mutations and model.

    A relative ``inference.model`` is left out: it may be a hub id.
    """
    if not STAGES[stage].writes_table:
        return ()
    inference = config.inference
    model = inference.model or str(PurePosixPath(folder) / config.run_dir / "model")
    mutations = [inference.mutations] if stage == "variants" and inference.mutations else []
    models = [model] if PurePosixPath(model).is_absolute() else []
    return (*local_files(inference.input, PROTEINS), *mutations, *models)


def accelerators_of(
    hardware: InstanceType, stage: str, asked: int | None, problems: list[str], *, option: str
) -> int:
    """How many a job takes of each node; ``option`` is the one that chose the hardware."""
    if stage == "data":
        return 0
    found = hardware.num_accelerators
    number = found if asked is None else asked
    if hardware.is_neuron and number and stage not in NEURON_STAGES:
        problems.append(
            f"{option}: {hardware.name} has {hardware.accelerator}, on which only {', '.join(NEURON_STAGES)} "
            f"runs; {stage} takes NVIDIA GPUs, or CPUs with --gpus-per-node 0"
        )
    elif hardware.is_neuron and number not in (0, found):
        problems.append(
            f"--gpus-per-node: got {number}; a job has the {found} devices of {hardware.name} for itself: "
            "give nothing, or 0 to run on CPUs"
        )
    elif not 0 <= number <= found:
        problems.append(f"--gpus-per-node: got {number}; {hardware.name} has {found}")
    return number


def sizes_of(asked: str, stage: str, there: int, problems: list[str], *, who: str) -> range:
    """Every number of nodes that a job may run on; none if there is a problem.

    Args:
        asked: a number or a range, as ``2-3``.
        stage: of the run.
        there: how many there are in the cluster file.
        problems: what is wrong is added to them.
        who: has these, for messages.
    """
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", asked)
    fewest, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if found is None or not 1 <= fewest <= most:
        problems.append(f"NODES: got {asked}; expected a number from 1, or a range such as 2-3")
    elif stage == "data" and most != 1:
        problems.append(f"NODES: got {asked}; data are prepared on 1 node")
    elif most > there:
        problems.append(f"NODES: got {asked}; {who} has {there} in the cluster file")
    else:
        return range(fewest, most + 1)
    return range(0)


def run_problems(
    config: RunFile,
    wanted: Wanted,
    place: Share,
    folder: str,
    is_shared: Callable[[str], bool],
    *,
    who: str,
    where: str,
) -> list[str]:
    """Settings of a run that do not fit its nodes; arguments as those of ``path_problems``."""
    stage, sizes, num_processes = wanted.stage, place.sizes, place.num_processes
    problems = path_problems(config, stage, folder, is_shared, who=who, where=where)
    problems += bionemo_problems(config, stage, sizes, num_processes)
    if stage == "train":
        problems += shard_problems(config, sizes, num_processes)
        problems += xla_violations(config) if place.neuron_devices else []
    return problems


def overrides_of(config: RunFile, overrides: Iterable[str], output: str) -> tuple[str, ...]:
    """Overrides on the cluster: the file's name is another one there, and may decide on the output."""
    return (*overrides, f"name={config.name}", *([f"inference.output={output}"] if output else ()))


def shard_problems(config: RunFile, sizes: Iterable[int], num_processes: int) -> list[str]:
    """Numbers of nodes, with this many processes each, over which a model cannot be sharded as asked."""
    shard_size = config.parallel.shard_size
    return [
        f"parallel.shard_size: got {shard_size}; it must divide the number of processes, which is "
        f"{size * num_processes} on {size} node(s)"
        for size in sizes
        if shard_size and size * num_processes % shard_size
    ]


def bionemo_problems(config: RunFile, stage: str, sizes: Iterable[int], num_processes: int) -> list[str]:
    """What BioNeMo cannot do of a run, or not on these numbers of nodes with so many processes each."""
    if stage != "train-bionemo":
        return []
    return unsupported(config) + [
        problem for size in sizes for problem in batch_problems(config, size * num_processes)
    ]


def data_manifest(config: RunFile, stage: str, folder: str) -> str:
    """The file below ``folder`` that is there once the data of a stage are; empty where it reads none."""
    if stage == "convert-bionemo":
        return ""
    if stage == "train-bionemo":
        return str(PurePosixPath(folder) / export_files(config.data.path).facts)
    return str(PurePosixPath(folder) / config.data.path / MANIFEST_FILE)
