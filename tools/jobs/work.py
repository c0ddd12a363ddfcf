"""Work of a job: a stage of a run, or the measurement of all-reduces over its nodes.

All detectable mistakes are errors here, before any request to a cluster.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath, PurePosixPath

from seqlm.bionemo.command import batch_problems, unsupported
from seqlm.bionemo.files import export_files
from seqlm.commands.kinds import kind_of
from seqlm.launch.network.expectation import Expectation, Published
from seqlm.proteins.data.sources import PROTEINS
from seqlm.proteins.inference.output_file import output_file
from seqlm.runs.run_file import RunFile, xla_violations
from seqlm.runs.stages import STAGES
from seqlm.training.data.manifest import MANIFEST_FILE
from seqlm.training.data.transfer import local_files
from tools.jobs.checks import Share, SharedFiles, Wanted, listed

NamedRun = tuple[RunFile, str]
"""A run with its overrides, and the text of its file."""
_AWS = "github.com/aws-samples/awsome-distributed-training, micro-benchmarks/nccl-tests/README.md"
PUBLISHED = {
    # The first from a user, with versions of 2022.
    "ml.p4d.24xlarge": Published(57.20, 1 << 30, 2, "github.com/NVIDIA/nccl/issues/527, 2022-07-25"),
    "ml.p4de.24xlarge": Published(78.33, 2 << 30, 2, _AWS),
    "ml.p5.48xlarge": Published(465.87, 4 << 30, 2, _AWS),
}
"""Published bus bandwidth of all-reduces between nodes of a type, by nccl-tests' ``all_reduce_perf``.

Each is for the largest message up to 4 GiB, the largest of ours. No figure is known for other types
with all their GPUs and all their EFA.
"""


@dataclass(frozen=True, kw_only=True)
class Work:
    """Fields of a job that do not depend on the scheduler."""

    run: str
    """Name of the run."""
    run_dir: str
    config: str
    """Text of the run file; of a bandwidth job the expected bandwidth."""
    overrides: tuple[str, ...] = ()
    output: str = ""
    """Table that a stage of inference writes, by its whole path; empty for other stages."""
    data_manifest: str = ""
    """File that exists when the stage's data are prepared; empty if it reads none."""
    needed: tuple[str, ...] = ()
    """Files and folders that the stage reads and nothing fetches."""


def work_of(
    run: NamedRun | None,
    overrides: Sequence[str],
    wanted: Wanted,
    place: Share,
    folder: str,
    shared: SharedFiles,
    problems: list[str],
) -> Work:
    """Return what a job is to do.

    Args:
        run: the run; None for a bandwidth job.
        overrides: settings of the run; of a bandwidth job ``at_least=<GB/s>``, or nothing.
        wanted: the job's options.
        place: its nodes.
        folder: what relative paths of the run are relative to.
        shared: file systems of those who run the job.
        problems: what is known to be wrong already.

    Raises:
        ValueError: listing all that does not fit together.
    """
    if run is None:
        expected = _expectation(place, overrides, problems)
        name = f"bandwidth-{place.hardware.name.removeprefix('ml.')}"
        work = Work(run=name, run_dir=str(PurePosixPath(folder) / "runs" / name), config=expected.text())
    else:
        config, text = run
        output = _output(config, wanted.stage, folder, problems)
        problems += _path_problems(config, wanted.stage, folder, shared)
        problems += _size_problems(config, wanted.stage, place)
        decided = [f"inference.output={output}"] if output else []
        work = Work(
            run=config.name,
            run_dir=str(PurePosixPath(folder) / config.run_dir),
            config=text,
            # The file has another name on the cluster, and a model there may decide on the output.
            overrides=(*overrides, f"name={config.name}", *decided),
            output=output,
            data_manifest=_data_manifest(config, wanted.stage, folder),
            needed=_needed(config, wanted.stage, folder) if output else (),
        )
    if problems:
        raise ValueError(listed(problems))
    return work


def _expectation(place: Share, settings: Sequence[str], problems: list[str]) -> Expectation:
    """Expected bandwidth of all-reduces: the file that a bandwidth job has in place of a run file."""
    at_least: float | None = None
    for setting in settings:
        name, _, value = setting.partition("=")
        if name == "at_least" and re.fullmatch(r"\d+(\.\d+)?", value):
            at_least = float(value)
        else:
            problems.append(f"{setting}: the bandwidth job takes at_least=<GB/s>, a number, and nothing else")
    if place.sizes and place.sizes[-1] * place.num_processes == 1:
        problems.append("NODES: got 1, with one process; an all-reduce needs two")
    hardware = place.hardware
    return Expectation(
        instance_type=hardware.name,
        gpus_per_node=hardware.num_accelerators,
        network_gb_s=hardware.network_gbps / 8,
        has_efa=bool(place.gpus and hardware.num_efa),
        published=PUBLISHED.get(hardware.name),
        at_least_gb_s=at_least,
    )


def _path_problems(config: RunFile, stage: str, folder: str, shared: SharedFiles) -> list[str]:
    """Paths that nodes or pods could not read or write."""
    who, where = shared.who, shared.where
    is_inference = STAGES[stage].writes_table
    reads_model = STAGES[stage].reads_model
    # A hub id looks like a relative path, and is taken for one below the folder.
    below: list[tuple[str, str | None]] = [
        ("runs", config.runs),
        ("data.downloads", config.data.downloads),
        *([] if is_inference else [("data.path", config.data.path)]),
        *([("inference.output", config.inference.output)] if is_inference else []),
        *([("inference.model", config.inference.model)] if reads_model else []),
    ]
    problems = [
        f"{name}: got {path}; {who} share {where}. Relative paths are below {folder}"
        for name, path in below
        if path is not None and not shared.has(str(PurePosixPath(folder) / path))
    ]
    if is_inference:
        name, read = "inference.input", local_files(config.inference.input, PROTEINS)
    else:
        name, read = "data", kind_of(config).paths_read(config)
    start = config.model.init_from or ""
    if PurePosixPath(start).is_absolute() and not shared.has(start):
        problems.append(f"model.init_from: {start} is on this machine; {who} read below {where}, and the hub")
    problems += [
        f"{name}: {path} is on this machine; {who} read below {where}, https:// and s3://"
        for path in read
        if not shared.has(path)
    ]
    mutations = config.inference.mutations
    if STAGES[stage].reads_mutations and mutations is not None and not shared.has(mutations):
        problems.append(f"inference.mutations: {mutations} is on this machine; {who} read below {where}")
    return problems


def _output(config: RunFile, stage: str, folder: str, problems: list[str]) -> str:
    if not STAGES[stage].writes_table:
        return ""
    try:
        return str(PurePosixPath(folder) / output_file(config, stage))
    except ValueError as error:
        problems.append(str(error))
        return ""


def _needed(config: RunFile, stage: str, folder: str) -> tuple[str, ...]:
    """Input, mutations and model of a stage of inference.

    A relative ``inference.model`` is left out: it may be a hub id.
    """
    inference = config.inference
    model = inference.model or str(PurePosixPath(folder) / config.run_dir / "model")
    mutations = [inference.mutations] if STAGES[stage].reads_mutations and inference.mutations else []
    models = [model] if PurePosixPath(model).is_absolute() else []
    return (*local_files(inference.input, PROTEINS), *mutations, *models)


def _size_problems(config: RunFile, stage: str, place: Share) -> Iterator[str]:
    """Settings that do not fit every number of nodes on which the job may run."""
    yield from _SIZE_PROBLEMS[STAGES[stage].trained_by](config, place)


def _bionemo_size_problems(config: RunFile, place: Share) -> Iterator[str]:
    yield from unsupported(config)
    for size in place.sizes:
        yield from batch_problems(config, size * place.num_processes)


def _own_size_problems(config: RunFile, place: Share) -> Iterator[str]:
    shard_size = config.parallel.shard_size
    for size in place.sizes:
        total = size * place.num_processes
        if shard_size and total % shard_size:
            yield (
                f"parallel.shard_size: got {shard_size}; it must divide the number of processes, which "
                f"is {total} on {size} node(s)"
            )
    if place.neuron_devices:
        yield from xla_violations(config)


_SIZE_PROBLEMS: Mapping[str, Callable[[RunFile, Share], Iterable[str]]] = {
    "": lambda config, place: (),
    "seqlm": _own_size_problems,
    "bionemo": _bionemo_size_problems,
}
"""Checks of the number of nodes, by the software that trains."""
_DATA_FILES: Mapping[str, Callable[[str], PurePath | str]] = {
    "": lambda data_path: "",
    "prepared": lambda data_path: PurePosixPath(data_path) / MANIFEST_FILE,
    "bionemo": lambda data_path: export_files(data_path).facts,
}
"""File that is complete when the data are, by the form of the data; empty for stages that read none."""


def _data_manifest(config: RunFile, stage: str, folder: str) -> str:
    """Return the file that exists when the stage's data are prepared; empty if it reads none."""
    file = str(_DATA_FILES[STAGES[stage].reads_data](config.data.path))
    return str(PurePosixPath(folder) / file) if file else ""
