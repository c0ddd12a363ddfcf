"""Cut the embedded labelled sample from a larger table of localized proteins.

``python -m workloads.esm2.finetune.sample.cut TABLE.csv.gz OUT.csv.gz``; README.md has the rule in words.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import sys
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

MAX_GZIP_BYTES = 1_000_000
LABELS = (
    *("Membrane", "Cytoplasm", "Nucleus", "Extracellular", "Cell membrane", "Mitochondrion"),
    *("Plastid", "Endoplasmic reticulum", "Lysosome/Vacuole", "Golgi apparatus", "Peroxisome"),
)


def candidates(text: str) -> tuple[list[str], list[list[str]]]:
    """Header, and the rows with at least one label in the order of a hash of the sequence."""
    header, *rows = csv.reader(io.StringIO(text))
    places = [header.index(name) for name in LABELS]
    sequence = header.index("Sequence")
    labelled = [row for row in rows if any(row[place] == "1" for place in places)]
    return header, sorted(labelled, key=lambda row: hashlib.sha256(row[sequence].encode()).digest())


def compressed(header: Sequence[str], rows: Sequence[Sequence[str]]) -> bytes:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([header, *rows])
    return gzip.compress(stream.getvalue().encode(), compresslevel=9, mtime=0)


def main(source: Path, out: Path) -> None:
    header, rows = candidates(gzip.decompress(source.read_bytes()).decode())
    # The longest prefix that fits.
    counts = range(1, len(rows) + 1)
    fits = bisect_right(counts, MAX_GZIP_BYTES, key=lambda count: len(compressed(header, rows[:count])))
    out.write_bytes(compressed(header, rows[:fits]))
    residues = sum(len(row[header.index("Sequence")]) for row in rows[:fits])
    print(f"{fits} of {len(rows)} proteins, {residues} residues, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
