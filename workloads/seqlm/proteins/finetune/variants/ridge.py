"""Ridge regression on the residues of variants, the penalty chosen by cross-validation.

One-hot residues, the strengths that are tried, and the choice by the mean Spearman correlation of five folds
are those of Hsu et al. 2022 (https://doi.org/10.1038/s41587-021-01146-5). Their program gives the score of a
model 1e-8 times the penalty of a residue (``JointPredictor`` and ``ESMPredictor`` of ``src/predictors`` in
github.com/chloechsu/combining-evolutionary-and-assay-labelled-data, commit bd58686), which is none in effect.
Here it has none.

Shapes: N variants, F features.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from seqlm.proteins.alphabet import TOKENS, VOCAB_SIZE
from seqlm.proteins.mutations.edits import Variant

from .ranking import spearman

Doubles = npt.NDArray[np.float64]

STRENGTHS = (0.1, 1.0, 10.0, 100.0, 1000.0)
"""Penalties that are tried."""
FOLDS = 5
DEFAULT_STRENGTH = 1.0
"""Penalty if there are too few variants to compare penalties."""
TOLERANCE = 1e-8
"""Relative tolerance of the solver."""
_DELETED = TOKENS.index("-")


@dataclass(frozen=True)
class Design:
    """Features of variants."""

    residues: Any
    """(N, F) sparse one-hot residues, less those of the wild type."""
    free: Doubles
    """(N, U) features without a penalty, the constant among them."""

    def rows(self, chosen: npt.NDArray[Any]) -> "Design":
        """Return the features of some variants."""
        return Design(self.residues[chosen], self.free[chosen])

    def with_score(self, score: Doubles) -> "Design":
        """Return the features with another one, (N,), that has no penalty."""
        spread = score.std()
        scaled = (score - score.mean()) / (spread if spread > 0 else 1.0)
        return Design(self.residues, np.column_stack([self.free, scaled]))


@dataclass(frozen=True)
class Ridge:
    """Fitted regression."""

    strength: float
    residues: Doubles
    """(F,) coefficients of the residues."""
    free: Doubles
    """(U,) coefficients of the features without a penalty."""

    def predict(self, design: Design) -> Doubles:
        """Return the predicted values, (N,)."""
        return np.asarray(design.residues @ self.residues + design.free @ self.free)


def one_hot(variants: Sequence[Variant]) -> Design:
    """Return the residues of variants as features.

    The one-hot residues of the wild type are subtracted, so that few features of a variant are not 0. The
    constant has no penalty, so the fit is the same. Places that a variant deletes have a feature of their
    own, and inserted residues are features of the place before which they stand.
    """
    from scipy.sparse import csr_matrix

    length = len(variants[0].wild)
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []

    def add(row: int, place: int, token: int, value: float) -> None:
        rows.append(row)
        columns.append(place * VOCAB_SIZE + token)
        values.append(value)

    for row, variant in enumerate(variants):
        for edit in variant.edits:
            for offset, place in enumerate(range(edit.start, edit.stop)):
                is_replaced = offset < len(edit.inserted)
                add(row, place, int(variant.wild[place]), -1.0)
                add(row, place, edit.inserted[offset] if is_replaced else _DELETED, 1.0)
            for token in edit.inserted[edit.stop - edit.start :]:
                add(row, length + edit.stop, token, 1.0)
    _, used = np.unique(np.array(columns, dtype=np.int64), return_inverse=True)
    num_features = int(used.max()) + 1 if len(used) else 1
    residues = csr_matrix((values, (rows, used)), shape=(len(variants), num_features))
    return Design(residues, np.ones((len(variants), 1)))


def fit(design: Design, target: Doubles) -> Ridge:
    """Fit a regression with the best penalty.

    Args:
        design: features of the training variants.
        target: (N,) measured values.
    """
    return _fitted(design, target, _best_strength(design, target))


def _best_strength(design: Design, target: Doubles) -> float:
    """Return the penalty with the best mean correlation in folds of the training variants.

    Variants of prepared data are in the order of a hash, so that every fifth one is a random choice.
    """
    folds = np.arange(len(target)) % FOLDS
    best = DEFAULT_STRENGTH
    best_score = -np.inf
    for strength in STRENGTHS:
        found = []
        for fold in range(FOLDS):
            held_out = np.flatnonzero(folds == fold)
            others = np.flatnonzero(folds != fold)
            if len(held_out) > 1 and len(others) > 1:
                ridge = _fitted(design.rows(others), target[others], strength)
                predicted = ridge.predict(design.rows(held_out))
                found.append(spearman(target[held_out], predicted))
        known = [score for score in found if np.isfinite(score)]
        if known and np.mean(known) > best_score:
            best = strength
            best_score = float(np.mean(known))
    return best


def _fitted(design: Design, target: Doubles, strength: float) -> Ridge:
    """Fit a regression. Features without a penalty are projected out of the others, which is exact."""
    from scipy.linalg import orth
    from scipy.sparse.linalg import LinearOperator, lsqr

    residues = design.residues
    basis = orth(design.free)

    def without_free(values: Doubles) -> Doubles:
        return np.asarray(values - basis @ (basis.T @ values))

    projected = LinearOperator(
        residues.shape,
        matvec=lambda coefficients: without_free(residues @ coefficients.ravel()),
        rmatvec=lambda values: residues.T @ without_free(values.ravel()),
        dtype=np.float64,
    )
    solved = lsqr(
        projected,
        without_free(target),
        damp=np.sqrt(strength),
        atol=TOLERANCE,
        btol=TOLERANCE,
    )
    coefficients = solved[0]
    free, *_ = np.linalg.lstsq(design.free, target - residues @ coefficients, rcond=None)
    return Ridge(strength, coefficients, free)
