"""Sections of a run file that the trainer reads, and their parser.

A run file is YAML with differences from the defaults, and ``key=value`` changes single fields. Its sections
(``model:``, ``data:``, ...) are dataclasses. ``runs/run_file.py`` has the sections that are not here. All
problems of a configuration are reported at once, each in a line with the field, its value and the allowed
values.
"""

import dataclasses
import difflib
import math
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from .data.manifest import MAX_REJECTED_SHARE
from .strict_yaml import read_yaml, read_yaml_file, shown

T = TypeVar("T")
Run = TypeVar("Run", bound="RunConfig")
"""Class of a whole run file, with the sections of all its stages."""
_NUMBER = re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")

LoraTarget = Literal["query", "key", "value", "attention_output", "intermediate", "output"]
KernelMode = Literal["auto", "on", "off"]
"""Kernels of this project that a GPU computes with: those that have proven faster, all, or none."""


@dataclass(frozen=True, kw_only=True)
class StartConfig:
    """Fields of the section ``model`` that all families share."""

    init_from: str | None = None
    """Checkpoint folder or hub id to start from; null trains from random weights. With ``chat:`` a folder, a
    hub id such as ``owner/name@revision``, or ``sample``, a tiny model that is made on the spot."""
    max_residues: int = 0
    """Longer proteins are cropped to this many residues, freshly each epoch; 0 is the longest protein of the
    family's published models (ESM-2: 1022, ESMC: 2046)."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    source: tuple[str, ...] = ("sample",)
    """FASTA files, tables or folders, https:// or s3:// addresses, ``sample`` (embedded) or ``uniref50``."""
    members: tuple[str, ...] = ()
    """FASTA of cluster members (UniRef90); when given, each epoch draws one member per cluster, and
    ``source`` is not read."""
    membership: str | None = None
    """Cluster of each member: UniProt's idmapping_selected.tab[.gz], or a two-column TSV
    (member, cluster)."""
    path: str = ""
    """Folder of the prepared data; empty derives its name from the sources and from the settings that shape
    the data."""
    downloads: str = "downloads"
    """Folder for files fetched from https:// and s3://."""
    seed: int = 0
    """Seed of the global shuffle. Splits do not depend on it."""
    validation_fraction: float = 0.05
    """Share of clusters (or records) held out for validation."""
    test_fraction: float = 0.05
    """Share of clusters (or records) held out for the final test."""
    allow_nucleotides: bool = False
    """Take DNA and RNA for proteins, also in inference; false refuses them."""
    max_rejected_share: float = MAX_REJECTED_SHARE
    """Share of bad records, such as empty ones or those with a stop inside, up to which they are left out and
    listed in ``rejects.csv``. Ten are always allowed. More stop the preparation."""
    id_column: str | None = None
    """Column of tables in ``source`` with the ids; null finds it by its name."""
    sequence_column: str | None = None
    """Column of tables in ``source`` with the sequences; null finds it by its name."""


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    name: Literal["adamw", "muon"] = "adamw"
    """``muon`` orthogonalises the updates of the layers' matrices; all else stays with AdamW."""
    lr: float = 4e-4
    """Peak learning rate (ESM-2: 4e-4). Muon scales its updates to AdamW's size, so the same value serves."""
    betas: tuple[float, float] = (0.9, 0.98)
    """Decay rates of AdamW's two moments (ESM-2: 0.9, 0.98)."""
    eps: float = 1e-8
    """Added to the root of AdamW's second moment."""
    weight_decay: float = 0.01
    """Decoupled weight decay of matrices; biases and norms have none."""
    warmup_steps: int = 2000
    """Optimizer steps in which the learning rate rises to its peak."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """Course of the learning rate after the warm-up."""
    final_lr_fraction: float = 0.1
    """Learning rate of the last step over the peak."""
    clip_norm: float = 1.0
    """Gradients are scaled down to this global norm; 0 switches clipping off."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    seed: int = 0
    """Seed of the weights, of the data order, of the crops and of the masks."""
    max_steps: int = 500_000
    """Optimizer steps of the whole run."""
    tokens_per_pack: int = 16384
    """Constant length of a micro-batch in tokens, CLS, EOS and padding included."""
    tokens_per_step: int = 2_097_152
    """Global token budget of one optimizer step; a multiple of ``tokens_per_pack``. Gradient accumulation
    follows from it and from the number of devices."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """``auto`` is bf16 on GPUs and on Trainium, and on CPUs the type that is measured to be faster."""
    compile: Literal["auto", "on", "off"] = "auto"
    """torch.compile; ``auto`` is on for CUDA."""
    kernels: KernelMode = "auto"
    """Kernels of this project on a GPU: ``auto`` uses those that have proven faster, ``on`` all that the GPU
    can run, ``off`` none. A start compares them with torch's kernels and leaves out those that differ."""
    activation_checkpointing: bool = False
    """Recompute each layer in the backward pass instead of keeping its activations."""
    log_every_steps: int = 10
    """Optimizer steps between two lines of the log."""
    eval_every_steps: int = 500
    """Optimizer steps between two scorings of the validation split."""
    eval_packs: int = 64
    """Packs of the validation split read at each evaluation during training; 0 reads all. With 64 packs of
    16,384 tokens, about 150,000 masked residues are predicted, which gives the loss within 0.3 %."""
    save_every_steps: int = 500
    """Optimizer steps between two checkpoints."""
    keep_checkpoints: int = 2
    """Number of newest checkpoints that are kept."""
    memory_checkpoint_steps: int | None = None
    """Optimizer steps between two states in the memory of a job's nodes, from which a start after a crash
    continues; 0 keeps none. null keeps them in jobs of several nodes, as often as blocks training for 1 % of
    the time. On EKS, the cluster file needs ``memory_states``."""
    pack_shares: Literal["even", "by_speed"] = "even"
    """Packs of a step on each device: as many on all, or more on faster ones, so that nodes of several types
    end a step together. ``by_speed`` measures the time of a pack on each kind of device before the first
    step, and keeps it in the run's folder. The packs of a step and its loss are the same."""
    exclude_unfit_nodes: bool = False
    """Let the supervisor of a Slurm job leave out a node with a GPU that is 10 % slower than its kind for 3
    minutes, or that computes numbers which are not finite. The run saves, and its job is requeued without the
    node. Off, because the job then waits for another node."""


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    mode: Literal["ddp", "fsdp"] = "ddp"
    """``ddp`` keeps a copy of the model on each device, ``fsdp`` (FSDP2) shards it."""
    shard_size: int = 0
    """Devices that share one copy of the model (HSDP); 0 is all of them. Must divide the world size."""


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    mlflow: bool = True
    """Copy metrics to MLflow. False saves its import, which takes seconds; ``metrics.jsonl`` has them all."""
    mlflow_uri: str | None = None
    """MLflow tracking URI; null is MLFLOW_TRACKING_URI or else a local store in ``mlruns``."""
    experiment: str = "esm2"
    """MLflow experiment."""
    wandb: str | None = None
    """Project of Weights & Biases to copy metrics to; null copies none. Set it if your team reads runs there.
    It takes the package wandb, and ``wandb login`` or WANDB_API_KEY; WANDB_MODE=offline needs no account."""


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Low-rank adapters (Hu et al. 2021) beside frozen weights; the head is trained as a whole."""

    rank: int = 16
    """Rank of the two matrices of an adapter."""
    alpha: int = 32
    """The adapters' output is scaled by alpha / rank."""
    targets: tuple[LoraTarget, ...] = (
        "query",
        "key",
        "value",
        "attention_output",
        "intermediate",
        "output",
    )
    """Matrices of each layer that get an adapter."""
    lr: float = 1e-3
    """Peak learning rate in place of ``optim.lr``: adapters want about ten times that of full fine-tuning."""
    quantize: Literal["none", "nf4"] = "none"
    """``nf4`` keeps the frozen matrices of the layers in 4 bits (QLoRA, Dettmers et al. 2023)."""
    merge: bool = True
    """Write the model with the adapters merged into its weights too, as for full fine-tuning."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Sections that the trainer reads; a run file has more of them."""

    name: str
    """Name of the run; its folder is ``<runs>/<name>``."""
    runs: str = "runs"
    """Folder of all runs."""
    model: StartConfig = field(default_factory=StartConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    lora: LoraConfig | None = None
    """``{}`` is LoRA with these defaults; null trains all weights."""

    @property
    def run_dir(self) -> Path:
        return Path(self.runs) / self.name

    @property
    def packs_per_step(self) -> int:
        return self.train.tokens_per_step // self.train.tokens_per_pack

    def to_dict(self) -> dict[str, Any]:
        """Return the run as plain dicts and lists, for YAML and JSON."""
        return dataclasses.asdict(self, dict_factory=_with_lists)


def _with_lists(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in pairs}


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value of a mapping of mappings, with its name as ``section.field``."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


_OTHER_NAMES = {
    "learning_rate": "optim.lr",
    "batch_size": "train.tokens_per_step",
    "epochs": "train.max_steps",
    "max_length": "model.max_residues",
    "gradient_checkpointing": "train.activation_checkpointing",
}
"""Names that other trainers use, and the field that has the same effect here."""


def read_run(
    cls: type[Run],
    path: str | Path,
    overrides: Sequence[str],
    rules: Callable[[Run], Iterable[str]],
    shipped: Path,
) -> Run:
    """Read a run file, apply ``section.field=value`` overrides and check every rule.

    Args:
        cls: class of the run, with all its sections.
        path: path of the YAML file, or the name of a bundled run file.
        overrides: changes to single fields.
        rules: function that returns the problems of a run with fields of the right types.
        shipped: folder of the bundled run files.

    Raises:
        ValueError: listing everything that is wrong with the file and the overrides.
    """
    path, raw = _read_file(Path(path), shipped)
    raw.setdefault("name", path.stem)
    problems = list(_apply_overrides(raw, overrides))
    field_problems = list(_field_problems(cls, raw, prefix=""))
    if field_problems:
        raise _problems_error(path, problems + field_problems)
    run = _build(cls, raw)
    problems += rules(run)
    if problems:
        raise _problems_error(path, problems)
    return run


def read_section(
    cls: type[T],
    values: Mapping[str, Any],
    name: str,
    rules: Callable[[T], Iterable[str]],
) -> T:
    """Return a section of a run file from its fields, which a Python function received.

    Args:
        cls: class of the section.
        values: values of its fields; tuples count as lists.
        name: name of the section, for messages.
        rules: function that returns the problems of a section with fields of the right types.

    Raises:
        ValueError: listing everything that is wrong.
    """
    raw = {
        field: list(value) if isinstance(value, tuple) else value for field, value in values.items()
    }
    problems = list(_field_problems(cls, raw, prefix=f"{name}."))
    if not problems:
        section = _build(cls, raw)
        problems = list(rules(section))
        if not problems:
            return section
    raise ValueError("; ".join(problems))


def _problems_error(path: Path, problems: Sequence[str]) -> ValueError:
    lines = "\n".join(f"  {problem}" for problem in problems)
    return ValueError(f"{path}: {len(problems)} problem(s)\n{lines}")


def _read_file(path: Path, shipped: Path) -> tuple[Path, dict[str, Any]]:
    """Return the path and the sections of a run file, which may be named like a bundled one.

    Raises:
        ValueError: if there is no such file, or it is not a mapping in YAML.
    """
    bundled = [] if path.exists() else sorted(shipped.rglob("*.yaml"))
    path = next((file for file in bundled if file.stem == str(path)), path)
    try:
        raw = read_yaml_file(path)
    except FileNotFoundError:
        known = {file.name: os.path.relpath(file) for file in bundled}
        near = [known[name] for name in difflib.get_close_matches(path.name, known, n=1)]
        hint = f"did you mean {near[0]}?" if near else f"{shipped} has {', '.join(known)}"
        raise ValueError(f"there is no run file {path}; {hint}") from None
    if not isinstance(raw, dict):
        raise ValueError(
            f"{path} must hold sections such as 'model:' and 'train:', got {shown(raw)}"
        )
    return path, raw


def _apply_overrides(raw: dict[str, Any], overrides: Sequence[str]) -> Iterator[str]:
    """Change fields of a run file in place; yield a problem for each override that cannot be applied."""
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            yield f"{shown(override)}: an override has the form section.field=value"
            continue
        try:
            value = read_yaml(text)
        except ValueError as error:
            yield f"{shown(override)}: {error}"
            continue
        yield from _set_field(raw, key.strip(), value)


def _set_field(raw: dict[str, Any], key: str, value: Any) -> Iterator[str]:
    """Set a field in place, in sections that are created if they are missing; yield a problem if any."""
    *sections, name = key.split(".")
    target = raw
    for section in sections:
        if target.get(section) is None:
            target[section] = {}
        target = target[section]
        if not isinstance(target, dict):
            yield f"{key}: {section} is not a section"
            return
    target[name] = value


def _field_problems(cls: type, raw: object, prefix: str) -> Iterator[str]:
    """Yield what prevents the plain data of a section from becoming an instance of its dataclass.

    Args:
        cls: dataclass of the section.
        raw: plain data, as YAML has them.
        prefix: name of the section with a dot at its end; empty for the whole file.
    """
    if not isinstance(raw, Mapping):
        yield f"{prefix.rstrip('.')}: expected a section (mapping) or null, got {shown(raw)}"
        return
    hints = typing.get_type_hints(cls)
    for unknown in sorted(raw.keys() - hints.keys(), key=str):
        known = _OTHER_NAMES.get(str(unknown))
        near = [known] if known else difflib.get_close_matches(str(unknown), hints, n=1)
        hint = f"did you mean {near[0]}?" if near else f"allowed are {', '.join(hints)}"
        yield f"{prefix}{shown(unknown)[1:-1]}: no such field; {hint}"
    for name, kind in hints.items():
        if name not in raw:
            continue
        section, optional = section_of(kind)
        if section is None:
            try:
                _convert(kind, raw[name])
            except (TypeError, ValueError) as error:
                yield f"{prefix}{name}: got {shown(raw[name])}; {error}"
        elif raw[name] is not None:
            yield from _field_problems(section, raw[name], f"{prefix}{name}.")
        elif not optional:
            yield from _field_problems(section, {}, f"{prefix}{name}.")
    for field_ in dataclasses.fields(cls):
        if field_.name not in raw and not _has_default(field_):
            yield f"{prefix}{field_.name}: is missing; {_allowed(hints[field_.name])}"


def _has_default(field_: "dataclasses.Field[Any]") -> bool:
    return (
        field_.default is not dataclasses.MISSING
        or field_.default_factory is not dataclasses.MISSING
    )


def _build(cls: type[T], raw: Mapping[str, Any]) -> T:
    """Return an instance of a config dataclass from plain data without ``_field_problems``."""
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for name, value in raw.items():
        section, optional = section_of(hints[name])
        if section is None:
            values[name] = _convert(hints[name], value)
        elif value is None and optional:
            values[name] = None
        else:
            values[name] = _build(section, value or {})
    return cls(**values)


def section_of(kind: Any) -> tuple[type | None, bool]:
    """Return the dataclass of a section (None for other fields), and whether null leaves it out."""
    arguments = typing.get_args(kind)
    optional = types.NoneType in arguments
    section = arguments[0] if optional else kind
    if isinstance(section, type) and dataclasses.is_dataclass(section):
        return section, optional
    return None, optional


def _allowed(kind: Any) -> str:
    choices = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
    return f"allowed are {', '.join(map(str, choices))}" if choices else "it must be given"


def _convert(kind: Any, value: Any) -> Any:
    """Return ``value`` as the annotated type.

    Raises:
        ValueError: saying what is expected, if the value does not fit.
    """
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin is Literal:
        if value not in arguments:
            raise ValueError(_allowed(kind))
        return value
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _convert(arguments[0], value)
    if origin is tuple:
        return _convert_list(arguments, value)
    if kind is bool:
        if not isinstance(value, bool):
            raise ValueError("allowed are true and false")
        return value
    if kind is int:
        if type(value) is not int:
            raise ValueError(
                "expected a whole number of at most 18 digits, none of them a leading 0"
            )
        return value
    if kind is float:
        # YAML reads 1e-4 as text (read_yaml).
        if (
            isinstance(value, bool)
            or not _NUMBER.fullmatch(str(value))
            or not math.isfinite(float(value))
        ):
            raise ValueError("expected a finite number such as 0.01 or 1e-4")
        return float(value)
    if not isinstance(value, str):
        raise ValueError("expected text; put words such as true and numbers in quotes")
    if re.search("[\0\ud800-\udfff]", value):
        raise ValueError("expected text without NUL and surrogates, which no file name can hold")
    return value


def _convert_list(kinds: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    """Return a list as a tuple; a single value stands for a list of it.

    Args:
        kinds: types of the items, which are all the same; an ellipsis at the end allows any number.
        value: list, or a single value.
    """
    if value is None or isinstance(value, Mapping):
        raise ValueError("expected a list")
    items = value if isinstance(value, list) else [value]
    if kinds[-1] is not Ellipsis and len(items) != len(kinds):
        raise ValueError(f"expected {len(kinds)} values")
    kind = kinds[0]
    if kind is str:
        # Names of classes and values of a column may be numbers.
        items = [str(item) if type(item) in (int, float) else item for item in items]
    return tuple(_convert(kind, item) for item in items)
