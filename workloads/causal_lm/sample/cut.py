"""Make the embedded questions and answers from the embedded labelled proteins.

``python -m workloads.causal_lm.sample.cut LOCALIZATION.csv.gz OUT.jsonl.gz``; README.md has the rule.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
from collections import Counter
from pathlib import Path

PLACES = (
    *("Cytoplasm", "Nucleus", "Extracellular", "Cell membrane", "Mitochondrion", "Plastid"),
    *("Endoplasmic reticulum", "Lysosome/Vacuole", "Golgi apparatus", "Peroxisome"),
)
NUM_QUESTIONS = 1200
SHOWN_RESIDUES = 12
HYDROPHOBIC = frozenset("AVILMFWC")
NAMES = {
    **{"A": "alanine", "C": "cysteine", "D": "aspartate", "E": "glutamate", "F": "phenylalanine"},
    **{"G": "glycine", "H": "histidine", "I": "isoleucine", "K": "lysine", "L": "leucine"},
    **{"M": "methionine", "N": "asparagine", "P": "proline", "Q": "glutamine", "R": "arginine"},
    **{"S": "serine", "T": "threonine", "V": "valine", "W": "tryptophan", "Y": "tyrosine"},
}


def conversation(row: dict[str, str]) -> dict[str, str]:
    """A question, what may be thought of it, and its answer, from a row of the table."""
    sequence = row["Sequence"]
    counts = Counter(residue for residue in sequence if residue in NAMES)
    commonest = sorted(counts, key=lambda residue: (-counts[residue], residue))[0]
    share = round(100 * sum(counts[residue] for residue in HYDROPHOBIC) / len(sequence))
    places = [name for name in PLACES if row[name] == "1"]
    membrane = row["Membrane"] == "1"
    return {
        "question": f"Where in the cell is the protein {row['ACC']}? It has {len(sequence)} residues and "
        f"begins with {sequence[:SHOWN_RESIDUES]}. Its commonest residue is {NAMES[commonest]}, and "
        f"{share} % of its residues are hydrophobic.",
        "reasoning": f"Of {len(sequence)} residues {share} % are hydrophobic, which is "
        f"{'much' if share >= 45 else 'little' if share < 38 else 'usual'}. The protein "
        f"{'sits in a membrane' if membrane else 'is not known to sit in a membrane'}.",
        "answer": f"It is found in: {', '.join(places) if places else 'a membrane'}.",
    }


def main(source: Path, out: Path) -> None:
    rows = csv.DictReader(io.StringIO(gzip.decompress(source.read_bytes()).decode()))
    lines = [json.dumps(conversation(row)) for row, _ in zip(rows, range(NUM_QUESTIONS), strict=False)]
    out.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), compresslevel=9, mtime=0))
    print(f"{len(lines)} questions, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
