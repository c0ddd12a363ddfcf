"""Oddities of records that a check counts, each with its first examples."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from seqlm.proteins.alphabet import STANDARD_RESIDUES, TOKENS
from seqlm.proteins.data.blocks import Record
from seqlm.proteins.data.fasta import protein_of
from seqlm.proteins.data.plausibility import SHORT_RESIDUES, is_nucleotides
from seqlm.proteins.reading.policies import POLICIES, Decision, Kind, Reader
from seqlm.proteins.reading.rejects import Reject
from seqlm.training.strict_yaml import shown

SHOWN_EXAMPLES = 3
REMEMBERED = 2_000_000
"""Records among which repeated ids and sequences are sought, so that memory is bounded."""
_STANDARD = bytes(TOKENS.index(letter) for letter in STANDARD_RESIDUES)
_digest = partial(hashlib.blake2b, digest_size=8)


@dataclass
class Oddities:
    """Numbers of records by oddity, and the first ones."""

    counts: Counter[Kind] = field(default_factory=Counter)
    left_out: Counter[Kind] = field(default_factory=Counter)
    """Those of them that are not usable."""
    examples: dict[Kind, list[str]] = field(default_factory=dict)
    used: int = 0
    """Number of records that are proteins."""
    residues: int = 0
    """Residues of these proteins."""
    shortest: int = 0
    longest: int = 0
    _ids: set[bytes] = field(default_factory=set)
    _sequences: set[bytes] = field(default_factory=set)

    @property
    def is_partial(self) -> bool:
        """Whether there were too many records to compare all."""
        return self.used > REMEMBERED

    def add(self, kind: Kind, example: str) -> None:
        """Count a record, with its place and a few words as an example."""
        self.counts[kind] += 1
        examples = self.examples.setdefault(kind, [])
        if len(examples) < SHOWN_EXAMPLES:
            examples.append(example)

    def leave_out(self, bad: Reject) -> None:
        """Count a record that is not usable."""
        self.left_out[bad.kind] += 1
        self.add(bad.kind, bad.text)

    def look_at(self, record: Record) -> None:
        """Count a record and its oddities."""
        if record.bad is not None:
            self.leave_out(record.bad)
            return
        tokens = protein_of(record.sequence)
        example = f"{record.where} {shown(record.id.decode())}"
        self.used += 1
        self.residues += len(tokens)
        self.longest = max(self.longest, len(tokens))
        self.shortest = min(self.shortest or len(tokens), len(tokens))
        letters = record.sequence.rstrip()
        if letters.endswith(b"*"):
            self.add(Kind.FINAL_STOP, example)
        if letters != letters.upper():
            self.add(Kind.LOWER_CASE, example)
        if record.chain == 0:
            self.add(Kind.CHAINS, example)
        if tokens.translate(None, _STANDARD):
            self.add(Kind.UNUSUAL, example)
        if len(tokens) < SHORT_RESIDUES:
            self.add(Kind.SHORT, example)
        elif is_nucleotides(np.frombuffer(tokens, np.uint8)):
            self.add(Kind.NUCLEOTIDES, example)
        if self.used <= REMEMBERED:
            self._look_for(Kind.REPEATED_ID, self._ids, record.id, example)
            self._look_for(Kind.REPEATED_SEQUENCE, self._sequences, tokens, example)

    def _look_for(self, kind: Kind, seen: set[bytes], value: bytes, example: str) -> None:
        digest = _digest(value).digest()
        if digest in seen:
            self.add(kind, example)
        seen.add(digest)

    def described(self) -> Iterator["Oddity"]:
        """Yield each oddity that was found, with what the commands do."""
        for kind in Kind:
            if self.counts[kind]:
                title = f"{POLICIES[kind].counted(self.counts[kind])} ({_treatment(kind)})"
                yield Oddity(title, self.examples[kind])


@dataclass(frozen=True)
class Oddity:
    """Oddity that was found."""

    title: str
    examples: Sequence[str]


def _treatment(kind: Kind) -> str:
    """Return what the commands do with an oddity, as the policy table says."""
    by_decision: dict[Decision, list[str]] = {}
    for reader in (Reader.INFERENCE, Reader.DATA, Reader.FINETUNE):
        decision = POLICIES[kind].decisions.get(reader)
        if decision is not None:
            name = reader.value.replace("`", "")
            by_decision.setdefault(decision, []).append(name)
    return "; ".join(
        f"{decision.value}: {', '.join(readers)}" for decision, readers in by_decision.items()
    )
