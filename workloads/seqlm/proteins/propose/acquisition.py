"""Choice of a batch from candidates, by their predicted values and uncertainties.

``ucb`` takes the largest upper confidence bounds: predicted value plus ``exploration`` standard deviations.
``thompson`` draws one function of the posterior for each place of the batch, and takes its maximum.

A batch of the largest bounds alone would be many variants that differ little. ``BATCHES`` therefore has ways
to account for the variants that are in the batch already:

* ``hallucinated`` (Desautels et al. 2014, GP-BUCB) takes the predicted value as measured. Predictions stay,
  and the uncertainty of similar variants shrinks.
* ``liar`` (constant liar, Ginsbourger et al. 2010) takes the lowest measured value as measured, so that the
  predictions of similar variants fall, too.
* ``top`` does neither.

Several processes, which see the values in different shapes, take turns. Each one accounts for all choices.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .surrogate import Features, Floats, GaussianProcess, Prediction

Rows = npt.NDArray[np.int64]
SHORTLIST = 1_000
"""Candidates of the largest bounds by each process whose covariances are computed. A batch is chosen among
them."""
LEAST_VARIANCE = 1e-9
DRAW_NOISE = 1e-4
"""Variance that is added to draws of the posterior, because rounding makes its covariance indefinite."""


class Opinion(NamedTuple):
    """Fitted process, and what it predicts of the candidates."""

    process: GaussianProcess
    prediction: Prediction


@dataclass
class _State:
    """Posterior of the shortlist, which choices change."""

    mean: Floats
    variance: Floats
    covariance: Floats
    noise: float
    lie: float
    """Value that a constant liar takes as measured."""
    directions: list[Floats]
    """Explained part of the covariance, one vector for each choice."""

    def update(self, choice: int, value: float) -> None:
        """Take a value of a candidate as measured."""
        explained = self.covariance[:, choice].copy()
        for direction in self.directions:
            explained -= direction * direction[choice]
        total = self.variance[choice] + self.noise
        self.mean = self.mean + explained * (value - self.mean[choice]) / total
        direction = explained / np.sqrt(total)
        self.variance = np.maximum(self.variance - direction**2, LEAST_VARIANCE)
        self.directions.append(direction)


def _hallucinate(state: _State, choice: int) -> None:
    state.update(choice, state.mean[choice])


def _lie(state: _State, choice: int) -> None:
    state.update(choice, state.lie)


def _leave(state: _State, choice: int) -> None:
    pass


BATCHES: Mapping[str, Callable[[_State, int], None]] = {
    "hallucinated": _hallucinate,
    "liar": _lie,
    "top": _leave,
}
"""Values of ``propose.batch``."""


def choose(
    opinions: Sequence[Opinion],
    candidates: Features,
    number: int,
    *,
    acquisition: str,
    batch: str,
    exploration: float,
    seed: int,
) -> Rows:
    """Return the places of a batch among candidates, in the order of the choice.

    Args:
        opinions: fitted processes, which take turns.
        candidates: candidates, none of which was measured.
        number: size of the batch; of fewer candidates, all are chosen.
        acquisition: ``ucb`` or ``thompson``.
        batch: name of one of ``BATCHES``, for ``ucb``.
        exploration: number of standard deviations in the bound, or factor of those of draws.
        seed: seed of draws.
    """
    size = max(SHORTLIST, number)
    tops = [
        np.argsort(-opinion.prediction.bounds(exploration), kind="stable")[:size]
        for opinion in opinions
    ]
    short = np.unique(np.concatenate(tops))
    states = [_state(opinion, candidates, short) for opinion in opinions]
    is_drawn = acquisition == "thompson"
    scores = _draws(states, exploration, seed) if is_drawn else _bounds(states, exploration)
    account = BATCHES["top" if is_drawn else batch]
    is_free = np.ones(len(short), dtype=bool)
    chosen: list[int] = []
    for score in itertools.islice(scores, min(number, len(short))):
        choice = int(np.where(is_free, score, -np.inf).argmax())
        is_free[choice] = False
        chosen.append(choice)
        for state in states:
            account(state, choice)
    return np.asarray(short[chosen])


def _state(opinion: Opinion, candidates: Features, short: Rows) -> _State:
    """Return the posterior of a process on the shortlist."""
    prediction = opinion.prediction
    return _State(
        mean=prediction.mean[short],
        variance=prediction.spread[short] ** 2,
        covariance=opinion.process.covariance(candidates.rows(short)),
        noise=opinion.process.noise,
        lie=opinion.process.lowest,
        directions=[],
    )


def _bounds(states: Sequence[_State], exploration: float) -> Iterator[Floats]:
    """Yield the upper confidence bounds for each choice, after the choices before."""
    for state in itertools.cycle(states):
        yield state.mean + exploration * np.sqrt(state.variance)


def _draws(states: Sequence[_State], exploration: float, seed: int) -> Iterator[Floats]:
    """Yield a draw of the posterior for each choice."""
    generator = np.random.default_rng(seed)
    size = len(states[0].mean)
    factors = [np.linalg.cholesky(one.covariance + DRAW_NOISE * np.eye(size)) for one in states]
    for state, factor in itertools.cycle(zip(states, factors, strict=True)):
        yield state.mean + exploration * (factor @ generator.standard_normal(size))


def diverse(
    values: Floats,
    similarity: Callable[[int, int], float],
    number: int,
    diversity: float,
) -> list[int]:
    """Return the places of values that are high and of unlike variants (maximal marginal relevance).

    Args:
        values: standardized values, in any order.
        similarity: function of two places, 0 for unlike variants and 1 for equal ones.
        number: number of places.
        diversity: value that a variant loses if it is equal to a chosen one; 0 takes the highest values.
    """
    order = np.argsort(-values, kind="stable")
    loss = np.zeros(len(values))
    is_free = np.ones(len(values), dtype=bool)
    chosen: list[int] = []
    for _ in range(min(number, len(values))):
        choice = int(order[np.where(is_free, values - diversity * loss, -np.inf)[order].argmax()])
        is_free[choice] = False
        chosen.append(choice)
        if diversity:
            similar = np.array([similarity(choice, other) for other in range(len(values))])
            loss = np.maximum(loss, similar)
    return chosen
