"""Gaussian process over variants: a predicted value of each, with its uncertainty.

The covariance of two variants is a sum of three parts, as far as their features are used:

* ``one_hot``: exp of minus the sum of the weights of the positions at which they differ. Each position has a
  weight of its own (up to ``MAX_WEIGHTS`` positions; more share one), which the values decide on. The product
  over positions describes interactions between mutations without naming them.
* ``similarity`` changes this part: residues with similar properties differ less (``residues.py``).
* ``zero_shot``: a line through the model's scores. With a warm start, its slope is expected to be
  ``WARM_SLOPE`` before any value is known, and otherwise 0. The values correct it.
* ``embedding``: exp of minus half the squared distance between embeddings.

Weights, scales and the noise are those of the largest posterior density (L-BFGS). Values are standardized.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .residues import ONE_HOT, SIMILARITY
from .space import NUM_RESIDUES, Mutations, Space

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
MAX_WEIGHTS = 16
"""Largest number of positions that have weights of their own. A few hundred values cannot decide on more."""
MEAN_WEIGHT = 0.7
"""Weight of a position that is expected: variants that differ there share half of their covariance."""
MEAN_NOISE = 0.03
"""Variance of the noise that is expected, as a share of that of the values."""
NOISE_SPREAD = 1.5
"""Standard deviation of the logarithm of that share. Replicates reduce it to ``KNOWN_NOISE_SPREAD``."""
KNOWN_NOISE_SPREAD = 0.3
WARM_SLOPE = 0.4
"""Expected slope of standardized values over standardized scores, which is their correlation. Correlations of
published models with ProteinGym's assays are about 0.4."""
SLOPE_SPREAD = 0.4
"""Standard deviation of that slope."""
LEAST_NOISE = 1e-6
"""Variance that is always added, so that equal variants do no harm."""
LOG_BOUNDS = (-7.0, 4.0)
"""Range of the logarithms of weights, scales and noise."""
MAX_STEPS = 30
"""Steps of L-BFGS; the density hardly changes after 20."""
VARIANTS_AT_ONCE = 1_024
"""Variants whose covariances with the measured ones are held at once, which a processor's cache holds."""
LEAST_VARIANCE = 1e-9


@dataclass(frozen=True)
class Features:
    """Features of N variants."""

    mutations: Mutations
    """Mutations, (N, K)."""
    zero_shot: Floats
    """Scores of the language model, (N,), standardized over the possible mutations."""
    embedding: Singles | None = None
    """Embeddings, (N, E), scaled so that the mean squared distance of measured variants is 2."""

    def __len__(self) -> int:
        return len(self.mutations)

    def rows(self, chosen: npt.NDArray[np.int64] | slice) -> "Features":
        """Return those of some variants."""
        embedding = None if self.embedding is None else self.embedding[chosen]
        return Features(self.mutations[chosen], self.zero_shot[chosen], embedding)


@dataclass(frozen=True)
class Values:
    """Measured values of N variants, the larger the better."""

    values: Floats
    """Means of the replicates, (N,)."""
    replicates: Floats
    """Numbers of replicates, (N,)."""
    stated_variances: Floats
    """Variances of the means that the user states, (N,); 0 if none is stated."""
    replicate_variance: float | None = None
    """Variance of one replicate, from the variants with several; None without any."""


class Prediction(NamedTuple):
    """Predicted values of N variants, as standardized values."""

    mean: Floats
    spread: Floats
    """Standard deviations, without the noise of a measurement."""

    def bounds(self, exploration: float) -> Floats:
        """Return the upper confidence bounds, ``exploration`` standard deviations above the mean."""
        return self.mean + exploration * self.spread


class _Layout(NamedTuple):
    """Places of the logarithms of the parameters in their vector."""

    num_weights: int
    has_embedding: bool

    @property
    def scale(self) -> int:
        return self.num_weights

    @property
    def embedding_scale(self) -> int:
        return self.num_weights + 1

    @property
    def embedding_length(self) -> int:
        return self.num_weights + 2

    @property
    def noise(self) -> int:
        return self.num_weights + (3 if self.has_embedding else 1)


class GaussianProcess:
    """Exact Gaussian process that was fitted to measured variants.

    Args:
        space: positions of the variants.
        features: features of the measured variants.
        measured: values of these variants, at least one.
        uses_one_hot: whether the covariance has the part of the residues.
        uses_similarity: whether similar residues differ less in this part.
        uses_zero_shot: whether it has the line through the scores.
        warm_start: whether the line is expected to rise before values are known.
    """

    def __init__(
        self,
        space: Space,
        features: Features,
        measured: Values,
        *,
        uses_one_hot: bool = True,
        uses_similarity: bool = False,
        uses_zero_shot: bool = False,
        warm_start: bool = False,
    ) -> None:
        self._space = space
        self._features = features
        self._uses_one_hot = uses_one_hot or uses_similarity
        self._differs = SIMILARITY if uses_similarity else ONE_HOT
        self._slope = WARM_SLOPE if warm_start and uses_zero_shot else 0.0
        self._slope_variance = SLOPE_SPREAD**2 if uses_zero_shot else 0.0
        values = measured.values
        self.centre = float(values.mean())
        """Value that is standardized to 0."""
        self.unit = float(values.std()) or 1.0
        """Difference of values that is standardized to 1."""
        self._residues = space.residues(features.mutations)
        targets = (values - self.centre) / self.unit
        self.lowest = float(targets.min())
        """Lowest measured value, standardized."""
        self.highest = float(targets.max())
        """Highest measured value, standardized."""
        self._fit(targets - self._slope * features.zero_shot, measured)

    @property
    def noise(self) -> float:
        """Variance of one measurement, standardized."""
        return self._noise

    def _fit(self, targets: Floats, measured: Values) -> None:
        """Choose the parameters, and solve for the measured values."""
        from scipy.linalg import cholesky, solve_triangular

        num_places = len(self._space.places)
        num_weights = (num_places if num_places <= MAX_WEIGHTS else 1) if self._uses_one_hot else 0
        self._layout = _Layout(num_weights, self._features.embedding is not None)
        stated = measured.stated_variances / self.unit**2
        expected_noise = MEAN_NOISE
        spread = NOISE_SPREAD
        if measured.replicate_variance is not None:
            expected_noise = max(measured.replicate_variance / self.unit**2, LEAST_NOISE)
            spread = KNOWN_NOISE_SPREAD
        density = _Density(
            layout=self._layout,
            differences=self._differences(num_weights),
            line=self._slope_variance
            * np.outer(self._features.zero_shot, self._features.zero_shot),
            distances=self._distances(),
            targets=targets,
            replicates=measured.replicates,
            stated=stated,
            log_noise=math.log(expected_noise),
            noise_spread=spread,
        )
        self._parameters = density.best()
        self._noise = float(np.exp(self._parameters[self._layout.noise])) + LEAST_NOISE
        covariance = density.covariance(self._parameters)
        factor = cholesky(covariance, lower=True, check_finite=False)
        self._inverse = solve_triangular(factor, np.eye(len(targets)), lower=True).astype(
            np.float32
        )
        whitened = solve_triangular(factor, targets, lower=True)
        self._weights_of_values = solve_triangular(factor.T, whitened, lower=False).astype(
            np.float32
        )

    def _differences(self, num_weights: int) -> Floats:
        """Return how measured variants differ at each place, (P, N, N), or at all together, (1, N, N)."""
        number = len(self._residues)
        found = np.zeros((num_weights, number, number))
        if num_weights:
            for index, column in enumerate(self._residues.T):
                found[min(index, num_weights - 1)] += self._differs[
                    column[:, None], column[None, :]
                ]
        return found

    def _distances(self) -> Floats | None:
        embedding = self._features.embedding
        return None if embedding is None else _squared_distances(embedding, embedding)

    def _place_weights(self) -> Floats:
        """Return the weight of each place, (P,)."""
        weights = np.exp(self._parameters[: self._layout.num_weights])
        return np.broadcast_to(weights, (len(self._space.places),))

    def _prior_variance(self, features: Features) -> Floats:
        """Return the variance of each variant before values are known, (N,)."""
        layout = self._layout
        constant = 0.0
        if layout.num_weights:
            constant += math.exp(self._parameters[layout.scale])
        if layout.has_embedding:
            constant += math.exp(self._parameters[layout.embedding_scale])
        return np.asarray(constant + self._slope_variance * features.zero_shot**2)

    def _covariance(self, features: Features, others: Features) -> Singles:
        """Return the covariances of two sets of variants, (N, M)."""
        layout = self._layout
        if layout.num_weights:
            scale = math.exp(self._parameters[layout.scale])
            found = self._one_hot(features.mutations, others.mutations, scale)
        else:
            found = np.zeros((len(features), len(others)), dtype=np.float32)
        if self._slope_variance:
            first = (self._slope_variance * features.zero_shot).astype(np.float32)
            found += first[:, None] * others.zero_shot.astype(np.float32)[None, :]
        if layout.has_embedding:
            assert features.embedding is not None and others.embedding is not None
            distances = _squared_distances(features.embedding, others.embedding)
            length = math.exp(self._parameters[layout.embedding_length])
            scale = math.exp(self._parameters[layout.embedding_scale])
            found += (scale * np.exp(-0.5 * distances / length)).astype(np.float32)
        return found

    def _one_hot(self, mutations: Mutations, others: Mutations, scale: float) -> Singles:
        """Return the part of the residues, (N, M).

        The covariance with the wild type is corrected by a factor for each mutation, which depends on the
        other variant alone.
        """
        space = self._space
        weights = self._place_weights()
        known = space.residues(others)
        differs = self._differs[known, space.wild_residues]
        of_wild = scale * np.exp(-(differs * weights).sum(axis=1))
        factors = np.ones((space.no_mutation + 1, len(others)), dtype=np.float32)
        used = np.unique(mutations[mutations != space.no_mutation])
        index = used // NUM_RESIDUES
        from_new = self._differs[known.T[index], (used % NUM_RESIDUES)[:, None]]
        factors[used] = np.exp(-weights[index, None] * (from_new - differs.T[index]))
        found = np.repeat(of_wild.astype(np.float32)[None, :], len(mutations), axis=0)
        for column in mutations.T:
            found *= factors[column]
        return found

    def means(self, features: Features) -> Floats:
        """Return the predicted values of variants, (N,)."""
        found = [
            self._covariance(part, self._features) @ self._weights_of_values
            for part in _parts_of(features)
        ]
        return np.concatenate(found).astype(np.float64) + self._slope * features.zero_shot

    def predict(self, features: Features) -> Prediction:
        """Return the predicted values of variants with their uncertainties."""
        spreads = []
        for part in _parts_of(features):
            known = self._covariance(part, self._features) @ self._inverse.T
            explained = np.einsum("ij,ij->i", known, known, dtype=np.float64)
            variances = self._prior_variance(part) - explained
            spreads.append(np.sqrt(np.maximum(variances, LEAST_VARIANCE)))
        return Prediction(self.means(features), np.concatenate(spreads))

    def covariance(self, features: Features) -> Floats:
        """Return the covariances of variants, given the measured values, (N, N)."""
        known = self._covariance(features, self._features) @ self._inverse.T
        prior = self._covariance(features, features)
        return (prior - known @ known.T).astype(np.float64)


def _parts_of(features: Features) -> Iterator[Features]:
    """Yield features in parts of bounded size, at least one."""
    for first in range(0, max(len(features), 1), VARIANTS_AT_ONCE):
        yield features.rows(slice(first, first + VARIANTS_AT_ONCE))


@dataclass(frozen=True, kw_only=True)
class _Density:
    """Posterior density of the parameters, given the measured values."""

    layout: _Layout
    differences: Floats
    line: Floats
    distances: Floats | None
    targets: Floats
    replicates: Floats
    stated: Floats
    log_noise: float
    noise_spread: float

    def _expected(self) -> tuple[Floats, Floats]:
        """Return mean and standard deviation of the logarithms of the parameters."""
        mean = np.zeros(self.layout.noise + 1)
        mean[: self.layout.num_weights] = math.log(MEAN_WEIGHT)
        spread = np.ones_like(mean)
        mean[-1] = self.log_noise
        spread[-1] = self.noise_spread
        return mean, spread

    def best(self) -> Floats:
        """Return the logarithms of the parameters with the largest density."""
        from scipy.optimize import minimize

        mean, _ = self._expected()
        found = minimize(
            self._cost,
            np.clip(mean, *LOG_BOUNDS) if self.log_noise > LOG_BOUNDS[0] else mean,
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": MAX_STEPS},
            bounds=[LOG_BOUNDS] * self.layout.noise + [(math.log(LEAST_NOISE), LOG_BOUNDS[1])],
        )
        return np.asarray(found.x)

    def _parts(self, parameters: Floats) -> Iterator[tuple[Floats, Callable[[Floats], Floats]]]:
        """Yield the fitted parts of the covariance, each with the function of its gradients.

        The function takes the gradient of the cost with respect to the covariance, and returns the gradient
        with respect to the part's parameters, all of which are in one vector.
        """
        layout = self.layout
        if layout.num_weights:
            weights = np.exp(parameters[: layout.num_weights])
            exponent = np.tensordot(weights, self.differences, 1)
            part = np.exp(parameters[layout.scale] - exponent)

            def of_residues(outer: Floats) -> Floats:
                gradient = np.zeros_like(parameters)
                product = outer * part
                for index in range(layout.num_weights):
                    gradient[index] = -weights[index] * np.vdot(product, self.differences[index])
                gradient[layout.scale] = product.sum()
                return gradient

            yield part, of_residues
        if self.distances is not None:
            length = math.exp(parameters[layout.embedding_length])
            exponents = 0.5 * self.distances / length
            similar = np.exp(parameters[layout.embedding_scale] - exponents)

            def of_embeddings(outer: Floats) -> Floats:
                gradient = np.zeros_like(parameters)
                product = outer * similar
                gradient[layout.embedding_scale] = product.sum()
                gradient[layout.embedding_length] = np.vdot(product, exponents)
                return gradient

            yield similar, of_embeddings

    def _noises(self, parameters: Floats) -> Floats:
        """Return the variance of each measured mean, (N,)."""
        fitted = math.exp(parameters[self.layout.noise])
        return np.asarray(fitted / self.replicates + self.stated + LEAST_NOISE)

    def covariance(self, parameters: Floats) -> Floats:
        """Return the covariance of the measured values, (N, N)."""
        found = self.line + np.diag(self._noises(parameters))
        for part, _ in self._parts(parameters):
            found = found + part
        return found

    def _cost(self, parameters: Floats) -> tuple[float, Floats]:
        """Return minus the logarithm of the density, and its gradient."""
        from scipy.linalg import LinAlgError, cho_solve, cholesky

        parts = list(self._parts(parameters))
        covariance = self.line + np.diag(self._noises(parameters))
        for part, _ in parts:
            covariance = covariance + part
        try:
            factor = cholesky(covariance, lower=True, check_finite=False)
        except LinAlgError:
            return math.inf, np.zeros_like(parameters)
        inverse = cho_solve((factor, True), np.eye(len(self.targets)), check_finite=False)
        solved = inverse @ self.targets
        outer = 0.5 * (inverse - np.outer(solved, solved))
        mean, spread = self._expected()
        away = (parameters - mean) / spread
        cost = 0.5 * self.targets @ solved + np.log(np.diag(factor)).sum() + 0.5 * away @ away
        gradient = away / spread
        for _, of_part in parts:
            gradient += of_part(outer)
        fitted_noise = math.exp(parameters[self.layout.noise])
        gradient[self.layout.noise] += fitted_noise * (np.diag(outer) / self.replicates).sum()
        return float(cost), gradient


def _squared_distances(first: Singles, second: Singles) -> Floats:
    """Return the squared distances of two sets of vectors, (N, M)."""
    one = first.astype(np.float64)
    other = second.astype(np.float64)
    squares = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1)[None, :]
    return np.maximum(squares - 2 * one @ other.T, 0.0)
