"""FASTA files as numbered blocks of whole records, and blocks as lists of ids and token strings.

The reader makes one pass over the file: it decompresses, hashes the raw bytes and counts lines, and
leaves parsing to the process that gets the block. Parsing takes a few C-speed calls per record. A mistake is
detected in the whole block first, and then located (file, line, record).
"""

import hashlib
import io
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from seqlm.proteins.alphabet import NOT_A_RESIDUE, RESIDUE_TABLE
from seqlm.proteins.reading.policies import Kind
from seqlm.proteins.reading.rejects import RecordError, Reject
from seqlm.proteins.reading.sequences import kind_of_character
from seqlm.training.data.source_file import Source, reading

RECORD_START = b"\n>"
LINE_START = b"\n"

STOP = 254
"""Token of '*' while reading. It is dropped at the end of a protein and is an error elsewhere."""
_TABLE = bytes(STOP if byte == ord("*") else token for byte, token in enumerate(RESIDUE_TABLE))
_SPACE = b" \t\r\n"
_CONTROLS = bytes([*range(10), *range(11, 32), 127])
CONTROL_CHARACTER = re.compile("[\0-\x1f\x7f-\x9f]")
"""Characters that ids must not contain. Terminals obey some of them, and tables break at others."""
_RECORDS_PER_CHECK = 512
"""Records that are joined and searched for bad bytes at once, while they are still in the CPU's cache."""
_READ_BYTES = 1 << 20
_SHOWN_BYTES = 60
"""Length to which ids and lines are cut in messages."""


@dataclass(frozen=True)
class Block:
    """Whole records (or lines) of one file."""

    file: str
    first_line: int
    """Line number of the first byte, from 1."""
    data: bytes

    @property
    def num_bytes(self) -> int:
        """Size of the text."""
        return len(self.data)


class _HashingFile(io.RawIOBase):
    """File that computes the SHA-256 of what was read and reports the number of bytes."""

    def __init__(self, path: Path, on_bytes: Callable[[int], object]) -> None:
        self._path = path
        self._file = path.open("rb", buffering=0)
        self._on_bytes = on_bytes
        self.sha256 = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        with reading(self._path):
            count = self._file.readinto(buffer) or 0
        self.sha256.update(memoryview(buffer)[:count])
        self._on_bytes(count)
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


class SourceReader:
    """One pass over a FASTA file or a table, plain or compressed; the content decides which."""

    def __init__(
        self, path: Path, *, on_bytes: Callable[[int], object] = lambda count: None
    ) -> None:
        self.path = path
        self._raw = _HashingFile(path, on_bytes)
        self._stream = Source(path, self._raw)

    @property
    def sha256(self) -> str:
        """SHA-256 of the file as it lies on disk; call after the last block."""
        return self._raw.sha256.hexdigest()

    def close(self) -> None:
        self._raw.close()

    def blocks(self, separator: bytes, block_bytes: int, max_record_bytes: int) -> Iterator[Block]:
        """Yield blocks of about ``block_bytes`` that are cut at separators.

        Args:
            separator: newline with the bytes that begin a record or line.
            block_bytes: size of a block; a longer record makes its block longer.
            max_record_bytes: size of the longest record allowed.

        Raises:
            ValueError: if the file is empty or damaged, has a record that is too long, or should be FASTA and
                does not begin with a header.
        """
        line = 1
        carry = b""
        started = False
        while True:
            data, ended = self._read(carry, block_bytes)
            if not started:
                data, skipped_lines = _without_leading_blanks(data, separator)
                line += skipped_lines
                started = bool(data)
                if started and separator == RECORD_START:
                    _check_fasta_start(Block(str(self.path), line, data))
            searched_from = max(0, len(carry) - len(separator))
            cut = len(data) if ended else data.rfind(separator, searched_from) + 1
            if carry and len(data) > max_record_bytes:
                # Blocks are smaller than records may be, so that only the record at their edge can be longer.
                end = data.find(separator, searched_from) + 1 or len(data)
                self._check_size(end, line, max_record_bytes)
            if cut:
                yield Block(str(self.path), line, data[:cut])
                line += data.count(b"\n", 0, cut)
            carry = data[cut:]
            self._check_size(len(carry), line, max_record_bytes)
            if ended:
                break
        if not started:
            raise ValueError(f"{self.path} is empty; give a file with at least one record")

    def _check_size(self, num_bytes: int, line: int, max_record_bytes: int) -> None:
        """Raise ValueError if a record is too long.

        Args:
            num_bytes: length of the record, or of a part of it.
            line: line on which it begins.
            max_record_bytes: length of the longest record allowed.
        """
        if num_bytes > max_record_bytes:
            raise ValueError(
                f"{self.path}:{line}: a record of more than {max_record_bytes} bytes; the longest proteins "
                "have some 50 thousand residues, so check that each has a header line of its own"
            )

    def _read(self, carry: bytes, num_bytes: int) -> tuple[bytes, bool]:
        """Return ``carry`` and about ``num_bytes`` more, and whether the file ended."""
        parts = [carry]
        missing = num_bytes
        while missing > 0:
            part = self._stream.read(min(missing, _READ_BYTES))
            if not part:
                # An archive is read through another stream, and others may have bytes behind the content.
                while self._raw.read(_READ_BYTES):
                    pass
                return b"".join(parts), True
            parts.append(part)
            missing -= len(part)
        return b"".join(parts), False


def _without_leading_blanks(data: bytes, separator: bytes) -> tuple[bytes, int]:
    """Drop leading blank lines; return the rest, and the number of these lines."""
    # A table's row may have nothing but empty fields. A header begins its line: blanks before it stay.
    blank_lines = rb"[\r\n]*" if separator == LINE_START else rb"(?:[ \t\r]*\n)*"
    rest = re.sub(rb"\A" + blank_lines, b"", data) if data.strip() else b""
    return rest, data.count(b"\n", 0, len(data) - len(rest))


def _check_fasta_start(block: Block) -> None:
    """Check that the first block of a FASTA file begins with a header.

    Raises:
        ValueError: if it does not. The message says if there is a sequence without header, or another format.
    """
    if block.data.startswith(b">"):
        return
    first_line = block.data.partition(b"\n")[0].rstrip()
    where = f"{block.file}:{block.first_line}"
    if first_line.translate(RESIDUE_TABLE).find(NOT_A_RESIDUE) < 0:
        raise ValueError(f"{where}: sequence before the first header; begin with a line '>id ...'")
    raise ValueError(
        f"{where}: not FASTA: the first line is {_shown(first_line)}; it must be a header, '>id ...'"
    )


def split_block(block: Block, max_records: int) -> Iterator[Block]:
    """Yield parts of a block with about ``max_records`` records, so that peptides take no more memory."""
    size = len(block.data)
    # One byte is found faster than two. Headers such as "3'->5' exonuclease" only make a few parts more.
    num_parts = block.data.count(b">") // max_records + 1
    step = size // num_parts + 1
    start = 0
    line = block.first_line
    while start < size:
        end = block.data.find(RECORD_START, min(start + step, size)) + 1 or size
        part = block.data[start:end]
        yield Block(block.file, line, part)
        line += part.count(b"\n")
        start = end


def parse_block(block: Block) -> tuple[list[bytes], list[bytes]]:
    """Return the ids and token strings of the records of a block. An id ends at the header's first blank.

    Raises:
        RecordError: (a ValueError) for the first bad record. The message names file, line and record.
    """
    records = parsed(block)
    if records is None:
        raise _first_problem(block)
    return records


def tokens_of(text: bytes) -> bytes:
    """Return the token string of a sequence, without blanks. A '*' is ``STOP``, wherever it is."""
    return text.translate(_TABLE, _SPACE)


def protein_of(text: bytes) -> bytes:
    """Return the token string of a sequence, without blanks and without one '*' at its end."""
    return tokens_of(text).removesuffix(bytes([STOP]))


def parsed(block: Block) -> tuple[list[bytes], list[bytes]] | None:
    """Return the ids and token strings of a block; None if it has a bad record."""
    data = block.data
    ids: list[bytes] = []
    tokens: list[bytes] = []
    # Only id and tokens of a record outlive its turn: the temporaries stay in the CPU's cache.
    for start, stop in itertools.pairwise(_record_bounds(data)):
        header_end = data.find(b"\n", start, stop)
        if header_end < 0:
            header_end = stop
        words = data[start + 1 : header_end].split(None, 1)
        if not words:
            return None
        ids.append(words[0])
        tokens.append(data[header_end + 1 : stop].translate(_TABLE, _SPACE))
    proteins = without_stops(tokens)
    return None if proteins is None or not are_ids(ids) else (ids, proteins)


def without_stops(tokens: list[bytes]) -> list[bytes] | None:
    """Return token strings without the '*' at their ends; None if one is not a protein."""
    for start in range(0, len(tokens), _RECORDS_PER_CHECK):
        joined = b"".join(tokens[start : start + _RECORDS_PER_CHECK])
        if STOP in joined or NOT_A_RESIDUE in joined:
            tokens = [protein.removesuffix(bytes([STOP])) for protein in tokens]
            if any(STOP in protein or NOT_A_RESIDUE in protein for protein in tokens):
                return None
            break
    return None if b"" in tokens else tokens


def are_ids(ids: list[bytes]) -> bool:
    """Return whether all ids are allowed."""
    return _are_text(ids) and not _marked_twice(ids)


def record_lines(block: Block) -> Iterator[tuple[bytes, int]]:
    """Yield the id and the line of the header of every record. This is slow, and only for messages."""
    for record in single_records(block):
        yield id_of(record), record.first_line


def single_records(block: Block) -> Iterator[Block]:
    """Yield each record of a block alone, so that a bad one does not affect the others."""
    line = block.first_line
    for start, stop in itertools.pairwise(_record_bounds(block.data)):
        record = block.data[start:stop]
        yield Block(block.file, line, record)
        line += record.count(b"\n")


def _record_bounds(data: bytes) -> list[int]:
    """Return the start of each record of a block, and the end of the last one."""
    array = np.frombuffer(data, dtype=np.uint8)
    # The first sign is the block's first byte, which has no byte before it.
    signs = np.flatnonzero(array == ord(">"))[1:]
    begins_line = array[signs - 1] == ord("\n")
    return [0, *signs[begins_line].tolist(), len(data)]


def _are_text(ids: list[bytes]) -> bool:
    """Check that ids are UTF-8 without control characters."""
    joined = b"\n".join(ids)
    if len(joined.translate(None, _CONTROLS)) < len(joined):
        return False
    try:
        return joined.isascii() or not re.search("[\x80-\x9f]", joined.decode())
    except UnicodeDecodeError:
        return False


def _marked_twice(ids: list[bytes]) -> bool:
    """Return whether an id begins with the sign that begins a header."""
    joined = b"\n".join(ids)
    return joined.startswith(b">") or RECORD_START in joined


def _first_problem(block: Block) -> RecordError:
    """Return an error that describes the first bad record of a block, which has one."""
    for record in single_records(block):
        bad = bad_record(record)
        if bad is not None:
            return RecordError(bad.kind, bad.where, bad.reason)
    raise AssertionError(f"no bad record in {block.file} from line {block.first_line}")


def id_of(record: Block) -> bytes:
    """Return the id of a record, which is a block of its own; empty if its header has none."""
    header = record.data[1:].partition(b"\n")[0]
    return (header.split(None, 1) or [b""])[0]


def bad_record(record: Block) -> Reject | None:
    """Return what is wrong with a record, which is a block of its own; None if it is usable."""
    record_id = id_of(record)
    body = record.data.partition(b"\n")[2]
    where = f"{record.file}:{record.first_line}"
    if not record_id:
        return Reject(Kind.NO_ID, where, "header without an id; write '>id', each record its own")
    problem = problem_of(record_id, body)
    if problem is None:
        return None
    line = record.first_line
    if problem.position is not None:
        line += 1 + _line_of(body, problem.position)
    name = record_id.decode(errors="replace")
    return Reject(problem.kind, f"{record.file}:{line}", problem.reason, name)


@dataclass(frozen=True)
class Problem:
    """Reason why a record is not usable."""

    kind: Kind
    reason: str
    position: int | None = None
    """Place of the first bad character in the sequence, from 0; None if the reason is another one."""


_GAPS = "remove the gaps of aligned sequences"
_CHAINS = "give each chain a record of its own"
_ADVICE = {"-": _GAPS, ".": _GAPS, "|": _CHAINS, ":": _CHAINS}
"""Remedies for characters that are no residues."""


def problem_of(record_id: bytes, body: bytes) -> Problem | None:
    """Return what is wrong with a record; None if it is usable.

    Args:
        record_id: id, which is not empty.
        body: sequence, with any blanks and line ends.
    """
    if _marked_twice([record_id]):
        return Problem(
            Kind.MARKED_ID, f"the id {_shown(record_id)} begins with '>'; write one '>' a header"
        )
    if not _are_text([record_id]):
        wrong = f"{_shown(record_id)} is not UTF-8 text or has control characters"
        return Problem(Kind.CONTROL_CHARACTER, f"the id {wrong}; rename the record")
    name = record_id.decode()[:_SHOWN_BYTES]
    protein = protein_of(body)
    if not protein:
        return Problem(Kind.EMPTY, f"record {name} has no sequence; remove it or add its residues")
    if STOP not in protein and NOT_A_RESIDUE not in protein:
        return None
    position = next(place for place, token in enumerate(protein) if token >= STOP)
    raw = body.translate(None, _SPACE)[position : position + 1]
    character = raw.decode("latin-1")
    advice = _ADVICE.get(character, "correct or remove the record")
    return Problem(
        kind_of_character(character),
        f"{_shown(raw)} in record {name} is not a residue; allowed are the letters A-Z in either case "
        f"and one '*' at the end of one; {advice}",
        position,
    )


def _line_of(body: bytes, position: int) -> int:
    """Return the number, from 0, of the line of a sequence with the character at a position."""
    seen = 0
    for number, line in enumerate(body.split(b"\n")):
        seen += len(line.translate(None, _SPACE))
        if seen > position:
            return number
    raise AssertionError(f"no character {position} in a sequence of {seen}")


def _shown(raw: bytes) -> str:
    """Return the beginning of some bytes for a message, escaped."""
    text = repr(raw[:_SHOWN_BYTES])[1:]
    return text if len(raw) <= _SHOWN_BYTES else text + "..."
