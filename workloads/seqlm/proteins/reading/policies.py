"""Policy table: what each command does with each oddity of its input. Standard library only.

Readers look their decision up here, and ``docs/input-files.md`` shows the table. A pair that the table lacks
cannot occur, so that its lookup fails.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum


class Decision(Enum):
    """Treatment of an oddity."""

    USE = "use"
    """The record is used as it is. A warning may count such records."""
    CLEAN = "clean"
    """The record is corrected, or one of several equal ones is kept."""
    REJECT = "reject"
    """The record is left out and counted. The other records are used."""
    STOP = "stop"
    """The command ends with an error, and writes no result. The server and Python refuse the call."""


class Reader(Enum):
    """Command, or group of commands, that treats input in one way."""

    DATA = "`data`"
    """Preparation of proteins for pre-training."""
    FINETUNE = "`finetune`"
    """Preparation of a task's labelled proteins, which ``data`` with a task does, too."""
    INFERENCE = "`embed`, `predict`, `variants`"
    PROPOSE = "`propose`"
    """Table of measured variants. The wild type is read as by ``variants``."""
    CONTACTS = "`contacts`"
    EXPLORE = "`explore`"
    SERVER = "server"
    PYTHON = "Python"
    """``seqlm.load``."""


class Kind(StrEnum):
    """Oddity of a record or a file."""

    FINAL_STOP = "final stop"
    INNER_STOP = "inner stop"
    GAP = "gap"
    CHARACTER = "character"
    BLANK = "blank"
    LOWER_CASE = "lower case"
    UNUSUAL = "unusual letter"
    CHAINS = "several chains"
    BAD_CHAINS = "wrong chains"
    EMPTY = "empty"
    SHORT = "short"
    REPETITIVE = "repetitive"
    LONG = "long"
    HUGE = "huge"
    NUCLEOTIDES = "nucleotides"
    NO_ID = "no id"
    MARKED_ID = "marked id"
    CONTROL_CHARACTER = "control character"
    REPEATED_ID = "repeated id"
    REPEATED_SEQUENCE = "repeated sequence"
    REPEATED_MEASUREMENT = "repeated measurement"
    FIELDS = "fields"
    """``Problems`` of tables, which know no proteins, use this value."""
    NO_LABEL = "no label"
    MASKED = "masked"
    OTHER_SET = "other set"
    BAD_LABEL = "bad label"
    NO_ROW = "no row"
    REPEATED_ROW = "repeated row"
    NO_PROTEIN = "no protein"
    BAD_MUTATION = "bad mutation"
    OTHER_PROTEIN = "other protein"
    NOT_DRAWN = "not drawn"
    UNRESOLVED = "unresolved"
    MODIFIED = "modified"
    UNKNOWN_RESIDUE = "unknown residue"
    ALTERNATIVE = "alternative"
    MODEL = "model"
    OTHER_POLYMER = "other polymer"
    LIGAND = "ligand"
    WATER = "water"
    NOTHING_USED = "nothing used"
    NO_RECORD = "no record"


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Row of the policy table."""

    title: str
    """Description for the documentation."""
    one: str
    """Name of one such record in the line that counts records: ``1 empty``."""
    many: str
    """Name of several such records: ``2 repeated ids``."""
    decisions: Mapping[Reader, Decision]
    """Decision of each reader that can meet the oddity."""

    def counted(self, number: int) -> str:
        """Return the number of such records with their name."""
        return f"{number:,} {self.one if number == 1 else self.many}"


_FILES = (Reader.DATA, Reader.FINETUNE, Reader.INFERENCE, Reader.CONTACTS)
"""Readers of files with proteins."""
_CALLS = (Reader.SERVER, Reader.PYTHON)
"""Readers of calls, which answer for all proteins or none."""
_SEQUENCES = (*_FILES, *_CALLS)
"""Readers of sequences."""
_STRUCTURES = (*_FILES, Reader.PYTHON)
"""Readers of structures. A note says how often each oddity occurs."""


def _all(decision: Decision, *readers: Reader) -> dict[Reader, Decision]:
    """Return one decision for several readers."""
    return dict.fromkeys(readers, decision)


_BAD_RECORD = {
    **_all(Decision.REJECT, Reader.DATA, Reader.INFERENCE, Reader.CONTACTS),
    **_all(Decision.STOP, Reader.FINETUNE, *_CALLS),
}
"""Decisions for a record that is no valid protein. A labelled table is small and checked by hand, so that it
is corrected; those of other files come from programs."""


def _policy(
    title: str,
    *decisions: Mapping[Reader, Decision],
    one: str | None = None,
    many: str | None = None,
) -> Policy:
    """Return a row. Decisions that come later replace earlier ones.

    Args:
        title: description for the documentation.
        decisions: decisions of some readers each.
        one: name of one such record; by default the title.
        many: name of several such records; by default that of one.
    """
    name = one or title
    joined: dict[Reader, Decision] = {}
    for part in decisions:
        joined |= part
    return Policy(title=title, one=name, many=many or name, decisions=joined)


POLICIES: Mapping[Kind, Policy] = {
    Kind.FINAL_STOP: _policy("`*` at the end", _all(Decision.CLEAN, *_SEQUENCES)),
    Kind.BLANK: _policy("blanks and line ends in a sequence", _all(Decision.CLEAN, *_SEQUENCES)),
    Kind.LOWER_CASE: _policy("lower case", _all(Decision.CLEAN, *_SEQUENCES)),
    Kind.UNUSUAL: _policy(
        "U, O, B, Z, J or X",
        _all(Decision.USE, *_SEQUENCES),
        one="unusual letter",
        many="unusual letters",
    ),
    Kind.INNER_STOP: _policy(
        "`*` inside", _BAD_RECORD, one="with a stop inside", many="with stops inside"
    ),
    Kind.GAP: _policy("gap, `-` or `.`", _BAD_RECORD, one="with gaps"),
    Kind.CHARACTER: _policy(
        "other characters in a sequence", _BAD_RECORD, one="with other characters"
    ),
    Kind.CHAINS: _policy(
        "several chains, without `inference.chains` or `task.chains`",
        _all(Decision.CLEAN, Reader.DATA),  # each chain becomes a protein
        _all(Decision.STOP, Reader.FINETUNE, Reader.INFERENCE, Reader.CONTACTS, *_CALLS),
        one="with several chains",
    ),
    Kind.BAD_CHAINS: _policy(
        "an empty chain, or names that do not fit the chains",
        _BAD_RECORD,
        one="with wrong chains",
    ),
    Kind.EMPTY: _policy("no sequence", _BAD_RECORD, one="empty"),
    Kind.SHORT: _policy("fewer than 20 residues", _all(Decision.USE, *_SEQUENCES), one="short"),
    Kind.REPETITIVE: _policy(
        "low complexity", _all(Decision.USE, *_SEQUENCES), one="of low complexity"
    ),
    Kind.LONG: _policy(
        "longer than `model.max_residues`",
        _all(Decision.USE, Reader.DATA, Reader.FINETUNE, Reader.INFERENCE, Reader.PYTHON),
        _all(Decision.REJECT, Reader.CONTACTS),  # windows have no contacts with each other
        _all(Decision.STOP, Reader.SERVER),
        one="too long",
    ),
    Kind.HUGE: _policy("a record above 32 MiB", _all(Decision.STOP, *_FILES), one="too large"),
    Kind.NUCLEOTIDES: _policy(
        "DNA or RNA",
        _all(Decision.STOP, Reader.DATA, Reader.FINETUNE, *_CALLS),
        _all(Decision.REJECT, Reader.INFERENCE, Reader.CONTACTS),
    ),
    Kind.NO_ID: _policy(
        "a record without an id",
        _BAD_RECORD,
        _all(Decision.USE, Reader.PYTHON),
        one="without an id",
    ),
    Kind.MARKED_ID: _policy(
        "`>` before an id",
        _BAD_RECORD,
        _all(Decision.USE, *_CALLS),
        one="id with >",
        many="ids with >",
    ),
    Kind.CONTROL_CHARACTER: _policy(
        "control characters in an id",
        _BAD_RECORD,
        _all(Decision.USE, Reader.PYTHON),
        one="id with control characters",
        many="ids with control characters",
    ),
    Kind.REPEATED_ID: _policy(
        "repeated id",
        _all(Decision.REJECT, Reader.DATA),
        _all(Decision.STOP, Reader.FINETUNE),
        _all(Decision.USE, Reader.INFERENCE, Reader.CONTACTS, Reader.EXPLORE, Reader.SERVER),
        many="repeated ids",
    ),
    Kind.REPEATED_SEQUENCE: _policy(
        "repeated sequence",
        _all(Decision.CLEAN, Reader.DATA, Reader.FINETUNE),
        _all(Decision.USE, Reader.INFERENCE, Reader.CONTACTS, *_CALLS),
        many="repeated sequences",
    ),
    Kind.REPEATED_MEASUREMENT: _policy(
        "repeated measurement of a variant",
        _all(Decision.CLEAN, Reader.FINETUNE),
        _all(Decision.USE, Reader.PROPOSE),
        one="averaged repeat",
        many="averaged repeats",
    ),
    Kind.FIELDS: _policy(
        "a row with more or fewer cells",
        _all(Decision.REJECT, Reader.DATA, Reader.INFERENCE, Reader.CONTACTS, Reader.PROPOSE),
        _all(Decision.STOP, Reader.FINETUNE, Reader.EXPLORE, Reader.SERVER),
        one="row with other columns",
        many="rows with other columns",
    ),
    Kind.NO_LABEL: _policy(
        "a protein without a label",
        _all(Decision.REJECT, Reader.FINETUNE, Reader.PROPOSE),
        _all(Decision.USE, Reader.EXPLORE),
        one="without a label",
    ),
    Kind.MASKED: _policy(
        "a residue that a mask leaves out",
        _all(Decision.REJECT, Reader.FINETUNE),
        one="masked",
    ),
    Kind.OTHER_SET: _policy(
        "a protein of a further test set",
        _all(Decision.REJECT, Reader.FINETUNE),
        one="of another set",
    ),
    Kind.BAD_LABEL: _policy(
        "a label that the task lacks",
        _all(Decision.STOP, Reader.FINETUNE),
        _all(Decision.REJECT, Reader.PROPOSE),
        one="wrong label",
        many="wrong labels",
    ),
    Kind.NO_ROW: _policy(
        "a protein without a row in the table of labels",
        _all(Decision.REJECT, Reader.FINETUNE),
        _all(Decision.USE, Reader.EXPLORE),
        one="without a row",
    ),
    Kind.NO_PROTEIN: _policy(
        "a row of labels or mutations without a protein",
        _all(Decision.STOP, Reader.FINETUNE),
        _all(Decision.REJECT, Reader.INFERENCE, Reader.EXPLORE, Reader.PROPOSE),
        one="without a protein",
    ),
    Kind.REPEATED_ROW: _policy(
        "two rows of labels for one id",
        _all(Decision.STOP, Reader.FINETUNE, Reader.EXPLORE),
        one="second row for an id",
        many="second rows for an id",
    ),
    Kind.BAD_MUTATION: _policy(
        "a mutation that cannot be read",
        _all(Decision.REJECT, Reader.FINETUNE, Reader.INFERENCE, Reader.PROPOSE),
        _all(Decision.STOP, Reader.PYTHON),
        one="not a mutation",
        many="not mutations",
    ),
    Kind.OTHER_PROTEIN: _policy(
        "a mutation that does not fit the protein",
        _all(Decision.REJECT, Reader.FINETUNE, Reader.INFERENCE, Reader.PROPOSE),
        _all(Decision.STOP, Reader.PYTHON),
        one="that does not fit",
        many="that do not fit",
    ),
    Kind.NOT_DRAWN: _policy(
        "more proteins than `explore.max_proteins`",
        _all(Decision.REJECT, Reader.EXPLORE),
        one="not drawn",
    ),
    Kind.UNRESOLVED: _policy(
        "structure: a residue of SEQRES without coordinates",
        _all(Decision.USE, *_STRUCTURES),
        one="unresolved residue",
        many="unresolved residues",
    ),
    Kind.MODIFIED: _policy(
        "structure: a modified residue, which becomes its parent",
        _all(Decision.CLEAN, *_STRUCTURES),
        one="modified residue",
        many="modified residues",
    ),
    Kind.UNKNOWN_RESIDUE: _policy(
        "structure: a residue without a parent, or a cap, which becomes X",
        _all(Decision.CLEAN, *_STRUCTURES),
        one="unknown residue",
        many="unknown residues",
    ),
    Kind.ALTERNATIVE: _policy(
        "structure: alternative locations after the first",
        _all(Decision.CLEAN, *_STRUCTURES),
        one="residue with alternative locations",
        many="residues with alternative locations",
    ),
    Kind.MODEL: _policy(
        "structure: models after the first",
        _all(Decision.REJECT, *_STRUCTURES),
        one="further model",
        many="further models",
    ),
    Kind.OTHER_POLYMER: _policy(
        "structure: a chain of DNA, RNA or another polymer",
        _all(Decision.REJECT, *_STRUCTURES),
        one="chain of DNA, RNA or another polymer",
        many="chains of DNA, RNA or other polymers",
    ),
    Kind.LIGAND: _policy(
        "structure: a ligand, ion or sugar",
        _all(Decision.REJECT, *_STRUCTURES),
        one="ligand",
        many="ligands",
    ),
    Kind.WATER: _policy(
        "structure: water",
        _all(Decision.REJECT, *_STRUCTURES),
        one="water",
        many="waters",
    ),
    Kind.NO_RECORD: _policy(
        "an empty file, or a header only",
        _all(Decision.STOP, *_FILES, Reader.EXPLORE, Reader.PROPOSE, Reader.SERVER),
        one="empty file",
        many="empty files",
    ),
    Kind.NOTHING_USED: _policy(
        "a file of which nothing is used",
        _all(Decision.STOP, *_FILES, Reader.EXPLORE, Reader.PROPOSE),
        one="file of which nothing is used",
        many="files of which nothing is used",
    ),
}
"""Policy for each oddity."""


def decision(kind: Kind, reader: Reader) -> Decision:
    """Return what a reader does with an oddity.

    Raises:
        KeyError: if the reader cannot meet the oddity.
    """
    return POLICIES[kind].decisions[reader]


def policy_table() -> str:
    """Return the table in Markdown, as the documentation shows it."""
    lines = [
        "| oddity | " + " | ".join(reader.value for reader in Reader) + " |",
        "|" + "---|" * (len(Reader) + 1),
    ]
    for policy in POLICIES.values():
        cells = [
            policy.decisions[reader].value if reader in policy.decisions else ""
            for reader in Reader
        ]
        lines.append("| " + " | ".join([policy.title, *cells]) + " |")
    return "\n".join(lines)
