"""What a run predicts for a split at its end, with the labels: what its report is made of."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .labels import Floats


@dataclass(frozen=True)
class Predictions:
    """N proteins of a split, of a residue task N residues; C columns of labels, L outputs."""

    ids: npt.NDArray[np.str_]
    """(proteins,) in the order of the rows."""
    offsets: npt.NDArray[np.int64]
    """(proteins + 1,) first row of each."""
    labels: Floats
    """(N, C), NaN where there is none; of a residue task C is 1."""
    outputs: Floats
    """(N, L) logits, or values in the labels' units."""

    def save(self, path: Path) -> None:
        """As an npz archive, whole or not at all."""
        partial = path.with_name(path.name + ".partial")
        with partial.open("wb") as file:
            np.savez_compressed(
                file, ids=self.ids, offsets=self.offsets, labels=self.labels, outputs=self.outputs
            )
        os.replace(partial, path)

    @staticmethod
    def load(path: Path) -> Predictions:
        """Raises OSError, ValueError or KeyError for what ``save`` did not write."""
        with np.load(path, allow_pickle=False) as arrays:
            return Predictions(*(arrays[name] for name in ("ids", "offsets", "labels", "outputs")))


def predictions_file(run_dir: Path, split: str) -> Path:
    return run_dir / f"predictions-{split}.npz"
