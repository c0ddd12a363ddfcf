"""Work of a job: a stage of a run, or the measurement of all-reduces over its nodes.

Mistakes that need no request to a cluster are found here.
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
from seqlm.runs.stages import STAGES, Stage
from seqlm.training.data.manifest import MANIFEST_FILE
from seqlm.training.data.transfer import local_files
from tools.jobs.checks import Share, SharedFiles, Wanted


@dataclass(frozen=True)
class NamedRun:
    """Run with its overrides, and the text of its file."""

    config: RunFile
    text: str


_AWS = "github.com/aws-samples/awsome-distributed-training, micro-benchmarks/nccl-tests/README.md"
PUBLISHED = {
    # The figure of p4d is from a user's report of 2022.
    "ml.p4d.24xlarge": Published(
        57.20, 1 << 30, 2, "github.com/NVIDIA/nccl/issues/527, 2022-07-25"
    ),
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
    """Folder of the run on the cluster."""
    config: str
    """Text of the run file; the expected bandwidth for a bandwidth job."""
    overrides: tuple[str, ...] = ()
    output: str = ""
    """Absolute path of the result that ``inference.output`` names; empty for other stages."""
    data_manifest: str = ""
    """File that exists when the stage's data are prepared; empty if it reads none."""
    needed: tuple[str, ...] = ()
    """Files and folders on the shared file system that a stage with a table reads; empty for others."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """Stage to run, and where."""

    run: NamedRun | None
    """Run of the stage; None for a bandwidth job."""
    settings: Sequence[str]
    """Overrides of the run; ``at_least=<GB/s>`` or nothing for a bandwidth job."""
    wanted: Wanted
    """Options of the job."""
    place: Share
    """Nodes of the job."""
    folder: str
    """Folder to which the run's relative paths are relative."""
    shared: SharedFiles
    """File systems of the nodes or pods."""

    @property
    def stage(self) -> Stage:
        """Return the record of the stage."""
        return STAGES[self.wanted.stage]

    def path(self, path: str | PurePath) -> str:
        """Return a path of the run file as the nodes or pods see it."""
        return str(PurePosixPath(self.folder) / path)


def work_of(order: Order) -> Work:
    """Return what a job is to do, of an order without problems."""
    if order.run is None:
        name = f"bandwidth-{order.place.hardware.name.removeprefix('ml.')}"
        run_dir = order.path(PurePosixPath("runs") / name)
        return Work(run=name, run_dir=run_dir, config=_expectation(order).text())
    config = order.run.config
    # The file has another name on the cluster, and a model there may decide on the output.
    overrides = [*order.settings, f"name={config.name}"]
    output = ""
    needed: tuple[str, ...] = ()
    if order.stage.names_output:
        output = order.path(output_file(config, order.wanted.stage))
        overrides.append(f"inference.output={output}")
    if order.stage.writes_table:
        needed = _needed(order, config)
    return Work(
        run=config.name,
        run_dir=order.path(config.run_dir),
        config=order.run.text,
        overrides=tuple(overrides),
        output=output,
        data_manifest=_data_manifest(order, config),
        needed=needed,
    )


def work_problems(order: Order) -> Iterator[str]:
    """Yield what does not fit together in an order."""
    if order.run is None:
        yield from _bandwidth_problems(order)
        return
    config = order.run.config
    if order.stage.names_output:
        try:
            output_file(config, order.wanted.stage)
        except ValueError as error:
            yield str(error)
    yield from _folder_problems(order, config)
    yield from _read_problems(order, config)
    yield from _SIZE_PROBLEMS[order.stage.trained_by](config, order.place)


def _at_least(setting: str) -> float | None:
    """Return the bandwidth of ``at_least=<GB/s>``; None if the setting is another one."""
    name, _, value = setting.partition("=")
    return float(value) if name == "at_least" and re.fullmatch(r"\d+(\.\d+)?", value) else None


def _bandwidth_problems(order: Order) -> Iterator[str]:
    for setting in order.settings:
        if _at_least(setting) is None:
            yield f"{setting}: the bandwidth job takes at_least=<GB/s>, a number, and nothing else"
    if order.place.sizes and order.place.sizes[-1] * order.place.num_processes == 1:
        yield "NODES: got 1, with one process; an all-reduce needs two"


def _expectation(order: Order) -> Expectation:
    """Return the expected bandwidth of all-reduces, which a bandwidth job has in place of a run file."""
    hardware = order.place.hardware
    at_least = [_at_least(setting) for setting in order.settings]
    return Expectation(
        instance_type=hardware.name,
        gpus_per_node=hardware.num_accelerators,
        network_gb_s=hardware.network_gbps / 8,
        has_efa=bool(order.place.gpus and hardware.num_efa),
        published=PUBLISHED.get(hardware.name),
        at_least_gb_s=at_least[-1] if at_least else None,
    )


def _folder_problems(order: Order, config: RunFile) -> Iterator[str]:
    """Yield the run's own places that are not on a shared file system."""
    places: dict[str, str | None] = {"runs": config.runs, "data.downloads": config.data.downloads}
    if order.stage.names_output:
        places["inference.output"] = config.inference.output
    if not order.stage.writes_table:
        places["data.path"] = config.data.path
    if order.stage.reads_model:
        # A hub id looks like a relative path, and is taken for one below the folder.
        places["inference.model"] = config.inference.model
        for number, model in enumerate(config.inference.models):
            places[f"inference.models[{number}]"] = model
    for name, path in places.items():
        if path is not None and not order.shared.has(order.path(path)):
            yield (
                f"{name}: got {path}; {order.shared.who} share {order.shared.where}. Relative paths are "
                f"below {order.folder}"
            )


def _read_problems(order: Order, config: RunFile) -> Iterator[str]:
    """Yield files that the stage reads and that only this machine has."""
    shared = order.shared
    who_reads = f"is on this machine; {shared.who} read below {shared.where}"
    start = config.model.init_from or ""
    if PurePosixPath(start).is_absolute() and not shared.has(start):
        yield f"model.init_from: {start} {who_reads}, and the hub"
    if order.stage.reads_input:
        name = "inference.input"
        read = local_files(config.inference.input, PROTEINS)
    else:
        name = "data"
        read = kind_of(config).paths_read(config)
    for path in read:
        if not shared.has(path):
            yield f"{name}: {path} {who_reads}, https:// and s3://"
    mutations = config.inference.mutations
    if order.stage.reads_mutations and mutations is not None and not shared.has(mutations):
        yield f"inference.mutations: {mutations} {who_reads}"
    structure = config.inference.structure
    if order.stage.reads_structure and structure is not None and not shared.has(structure):
        yield f"inference.structure: {structure} {who_reads}"
    if order.stage.reads_measured:
        for path in config.propose.measured:
            if not shared.has(path):
                yield f"propose.measured: {path} {who_reads}"


def _needed(order: Order, config: RunFile) -> tuple[str, ...]:
    """Return input, mutations, structure and model of a stage that writes a table.

    A relative ``inference.model`` is left out: it may be a hub id.
    """
    inference = config.inference
    needed = list(local_files(inference.input, PROTEINS))
    if order.stage.reads_mutations and inference.mutations:
        needed.append(inference.mutations)
    if order.stage.reads_structure and inference.structure:
        needed.append(inference.structure)
    models = inference.models or (inference.model or order.path(config.run_dir / "model"),)
    needed += [model for model in models if PurePosixPath(model).is_absolute()]
    return tuple(needed)


def _bionemo_size_problems(config: RunFile, place: Share) -> Iterator[str]:
    """Yield the settings with which BioNeMo does not run on every number of nodes."""
    yield from unsupported(config)
    for size in place.sizes:
        yield from batch_problems(config, size * place.num_processes)


def _own_size_problems(config: RunFile, place: Share) -> Iterator[str]:
    """Yield the settings with which our trainer does not run on every number of nodes."""
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


def _data_manifest(order: Order, config: RunFile) -> str:
    """Return the file that exists when the stage's data are prepared; empty if it reads none."""
    file = _DATA_FILES[order.stage.reads_data](config.data.path)
    return order.path(file) if file else ""
