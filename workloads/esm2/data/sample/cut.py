"""Cut the embedded sample from a larger FASTA of UniProt proteins.

``python -m workloads.esm2.data.sample.cut FASTA.gz OUT.fasta.gz``; README.md has the rule in words.
"""

from __future__ import annotations

import gzip
import hashlib
import sys
from bisect import bisect_right
from collections import Counter
from pathlib import Path

from workloads.esm2.alphabet import STANDARD_RESIDUES

MAX_GZIP_BYTES = 1_900_000
MIN_RESIDUES, MAX_RESIDUES = 50, 2000
# Proteins of 400 residues share 400 * 400 / 20^5 = 0.05 words by chance, 400 * 0.5^5 = 12 at 50 % identity.
WORD_RESIDUES = 5
MAX_SHARED_WORDS = 10


def candidates(fasta: str) -> list[tuple[str, str]]:
    """(id, sequence) of whole proteins of standard residues, each sequence once, in the order of a hash."""
    by_sequence: dict[str, str] = {}
    for record in fasta.removeprefix(">").split("\n>"):
        header, _, body = record.partition("\n")
        sequence = "".join(body.split())
        whole = "(Fragment" not in header and sequence.startswith("M")
        if (
            whole
            and MIN_RESIDUES <= len(sequence) <= MAX_RESIDUES
            and not set(sequence) - set(STANDARD_RESIDUES)
        ):
            record_id = header.split()[0]
            by_sequence[sequence] = min(record_id, by_sequence.get(sequence, record_id))
    pairs = [(record_id, sequence) for sequence, record_id in by_sequence.items()]
    return sorted(pairs, key=lambda pair: hashlib.sha256(pair[1].encode()).digest())


def without_relatives(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Pass over a protein that shares more than a few words with one already taken."""
    owners: dict[str, list[int]] = {}
    taken: list[tuple[str, str]] = []
    for record_id, sequence in pairs:
        words = {sequence[i : i + WORD_RESIDUES] for i in range(len(sequence) - WORD_RESIDUES + 1)}
        shared = Counter(owner for word in words for owner in owners.get(word, ()))
        if max(shared.values(), default=0) <= MAX_SHARED_WORDS:
            for word in words:
                owners.setdefault(word, []).append(len(taken))
            taken.append((record_id, sequence))
    return taken


def compressed(pairs: list[tuple[str, str]]) -> bytes:
    lines = [
        line
        for record_id, sequence in pairs
        for line in (f">{record_id}", *(sequence[i : i + 60] for i in range(0, len(sequence), 60)))
    ]
    return gzip.compress("\n".join([*lines, ""]).encode(), compresslevel=9, mtime=0)


def main(source: Path, out: Path) -> None:
    pairs = without_relatives(candidates(gzip.decompress(source.read_bytes()).decode()))
    # The longest prefix that fits.
    counts = range(1, len(pairs) + 1)
    fits = bisect_right(counts, MAX_GZIP_BYTES, key=lambda count: len(compressed(pairs[:count])))
    out.write_bytes(compressed(pairs[:fits]))
    residues = sum(len(sequence) for _, sequence in pairs[:fits])
    print(f"{fits} of {len(pairs)} proteins, {residues} residues, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
