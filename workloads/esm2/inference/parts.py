"""The input cut into parts, each known by a hash of what goes into its result.

A part is computed by one process and written whole or not at all, so a command that was killed goes on with
the parts that are missing. Where a part ends depends on the input alone, not on the number of processes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from .records import Protein, Reject

_digest = partial(hashlib.blake2b, digest_size=16)


@dataclass
class Part:
    number: int
    proteins: list[Protein] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    num_residues: int = 0
    """Of all proteins, long ones in full."""
    key: str = ""


@dataclass(frozen=True)
class Planned:
    """A part without its proteins."""

    file: str
    num_proteins: int
    num_residues: int
    num_rejects: int


def cut(records: Iterable[Protein | Reject], num_residues: int, settings: str) -> Iterator[Part]:
    """Parts of at least ``num_residues``, the last one shorter; an input without proteins has one, too.

    Args:
        records: the input.
        num_residues: a part ends with the protein that reaches it.
        settings: whatever else the results depend on.
    """
    part, digest = Part(0), _digest(settings.encode())
    for record in records:
        if isinstance(record, Reject):
            part.rejects.append(record)
            _add(digest, b"reject", record.where.encode(), record.reason.encode())
            continue
        part.proteins.append(record)
        part.num_residues += len(record.tokens)
        _add(digest, record.id.encode(), record.tokens.tobytes())
        if part.num_residues >= num_residues:
            part.key = digest.hexdigest()
            yield part
            part, digest = Part(part.number + 1), _digest(settings.encode())
    if part.proteins or part.rejects or part.number == 0:
        part.key = digest.hexdigest()
        yield part


def planned(part: Part) -> Planned:
    file = f"{part.number:06d}-{part.key}.parquet"
    return Planned(file, len(part.proteins), part.num_residues, len(part.rejects))


def key_of(plan: Iterable[Planned]) -> str:
    """Of the whole result."""
    return _digest("\n".join(part.file for part in plan).encode()).hexdigest()


def _add(digest: hashlib.blake2b, *fields: bytes) -> None:
    for text in fields:
        digest.update(len(text).to_bytes(8, "little"))
        digest.update(text)
