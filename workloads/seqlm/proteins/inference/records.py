"""Read proteins of FASTA files and tables one after another; bad records become rejects.

The proteins are cut into parts, each identified by a hash of all that its result depends on. One process
computes a part and writes it whole or not at all, so a killed command continues with the missing parts. The
parts depend on the input only, not on the number of processes.
"""

import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from seqlm.proteins.alphabet import decode
from seqlm.proteins.data.chained import chained_record
from seqlm.proteins.data.fasta import RECORD_START, Block, SourceReader, parse_block, single_records
from seqlm.proteins.data.plausibility import ALLOW, NUCLEOTIDES, is_nucleotides
from seqlm.proteins.data.sources import PROTEINS
from seqlm.proteins.finetune.table import PROTEIN_TABLE, Record, table_records
from seqlm.proteins.reading.chain_columns import cell_columns
from seqlm.proteins.reading.chain_modes import ChainMode, chain_mode
from seqlm.proteins.reading.chains import ChainSpan, Complex, choice_needed, joined, places_of
from seqlm.proteins.reading.columns import Chosen, Role, chosen_columns
from seqlm.proteins.reading.counts import Counts
from seqlm.proteins.reading.first_items import FIRST_ITEMS, NO_PROTEIN_KINDS, FirstItems
from seqlm.proteins.reading.formats import table_of_proteins
from seqlm.proteins.reading.policies import Decision, Kind, Reader, decision
from seqlm.proteins.reading.rejects import RecordError, Reject, rejected, stopped
from seqlm.runs.run_file import RunFile
from seqlm.training.data.limits import MIB
from seqlm.training.data.pauses import spread
from seqlm.training.data.source_file import note_once
from seqlm.training.data.table_rows import Problems, Table
from seqlm.training.data.transfer import BeingFetched, fetch
from seqlm.training.heartbeat import beat

from .paired_cells import paired

BLOCK_BYTES = 4 * MIB
"""Number of bytes of a FASTA file that are parsed at once."""
MAX_RECORD_BYTES = 32 * MIB
"""Largest number of bytes of a record."""
POLL_SECONDS = 2.0
"""Seconds between two looks at a download of another process."""
KEY_RESIDUES = 500_000
"""Residues that are hashed at once for the key of an input."""
PART_REJECTS = 100_000
"""Number of rejects after which a part ends, so that the memory of an input without proteins is bounded."""
LENGTH_BYTES = 8
"""Bytes of a field's length in a hash."""
READERS = {
    "embed": Reader.INFERENCE,
    "predict": Reader.INFERENCE,
    "variants": Reader.INFERENCE,
    "contacts": Reader.CONTACTS,
    "propose": Reader.INFERENCE,
    "scorecard": Reader.INFERENCE,
    "layers": Reader.INFERENCE,
}
"""Policies of each command. Those of ``scorecard`` and ``layers`` are unused: they read prepared data."""
COLUMN_FIELDS = {Role.ID: "inference.id_column", Role.SEQUENCE: "inference.sequence_column"}
"""Fields of the run file that name the columns of a table."""
_digest = partial(hashlib.blake2b, digest_size=16)


@dataclass(frozen=True)
class Protein:
    id: str
    tokens: npt.NDArray[np.uint8]
    """Token ids, (L,), without CLS and EOS."""
    file: str
    """File that the protein comes from, for messages."""
    chains: tuple[ChainSpan, ...] = ()
    """Chains that are read as this protein, in ``tokens``; empty for a protein of one chain."""

    @property
    def sequence(self) -> str:
        """Residues that the model reads, linkers between chains included."""
        return decode(self.tokens)

    @property
    def places(self) -> npt.NDArray[np.int64]:
        """Places in ``tokens`` of the residues that get an answer: all but those of linkers."""
        return places_of(self.chains) if self.chains else np.arange(len(self.tokens))

    @property
    def residues(self) -> npt.NDArray[np.uint8]:
        """Token ids without those of linkers."""
        return self.tokens[self.places] if self.chains else self.tokens

    @property
    def num_residues(self) -> int:
        """Number of residues, without linkers."""
        return sum(map(len, self.chains)) if self.chains else len(self.tokens)


def read_proteins(
    locations: Sequence[str],
    downloads: Path,
    *,
    id_column: str | None = None,
    sequence_column: str | None = None,
    sequence_columns: Sequence[str] = (),
    pairs_cells: bool = False,
) -> Iterator[Protein | Complex | Reject]:
    """Yield all records of the files that the locations name, in their order.

    Args:
        locations: files, folders and addresses, as in ``inference.input``.
        downloads: folder for downloaded files.
        id_column: column of a table with the ids; None to find it by its name.
        sequence_column: column of a table with the sequences; None to find it by its name.
        sequence_columns: columns of a table with the sequences of a record's chains; none for one column.
        pairs_cells: whether the rows of one cell (AIRR) are the chains of one record.

    Raises:
        ValueError: if a file cannot be read, or a table lacks these columns.
    """
    paths: list[Path] = []
    for location in locations:
        paths += fetched(location, downloads)
    for path in paths:
        form = table_of_proteins(path)
        if form is not None:
            table = Table(path, PROTEIN_TABLE, form)
            columns = chosen_columns(
                table.header,
                str(path),
                id_column=id_column,
                sequence_column=sequence_column,
                fields=COLUMN_FIELDS,
                sequence_columns=sequence_columns,
            )
            yield from _of_table(table, columns, pairs_cells=pairs_cells)
            continue
        with closing(SourceReader(path)) as reader:
            for block in reader.blocks(RECORD_START, BLOCK_BYTES, MAX_RECORD_BYTES):
                yield from _of_block(block)


def fetched(location: str, downloads: Path) -> list[Path]:
    """Return the local files of a location; one process of a command downloads, the others wait for it."""
    while True:
        try:
            return fetch(location, downloads, PROTEINS)
        except BeingFetched:
            beat("waiting for a download")
            time.sleep(spread(POLL_SECONDS))


def records_of(
    config: RunFile, locations: Sequence[str] = (), reader: Reader = Reader.INFERENCE
) -> Iterator[Protein | Reject]:
    """Read the records of ``inference.input``, or only those of the given locations.

    Args:
        config: run file.
        locations: files, folders and addresses; none for those of the run file.
        reader: command whose policies apply.

    Raises:
        ValueError: if a file cannot be read, or nothing of a location can be used.
    """
    inference = config.inference
    task = config.task
    id_column = task.id_column if task else None
    sequence_column = task.sequence_column if task else None
    sequence_columns = task.sequence_columns if task else ()
    name = mode_name(config)
    mode = None if name is None else chain_mode(name)
    for location in locations or inference.input:
        records = read_proteins(
            [location],
            Path(config.data.downloads),
            id_column=inference.id_column or id_column,
            sequence_column=inference.sequence_column or sequence_column,
            sequence_columns=inference.sequence_columns or sequence_columns,
            pairs_cells=mode is not None,
        )
        place = f"inference.input: {location}"
        counts = Counts("proteins")
        first: Reject | None = None
        first_records = FirstItems()
        for read in records:
            for protein in _with_mode(read, mode, reader):
                record = _checked(protein, config, reader)
                if isinstance(record, Reject):
                    counts.leave_out([record])
                    first = first or record
                    is_no_protein = record.kind in NO_PROTEIN_KINDS
                else:
                    counts.used += 1
                    is_no_protein = False
                if first_records.are_refused(is_no_protein):
                    raise first_refused(place, "records are no proteins", first, reader)
                yield record
        if not counts.used:
            raise nothing_used(place, counts, first, reader)


def mode_name(config: RunFile) -> str | None:
    """Return the name of the reading of records with several chains; None if the run file names none."""
    return config.inference.chains or (config.task.chains if config.task else None)


def _with_mode(
    record: Protein | Complex | Reject, mode: ChainMode | None, reader: Reader
) -> Sequence[Protein | Reject]:
    """Return the proteins that the model reads of a record.

    Raises:
        RecordError: (a ValueError) if the record has several chains, and the run file does not say how to
            read them.
    """
    if not isinstance(record, Complex):
        return [record]
    if mode is None:
        needed = choice_needed(record, "inference.chains")
        raise stopped(reader, Reject(Kind.CHAINS, record.file, needed, record.id))
    return proteins_of(record, mode)


def proteins_of(record: Complex, mode: ChainMode) -> list[Protein]:
    """Return the proteins that the model reads of a record with several chains."""
    if not mode.joins:
        return [
            Protein(f"{record.id}.{chain.name}", chain.tokens, record.file)
            for chain in record.chains
        ]
    whole = joined(record.chains, mode)
    return [Protein(record.id, whole.tokens, record.file, whole.spans)]


def with_policies(config: RunFile, reader: Reader) -> RunFile:
    """Return a run file with the reader's own policy for long proteins, if it has one."""
    if decision(Kind.LONG, reader) is not Decision.REJECT:
        return config
    inference = replace(config.inference, long_proteins="reject")
    return replace(config, inference=inference)


def nothing_used(place: str, counts: Counts, first: Reject | None, reader: Reader) -> RecordError:
    """Return the error for an input of which nothing can be used.

    Args:
        place: field of the run file and its value.
        counts: numbers of the items of this input.
        first: first reject; None if the input has no items.
        reader: command whose policies apply.
    """
    if first is None:
        return stopped(
            reader, Reject(Kind.NO_RECORD, place, f"got no {counts.what}; give at least one")
        )
    reason = f"nothing can be used. {counts.line()}, the first one at {first.text}"
    return stopped(reader, Reject(Kind.NOTHING_USED, place, reason))


def first_refused(place: str, problem: str, first: Reject | None, reader: Reader) -> RecordError:
    """Return the error for an input of which the first items are all refused for one reason.

    Args:
        place: field of the run file and its value.
        problem: items, and what is wrong with them.
        first: first reject.
        reader: command whose policies apply.
    """
    assert first is not None, "all first items are rejects"
    reason = (
        f"the first {FIRST_ITEMS:,} {problem}, so the rest is not read; correct the file. The first one is "
        f"at {first.text}"
    )
    return stopped(reader, Reject(Kind.NOTHING_USED, place, reason))


def _checked(record: Protein | Reject, config: RunFile, reader: Reader) -> Protein | Reject:
    """Apply the policies: turn DNA and RNA into rejects, and long proteins if the run file says so."""
    if isinstance(record, Reject):
        return rejected(reader, record)
    length = len(record.tokens)
    longest = config.model.max_residues
    chains = [record.tokens[span.start : span.stop] for span in record.chains] or [record.tokens]
    if not config.data.allow_nucleotides and any(map(is_nucleotides, chains)):
        reason = (
            f"record {record.id} looks like DNA or RNA (letters {NUCLEOTIDES} only); give its "
            f"translation into protein, or allow it with {ALLOW}"
        )
        return rejected(reader, Reject(Kind.NUCLEOTIDES, record.file, reason, record.id))
    if length > longest and config.inference.long_proteins == "reject":
        reason = (
            f"record {record.id} has {length} residues; allowed are {longest} (model.max_residues)"
        )
        if decision(Kind.LONG, reader) is not Decision.REJECT:
            reason += ", or set inference.long_proteins to window or crop"
        return Reject(Kind.LONG, record.file, reason, record.id)
    return record


class _Collected(Problems):
    """Problems that become rejects and are not counted."""

    def __init__(self) -> None:
        super().__init__()
        self.rejects: list[Reject] = []

    def add(self, where: str, text: str, kind: str = "") -> None:
        self.rejects.append(Reject(Kind(kind), where, text))

    def taken(self) -> list[Reject]:
        """Return the rejects since the last call."""
        found = self.rejects
        self.rejects = []
        return found


def _of_table(
    table: Table, columns: Chosen, *, pairs_cells: bool
) -> Iterator[Protein | Complex | Reject]:
    """Yield the records of a table in their order.

    Args:
        table: table.
        columns: columns with the ids and sequences.
        pairs_cells: whether the rows of one cell are chains of one record. Such a table is held in memory.
    """
    note = f"{table.path} is {table.form.title}; {columns.describe()}"
    of_cells = cell_columns(table.header) if pairs_cells and not columns.chains else None
    if of_cells is not None:
        note += f"; rows of one {of_cells.cell} are chains of one record"
    if table.form.source is None:  # a structure reports its chains
        note_once(note)
    wanted = [*([] if columns.id is None else [columns.id]), *columns.sequences]
    if of_cells is not None:
        wanted += of_cells.all
    records = _table_records(table, list(dict.fromkeys(wanted)), columns)
    if of_cells is not None:
        records = paired(records, of_cells)
    for record in records:
        if isinstance(record, Reject):
            yield record
        elif record.complex is not None:
            yield replace(record.complex, file=str(table.path))
        else:
            tokens = np.frombuffer(record.tokens, dtype=np.uint8)
            yield Protein(record.id, tokens, str(table.path))


def _table_records(
    table: Table, wanted: Sequence[str], columns: Chosen
) -> Iterator[Record | Reject]:
    """Yield the records of a table, and the rows that have none as rejects.

    Args:
        table: table.
        wanted: all columns to read.
        columns: columns with the ids and sequences.
    """
    problems = _Collected()
    rows = table.rows(wanted, problems)
    for record in table_records(rows, columns.id, columns.sequences, problems):
        yield from problems.taken()
        yield record
    yield from problems.taken()


def _of_block(block: Block) -> Iterator[Protein | Complex | Reject]:
    """Yield the records of a block of FASTA; if it has mistakes, parse its records one by one."""
    try:
        ids, tokens = parse_block(block)
    except RecordError as error:
        records = list(single_records(block))
        if len(records) > 1:
            for record in records:
                yield from _of_block(record)
            return
        yield chained_record(block) or error.reject
        return
    for name, protein in zip(ids, tokens, strict=True):
        yield Protein(name.decode(), np.frombuffer(protein, dtype=np.uint8), block.file)


@dataclass(frozen=True)
class Planned:
    """Description of a part, without its proteins."""

    file: str
    """Name of its result. It has the hash of everything that the result depends on."""
    num_proteins: int
    num_residues: int
    """Residues of all proteins, long ones in full, without linkers."""
    num_rejects: int


@dataclass(frozen=True)
class Part:
    """Consecutive records of the input, the results of which are written together."""

    number: int
    """Position among the parts, from 0."""
    proteins: list[Protein]
    rejects: list[Reject]
    planned: Planned
    """Description of the part."""


class _Cut:
    """Counts and hash of the records of a part.

    Args:
        number: position among the parts, from 0.
        settings: all values besides the records that the result depends on.
    """

    def __init__(self, number: int, settings: str) -> None:
        self.number = number
        self.num_proteins = 0
        self.num_residues = 0
        self.num_rejects = 0
        self._digest = _digest(settings.encode())

    def add(self, record: Protein | Reject) -> None:
        """Add the next record."""
        if isinstance(record, Reject):
            self.num_rejects += 1
            _add(self._digest, b"reject", *(cell.encode() for cell in record.cells))
            return
        self.num_proteins += 1
        self.num_residues += record.num_residues
        _add(self._digest, record.id.encode(), record.tokens.tobytes())
        for span in record.chains:  # proteins of one chain keep their keys
            _add(self._digest, span.name.encode(), f"{span.start}-{span.stop}".encode())

    def is_full(self, num_residues: int) -> bool:
        """Return whether the part ends here."""
        return self.num_residues >= num_residues or self.num_rejects >= PART_REJECTS

    @property
    def is_empty(self) -> bool:
        """Whether the part has no record."""
        return self.num_proteins + self.num_rejects == 0

    def planned(self) -> Planned:
        """Return the description of the part."""
        file = f"{self.number:06d}-{self._digest.hexdigest()}.parquet"
        return Planned(file, self.num_proteins, self.num_residues, self.num_rejects)


def cut(records: Iterable[Protein | Reject], num_residues: int, settings: str) -> Iterator[Part]:
    """Yield parts of at least ``num_residues``; the last one is shorter, and an only one may be empty.

    A part also ends at ``PART_REJECTS``, so that a list of any length is written piece by piece.

    Args:
        records: records of the input.
        num_residues: number of residues after which a part ends.
        settings: all other values that the results depend on.
    """
    found = _Cut(0, settings)
    proteins: list[Protein] = []
    rejects: list[Reject] = []
    for record in records:
        if isinstance(record, Reject):
            rejects.append(record)
        else:
            proteins.append(record)
        found.add(record)
        if found.is_full(num_residues):
            yield Part(found.number, proteins, rejects, found.planned())
            found = _Cut(found.number + 1, settings)
            proteins = []
            rejects = []
    if not found.is_empty or found.number == 0:
        yield Part(found.number, proteins, rejects, found.planned())


def key_of(plan: Iterable[Planned]) -> str:
    """Return the key of the whole result."""
    return _digest("\n".join(part.file for part in plan).encode()).hexdigest()


class InputKey:
    """Hash of a whole input, from its records."""

    def __init__(self) -> None:
        self._parts: list[Planned] = []
        self._cut = _Cut(0, "")

    def adding(self, records: Iterable[Protein | Reject]) -> Iterator[Protein | Reject]:
        """Yield records, and add each of them."""
        for record in records:
            self._cut.add(record)
            if self._cut.is_full(KEY_RESIDUES):
                self._parts.append(self._cut.planned())
                self._cut = _Cut(self._cut.number + 1, "")
            yield record

    @property
    def value(self) -> str:
        """Hash of the records that have been added."""
        is_last = not self._cut.is_empty or self._cut.number == 0
        return key_of([*self._parts, self._cut.planned()] if is_last else self._parts)


def input_key(config: RunFile, reader: Reader) -> str:
    """Return a hash of the whole input, which is read for it.

    Args:
        config: run file.
        reader: command whose policies apply.
    """
    key = InputKey()
    for _ in key.adding(records_of(config, reader=reader)):
        pass
    return key.value


def _add(digest: hashlib.blake2b, *fields: bytes) -> None:
    """Add fields to a hash, each after its length, so that their bounds count, too."""
    for text in fields:
        digest.update(len(text).to_bytes(LENGTH_BYTES, "little"))
        digest.update(text)
