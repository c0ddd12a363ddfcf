"""Next round of a campaign: proposed variants of one protein, from its measured ones and a language model.

The first round ranks variants by the score of the model, with diversity. Later rounds fit the measured
values. Everything here is deterministic for a seed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from seqlm.proteins.alphabet import STANDARD_RESIDUES
from seqlm.proteins.config import ProposeConfig
from seqlm.proteins.mutations.edits import Variant

from .acquisition import Opinion, Rows, choose, diverse
from .candidates import candidates_of
from .measured import Measured
from .shapes import PLAIN, shaped
from .space import NUM_RESIDUES, Mutations, Space
from .surrogate import Features, Floats, GaussianProcess, Singles

FIRST_ROUND_POOL = 5_000
"""Variants of the highest scores that the first round is chosen among."""
LEADERS = 12_000
"""Candidates of the highest predicted values whose uncertainties are computed."""
MOST_EMBEDDED = 1_000
"""Candidates of the highest bounds that are embedded. A model reads each of them once."""
LEAST_SPREAD = 1e-9
ABOVE_BEST = "predicted better than the best measured value"
HIGHEST = "one of the best predicted values"
UNCERTAIN = "uncertain, and could be among the best"
DRAWN = "best of a draw of the predictions (Thompson sampling)"
CONTROL = "control"

Embed = Callable[[Sequence[str]], Singles]
"""Function from sequences to their embeddings, (N, E)."""


@dataclass(frozen=True)
class Proposal:
    """Variant to measure next."""

    variant: str
    sequence: str
    predicted: float
    """Predicted value in the units of the table; in the first round, the score of the model."""
    uncertainty: float | None
    """Standard deviation of the prediction; None in the first round, which has no measured value."""
    zero_shot: float
    """Score of the model, in nats."""
    reason: str
    mutations: tuple[int, ...] = ()
    """Numbers of its mutations in the space."""


@dataclass(frozen=True)
class Round:
    """Proposed variants, and what the page shows about them."""

    space: Space
    proposals: tuple[Proposal, ...]
    singles: Floats
    """Predicted value of each single mutant, (P, 20), in the units of the table. NaN for the wild type."""
    candidates: Floats
    """Predicted values of all candidates, (N,), in the units of the table."""
    num_variants: int
    """Variants that the space allows."""
    is_complete: bool
    """Whether all of them are candidates. Otherwise, a search has found them."""


class ZeroShot:
    """Scores of variants by a language model, as sums of the scores of their mutations.

    Args:
        space: positions of the variants.
        scores: score of each mutation in nats, (P, 20).
    """

    def __init__(self, space: Space, scores: Floats) -> None:
        self.space = space
        self._by_number = np.append(scores.ravel(), 0.0)

    def __call__(self, mutations: Mutations) -> Floats:
        """Return the scores of variants, (N,)."""
        return np.asarray(self._by_number[mutations].sum(axis=1))


def next_round(
    space: Space,
    measured: Measured,
    zero_shot: ZeroShot,
    options: ProposeConfig,
    embed: Embed,
    controls: Sequence[Variant] = (),
    pool: Mutations | None = None,
) -> Round:
    """Return the next variants to measure.

    Args:
        space: positions that may change, and those of measured variants and controls.
        measured: measured variants.
        zero_shot: scores of the language model.
        options: section of the run file.
        embed: embeddings of the language model.
        controls: variants that are measured in every round.
        pool: the only variants that may be proposed; None for all of the space.

    Raises:
        ValueError: if no variant is left to propose.
    """
    known = space.numbered([*measured.variants, *controls])
    if measured.variants:
        later = _Later(space, measured, zero_shot, options, embed)
        return later.round(known, len(controls), pool)
    return _first_round(space, zero_shot, options, known, len(controls), pool)


def _none_left(space: Space) -> ValueError:
    return ValueError(
        f"propose: all {space.num_variants():,} variants of propose.positions, propose.residues and "
        f"propose.max_mutations={space.max_mutations} were measured; allow more"
    )


def _first_round(
    space: Space,
    zero_shot: ZeroShot,
    options: ProposeConfig,
    known: Mutations,
    num_controls: int,
    pool: Mutations | None,
) -> Round:
    """Return variants of high scores that differ from each other."""
    candidates = candidates_of(space, known, zero_shot, options.number, options.seed, pool)
    if not len(candidates.mutations):
        raise _none_left(space)
    scores = zero_shot(candidates.mutations)
    best = np.argsort(-scores, kind="stable")[: max(FIRST_ROUND_POOL, options.number)]
    spread = max(float(scores.std()), LEAST_SPREAD)
    sets = [frozenset(row[row != space.no_mutation].tolist()) for row in candidates.mutations[best]]

    def similarity(one: int, other: int) -> float:
        return len(sets[one] & sets[other]) / len(sets[one] | sets[other])

    chosen = diverse(scores[best] / spread, similarity, options.number, options.diversity)
    proposals = []
    for place in chosen:
        row = candidates.mutations[best[place]]
        score = float(scores[best[place]])
        reason = f"rank {place + 1:,} of {len(scores):,} by the score of the model"
        proposals.append(_proposal(space, row, score, None, score, reason))
    controls = known[len(known) - num_controls :]
    for row, score in zip(controls, zero_shot(controls).tolist(), strict=True):
        proposals.append(_proposal(space, row, score, None, score, CONTROL))
    return Round(
        space,
        tuple(proposals),
        _singles(space, zero_shot),
        scores,
        space.num_variants(),
        candidates.is_complete,
    )


def _proposal(
    space: Space,
    row: Mutations,
    predicted: float,
    uncertainty: float | None,
    zero_shot: float,
    reason: str,
) -> Proposal:
    numbers = tuple(row[row != space.no_mutation].tolist())
    return Proposal(
        space.name(row), space.sequence(row), predicted, uncertainty, zero_shot, reason, numbers
    )


def _singles(space: Space, score: Callable[[Mutations], Floats]) -> Floats:
    """Return a score of each single mutant, (P, 20); NaN for the residue of the wild type."""
    values = score(np.arange(space.no_mutation, dtype=np.int32)[:, None]).copy()
    values = values.reshape(len(space.places), NUM_RESIDUES)
    for index, place in enumerate(space.places):
        if space.wild[place] in STANDARD_RESIDUES:
            values[index, STANDARD_RESIDUES.index(space.wild[place])] = np.nan
    return values


class _Later:
    """Round that fits measured values."""

    def __init__(
        self,
        space: Space,
        measured: Measured,
        zero_shot: ZeroShot,
        options: ProposeConfig,
        embed: Embed,
    ) -> None:
        self._space = space
        self._measured = measured
        self._zero_shot = zero_shot
        self._options = options
        self._embed = embed
        self._known = space.numbered(measured.variants)
        of_known = zero_shot(self._known)
        self._zero_shot_centre = float(of_known.mean())
        # A first round of the highest scores alone has a small spread, which would exaggerate all others.
        spreads = (of_known.std(), np.nanstd(_singles(space, zero_shot)), LEAST_SPREAD)
        self._zero_shot_unit = float(max(spreads))

    def _features(self, mutations: Mutations) -> Features:
        """Return the features of variants without their embeddings."""
        scores = self._zero_shot(mutations)
        return Features(mutations, (scores - self._zero_shot_centre) / self._zero_shot_unit)

    def _with_embeddings(self, *sets: Features) -> list[Features]:
        """Add the embeddings of variants, the measured ones first."""
        embedded = [
            self._embed([self._space.sequence(row) for row in one.mutations]) for one in sets
        ]
        centre = embedded[0].mean(axis=0)
        unit = max(float(embedded[0].std(axis=0).max()), LEAST_SPREAD)
        scaled = [(found - centre) / unit for found in embedded]
        # Measured variants then have a mean squared distance of 2.
        size = max(float((scaled[0] ** 2).sum(axis=1).mean()), LEAST_SPREAD)
        return [
            replace(one, embedding=(found / np.sqrt(size)).astype(np.float32))
            for one, found in zip(sets, scaled, strict=True)
        ]

    def _process(self, features: Features, shape: str) -> GaussianProcess:
        """Return the process that is fitted to the measured values in a shape."""
        chosen = self._options.features
        # Without residues and scores, they still choose the candidates that are embedded.
        alone = chosen == ("embedding",) and features.embedding is None
        return GaussianProcess(
            self._space,
            features,
            shaped(self._measured.values, shape),
            uses_one_hot="one_hot" in chosen or alone,
            uses_similarity="similarity" in chosen,
            uses_zero_shot="zero_shot" in chosen or alone,
            warm_start=self._options.warm_start,
        )

    def _processes(self, measured: Features) -> list[GaussianProcess]:
        """Return the fitted processes, the plain one first."""
        others = [shape for shape in self._options.shapes if shape != PLAIN]
        return [self._process(measured, shape) for shape in (PLAIN, *others)]

    def round(self, known: Mutations, num_controls: int, pool: Mutations | None) -> Round:
        """Return the next round.

        Args:
            known: variants that are not proposed: measured ones, and controls at the end.
            num_controls: number of controls.
            pool: the only variants that may be proposed; None for all of the space.
        """
        space = self._space
        options = self._options
        measured = self._features(self._known)
        processes = self._processes(measured)
        quick = processes[0]

        def bounds(mutations: Mutations) -> Floats:
            return quick.predict(self._features(mutations)).bounds(options.exploration)

        candidates = candidates_of(space, known, bounds, options.number, options.seed, pool)
        if not len(candidates.mutations):
            raise _none_left(space)
        features = self._features(candidates.mutations)
        means = [process.means(features) for process in processes]
        features = features.rows(_best(means, max(LEADERS, options.number)))
        opinions = [Opinion(process, process.predict(features)) for process in processes]
        if "embedding" in options.features:
            bounds_of = [one.prediction.bounds(options.exploration) for one in opinions]
            short = _best(bounds_of, max(MOST_EMBEDDED, options.number))
            measured, features = self._with_embeddings(measured, features.rows(short))
            processes = self._processes(measured)
            opinions = [Opinion(process, process.predict(features)) for process in processes]
        batch = choose(
            opinions if PLAIN in options.shapes else opinions[1:],
            features,
            options.number,
            acquisition=options.acquisition,
            batch=options.batch,
            exploration=options.exploration,
            seed=options.seed,
        )
        proposals = self._proposals(opinions[0], features.mutations, batch)
        if num_controls:
            proposals += self._controls(quick, self._features(known[-num_controls:]))
        singles = _singles(space, lambda rows: quick.predict(self._features(rows)).mean)
        return Round(
            space,
            tuple(proposals),
            self._in_units(quick, singles),
            self._in_units(quick, means[0]),
            space.num_variants(),
            candidates.is_complete,
        )

    def _in_units(self, process: GaussianProcess, standardized: Floats) -> Floats:
        """Return standardized values in the units of the table, in which lower ones may be better."""
        sign = -1.0 if self._options.direction == "lower" else 1.0
        return np.asarray(sign * (standardized * process.unit + process.centre))

    def _proposals(self, opinion: Opinion, mutations: Mutations, batch: Rows) -> list[Proposal]:
        """Return the variants of a batch, each with the reason of its choice."""
        process, prediction = opinion
        limit = np.sort(prediction.mean)[-len(batch)]
        found = []
        for place in batch.tolist():
            mean = float(prediction.mean[place])
            if self._options.acquisition == "thompson":
                reason = DRAWN
            elif mean > process.highest:
                reason = ABOVE_BEST
            elif mean >= limit:
                reason = HIGHEST
            else:
                reason = UNCERTAIN
            spread = float(prediction.spread[place])
            found.append(self._predicted(process, mutations[place], mean, spread, reason))
        return found

    def _controls(self, process: GaussianProcess, controls: Features) -> list[Proposal]:
        """Return the controls with their predicted values."""
        prediction = process.predict(controls)
        return [
            self._predicted(process, row, mean, spread, CONTROL)
            for row, mean, spread in zip(
                controls.mutations,
                prediction.mean.tolist(),
                prediction.spread.tolist(),
                strict=True,
            )
        ]

    def _predicted(
        self, process: GaussianProcess, row: Mutations, mean: float, spread: float, reason: str
    ) -> Proposal:
        """Return a proposal in the units of the table."""
        predicted = float(self._in_units(process, np.array(mean)))
        score = float(self._zero_shot(row[None, :])[0])
        return _proposal(self._space, row, predicted, spread * process.unit, score, reason)


def _best(values: Sequence[Floats], number: int) -> Rows:
    """Return the candidates with the best ranks by any of several values, in the order of the candidates."""
    ranks = [np.argsort(np.argsort(-one, kind="stable"), kind="stable") for one in values]
    return np.sort(np.argsort(np.min(ranks, axis=0), kind="stable")[:number])
