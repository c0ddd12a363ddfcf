"""Formats of the field: tables, and headers of FASTA, whose columns have a known meaning.

``FIELD_FORMATS`` is the table of them. Names of columns are spelt there as ``columns.normalized`` spells
them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

ANY_KIND = "any"
"""Key of ``FieldFormat.labels`` for kinds of tasks that have no entry of their own."""


@dataclass(frozen=True)
class FormatSplit:
    """Split that a format has in its columns."""

    columns: tuple[str, ...]
    """Columns that may have the split, or the fold, of each protein. The first one in the table is used."""
    validation_column: str | None = None
    """Column that marks the training proteins that validate."""
    validation: tuple[str, ...] = ()
    """Values of the column for validation; empty if words such as ``train`` name the splits."""
    test: tuple[str, ...] = ()
    """Values of the column for the test."""
    fold: int | None = None
    """Fold of a cross-validation that is held out for the test by default."""


@dataclass(frozen=True)
class FieldFormat:
    """Format that is recognised by its columns. A role with several columns is ambiguous."""

    name: str
    """Name for messages, with an article."""
    needs: frozenset[str]
    """Columns that a table of this format has."""
    in_fasta: bool = False
    """Whether the columns are the words ``NAME=value`` in the headers of FASTA."""
    ids: tuple[str, ...] = ()
    """Column with the ids; none if well-known names decide."""
    sequences: tuple[str, ...] = ()
    """Columns with sequences of amino acids; none if well-known names decide."""
    mutations: tuple[str, ...] = ()
    """Column with mutations of one protein."""
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Label columns by kind of task."""
    masks: tuple[str, ...] = ()
    """Columns with 0 for residues that do not count, such as unresolved ones. All apply together."""
    split: FormatSplit | None = None
    nucleotides: tuple[str, ...] = ()
    """Columns with DNA, which are never taken for proteins."""
    without_sequence: str | None = None
    """Reason why such a table may have no sequences of amino acids, and what to do; None if it has them."""

    def labels_for(self, kind: str) -> tuple[str, ...]:
        """Return the label columns for a kind of task; none if the format has no labels for it."""
        return self.labels.get(kind, self.labels.get(ANY_KIND, ()))


PROTEINGYM_FOLDS = FormatSplit(
    columns=("fold_contiguous_5", "fold_modulo_5", "fold_random_5", "fold_rand_multiples"), fold=0
)
"""Folds of ProteinGym's supervised benchmark. Contiguous ones are the hardest, because no position near those
of the test was trained on; they are the default."""
PROTEINGYM_LABELS = {"regression": ("dms_score",), "binary": ("dms_score_bin",)}
DEEPLOC_COMPARTMENTS = (
    "cytoplasm",
    "nucleus",
    "extracellular",
    "cell_membrane",
    "mitochondrion",
    "plastid",
    "endoplasmic_reticulum",
    "lysosome/vacuole",
    "golgi_apparatus",
    "peroxisome",
)
PAIRED_CHAINS = ("sequence_alignment_aa_heavy", "sequence_alignment_aa_light")

FIELD_FORMATS = (
    FieldFormat(
        "FASTA with headers of biotrainer",
        needs=frozenset(("set",)),
        in_fasta=True,
        labels={ANY_KIND: ("target",)},
        masks=("mask",),
        split=FormatSplit(columns=("set",), validation_column="validation"),
    ),
    FieldFormat(
        "a split of FLIP",
        needs=frozenset(("sequence", "target", "set")),
        sequences=("sequence",),
        labels={ANY_KIND: ("target",)},
        split=FormatSplit(columns=("set",), validation_column="validation"),
    ),
    FieldFormat(
        "a ProteinGym assay of substitutions",
        needs=frozenset(("mutant", "mutated_sequence", "dms_score")),
        ids=("mutant",),
        sequences=("mutated_sequence",),
        mutations=("mutant",),
        labels=PROTEINGYM_LABELS,
        split=PROTEINGYM_FOLDS,
    ),
    FieldFormat(
        "a ProteinGym assay of insertions and deletions",
        needs=frozenset(("mutated_sequence", "dms_score")),
        sequences=("mutated_sequence",),
        labels=PROTEINGYM_LABELS,
        split=PROTEINGYM_FOLDS,
    ),
    FieldFormat(
        "a table of secondary structure in the form of NetSurfP",
        needs=frozenset(("input", "dssp3", "dssp8")),
        sequences=("input",),
        labels={"residue": ("dssp3", "dssp8")},
        masks=("disorder", "cb513_mask"),
    ),
    FieldFormat(
        "DeepLoc 2's table",
        needs=frozenset(("acc", "partition", "membrane", "sequence", *DEEPLOC_COMPARTMENTS)),
        ids=("acc",),
        sequences=("sequence",),
        labels={"binary": ("membrane",), "multilabel": DEEPLOC_COMPARTMENTS},
        split=FormatSplit(columns=("partition",), validation=("3",), test=("4",)),
    ),
    FieldFormat(
        "a table of antibodies with two chains (OAS)",
        needs=frozenset(PAIRED_CHAINS),
        sequences=PAIRED_CHAINS,
    ),
    FieldFormat(
        "a table of AIRR",
        needs=frozenset(("sequence_id", "sequence", "sequence_aa")),
        ids=("sequence_id",),
        sequences=("sequence_aa",),
    ),
    FieldFormat(
        "a table of IgBLAST, such as those of the Observed Antibody Space",
        needs=frozenset(("sequence", "sequence_alignment_aa")),
        sequences=("sequence_alignment_aa",),
    ),
    FieldFormat(
        "a table of AIRR",
        needs=frozenset(("sequence", "v_call", "j_call")),
        nucleotides=("sequence",),
        without_sequence="whose 'sequence' is DNA; give a table with the column 'sequence_aa', or name "
        "another column with proteins",
    ),
    FieldFormat(
        "an export of UniProt",
        needs=frozenset(("entry", "sequence")),
        ids=("entry",),
        sequences=("sequence",),
    ),
    FieldFormat(
        "an export of UniProt",
        needs=frozenset(("entry", "entry_name")),
        without_sequence="without sequences; add the column Sequence (Customize columns) and export it again",
    ),
    FieldFormat(
        "a score set of MaveDB",
        needs=frozenset(("accession", "hgvs_pro")),
        mutations=("hgvs_pro",),
        without_sequence="which has variants of one protein and no sequences; give it to seqlm variants as "
        "inference.mutations, with the protein as inference.input, or fine-tune on it with "
        "task.split.variants and task.wild_type",
    ),
)
"""Formats of the field, the more specific ones first: the first that fits is taken."""


def field_format(names: Iterable[str], *, in_fasta: bool = False) -> FieldFormat | None:
    """Return the format of a table, or of a FASTA file, by its columns; None if it has none of these.

    Args:
        names: names of all columns, as ``columns.normalized`` spells them.
        in_fasta: whether the columns are words in the headers of a FASTA file.
    """
    known = set(names)
    for one in FIELD_FORMATS:
        if one.in_fasta == in_fasta and one.needs <= known:
            return one
    return None
