"""Records with several chains in FASTA and in cells of tables."""

from collections.abc import Sequence

from seqlm.proteins.reading.chains import (
    Chain,
    ChainError,
    Complex,
    has_chains,
    named_texts,
    names_in_header,
)
from seqlm.proteins.reading.policies import Kind
from seqlm.proteins.reading.rejects import Reject
from seqlm.proteins.reading.sequences import SequenceError, read_sequence
from seqlm.training.strict_yaml import shown

from .fasta import Block, id_of, problem_of

_OTHER_BLANKS = bytes(
    0 if chr(byte).isspace() and byte not in b" \t\r\n" else byte for byte in range(256)
)
"""Table that makes characters visible which Python takes for blanks, and the reader of FASTA does not."""
_ANY_PROTEIN = b"M"
"""Sequence with which only an id can be wrong."""


def chained_record(record: Block) -> Complex | Reject | None:
    """Return the chains of a record of FASTA, which is a block of its own; None if it has only one."""
    head, _, body = record.data.partition(b"\n")
    if b"|" not in body and b":" not in body:
        return None
    record_id = id_of(record)
    if not record_id:
        return None  # the id is what is wrong with it
    where = f"{record.file}:{record.first_line}"
    problem = problem_of(record_id, _ANY_PROTEIN)
    if problem is not None:
        return Reject(problem.kind, where, problem.reason)
    names = names_in_header(head.decode(errors="replace"))
    text = body.translate(_OTHER_BLANKS).decode("ascii", errors="replace")
    return chained_text(record_id.decode(), text, names, where=where, file=record.file)


def chained_text(
    name: str, text: str, names: Sequence[str] | None, *, where: str, file: str
) -> Complex | Reject:
    """Return the chains of a text with separators, or the reason why they cannot be used.

    Args:
        name: id of the record.
        text: sequences with ``|`` or ``:`` between them.
        names: names of the chains; None to name them A, B and so on.
        where: place of the record.
        file: file of the record.
    """
    try:
        pairs = named_texts(text, names)
    except ChainError as error:
        return _wrong(name, str(error), where)
    return complex_of(name, pairs, where=where, file=file)


def complex_of(
    name: str, pairs: Sequence[tuple[str, str]], *, where: str, file: str
) -> Complex | Reject:
    """Return a record of chains, or the reason why it cannot be used.

    Args:
        name: id of the record.
        pairs: name and sequence of each chain.
        where: place of the record.
        file: file of the record.
    """
    chains: list[Chain] = []
    for chain, text in pairs:
        if has_chains(text):
            return _wrong(name, f"chain {shown(chain)} has '|' or ':' in it; give one chain", where)
        try:
            chains.append(Chain(chain, read_sequence(text)))
        except SequenceError as error:
            reason = f"record {shown(name)}, chain {shown(chain)}: {error}"
            return Reject(error.kind, where, reason, name)
    try:
        return Complex(name, tuple(chains), file)
    except ChainError as error:
        return _wrong(name, str(error), where)


def _wrong(name: str, reason: str, where: str) -> Reject:
    """Return the reject of chains that make no record."""
    return Reject(Kind.BAD_CHAINS, where, f"record {shown(name)}: {reason}", name)
