"""Variants of a space, predicted values, the search, and the choice of a batch."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import spearmanr

from seqlm.proteins.alphabet import STANDARD_RESIDUES, encode
from seqlm.proteins.config import ProposeConfig
from seqlm.proteins.inference.records import Protein
from seqlm.proteins.mutations.fitting import parse_variant
from seqlm.proteins.propose import candidates
from seqlm.proteins.propose.acquisition import BATCHES, Opinion, choose, diverse
from seqlm.proteins.propose.campaign import UNCERTAIN, Round, ZeroShot, next_round
from seqlm.proteins.propose.measured import Measured, measured_of, no_values
from seqlm.proteins.propose.shapes import SHAPES, shaped
from seqlm.proteins.propose.space import Mutations, Space, space_of
from seqlm.proteins.propose.surrogate import Features, GaussianProcess, Values

WILD = "MKVLAGGW"
PROTEIN = Protein("wild", encode(WILD), "")
EFFECTS = np.random.default_rng(1).normal(size=(8, 20))


def space(*positions: str, residues: str = STANDARD_RESIDUES, most: int = 2) -> Space:
    return space_of(WILD, positions, residues, most)


def truth(of: Space, mutations: Mutations) -> np.ndarray:
    """Value of each variant: the sum of its effects, and a bonus for two of them together."""
    values = []
    for row in mutations:
        changes = [(place, STANDARD_RESIDUES.index(letter)) for place, letter in of.changes(row)]
        values.append(sum(EFFECTS[place, residue] for place, residue in changes))
        values[-1] += 0.5 * (len(changes) == 2)
    return np.array(values)


def no_embedding(sequences: object) -> np.ndarray:
    raise AssertionError("not needed")


def measured(of: Space, number: int) -> Measured:
    """A random part of all variants, with their values."""
    every = of.all_variants()
    rows = np.random.default_rng(2).choice(len(every), number, replace=False)
    values = truth(of, every[rows])
    names = [of.name(row) for row in every[rows]]
    options = ProposeConfig(direction="higher")
    return measured_of(
        zip(names, values.tolist(), strict=True), options, PROTEIN, of.first_position
    )


def after(of: Space, known: Measured, scores: np.ndarray | None = None, **options: object) -> Round:
    zero_shot = ZeroShot(of, np.zeros((len(of.places), 20)) if scores is None else scores)
    chosen = dataclasses.replace(ProposeConfig(direction="higher", number=10), **options)  # type: ignore[arg-type]
    return next_round(of, known, zero_shot, chosen, no_embedding)


def test_all_variants_of_a_space_are_those_that_it_counts() -> None:
    for most in (1, 2, 3):
        of = space("1-3", "5:GAC", most=most)
        every = of.all_variants()
        assert len(every) == of.num_variants() == len({of.name(row) for row in every})
        for row in every[::97]:
            assert (
                parse_variant(of.name(row), PROTEIN).tokens.tobytes()
                == encode(of.sequence(row)).tobytes()
            )


def test_variants_have_the_numbers_of_their_names() -> None:
    of = space("2-4", most=3)
    every = of.all_variants()[::531]
    variants = [parse_variant(of.name(row), PROTEIN) for row in every]
    assert np.array_equal(of.numbered(variants), every)


@pytest.mark.parametrize(
    ("positions", "residues", "message"),
    [
        (["0"], "AC", "the protein has the positions 1 to 8"),
        (["2-x"], "AC", "expected a position or a range"),
        (["2:AB"], "AC", "got 'B'; allowed are the residues"),
        (["2"], "", "got no residue"),
        (["2"], "K", "no position may get a residue other than its own"),
    ],
)
def test_a_space_that_cannot_be_is_refused(
    positions: list[str], residues: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        space_of(WILD, positions, residues, 2)


def test_positions_may_be_below_one() -> None:
    of = space_of(WILD, ("-2-0", "5:A"), "AC", 1, first_position=-2)
    names = [of.name(row) for row in of.all_variants()]
    assert names == ["M-2A", "M-2C", "K-1A", "K-1C", "V0A", "V0C", "W5A"]
    again = [parse_variant(name, PROTEIN, -2) for name in names]
    assert np.array_equal(of.numbered(again), of.all_variants())
    with pytest.raises(ValueError, match="has the positions -2 to 5"):
        space_of(WILD, ("-3",), "AC", 1, first_position=-2)


@pytest.mark.parametrize("similarity", [False, True])
def test_predictions_follow_values_and_are_sure_of_measured_variants(similarity: bool) -> None:
    of = space("1-4", residues="ACDEFGHIKL")
    known = measured(of, 150)
    features = Features(of.numbered(known.variants), np.zeros(150))
    process = GaussianProcess(of, features, known.values, uses_similarity=similarity)
    every = of.all_variants()
    predicted = process.predict(Features(every, np.zeros(len(every))))
    assert spearmanr(predicted.mean, truth(of, every)).statistic > 0.8
    assert np.allclose(predicted.mean, process.means(Features(every, np.zeros(len(every)))))
    at_known = process.predict(features)
    assert at_known.spread.mean() < 0.5 * predicted.spread.mean()
    assert np.allclose(np.diag(process.covariance(features)), at_known.spread**2, atol=1e-3)


def test_more_positions_than_weights_are_predicted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqlm.proteins.propose.surrogate.MAX_WEIGHTS", 3)
    of = space("1-5", residues="ACDE")
    known = measured(of, 60)
    process = GaussianProcess(of, Features(of.numbered(known.variants), np.zeros(60)), known.values)
    every = of.all_variants()
    means = process.means(Features(every, np.zeros(len(every))))
    assert spearmanr(means, truth(of, every)).statistic > 0.6


def test_noise_that_is_stated_makes_predictions_less_sure() -> None:
    of = space("1-3", residues="ACDE")
    known = measured(of, 20)
    features = Features(of.numbered(known.variants), np.zeros(20))
    sure = GaussianProcess(of, features, known.values)
    noisy_values = dataclasses.replace(known.values, stated_variances=np.full(20, 4.0))
    noisy = GaussianProcess(of, features, noisy_values)
    assert noisy.predict(features).spread.mean() > 2 * sure.predict(features).spread.mean()


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_keep_the_order_of_values(shape: str) -> None:
    values = Values(np.array([-3.0, 0.0, 0.5, 9.0]), np.ones(4), np.ones(4), 1.0)
    found = shaped(values, shape)
    assert np.all(np.diff(found.values) > 0)
    assert np.isfinite(found.stated_variances).all()


def test_the_warm_start_follows_the_model_until_values_contradict() -> None:
    of = space("1-3", residues="ACDEFG")
    scores = EFFECTS[:3]
    every = of.all_variants()
    rest = candidates.without(of, every, of.numbered(measured(of, 1).variants))
    zero_shot = ZeroShot(of, scores)(rest)

    def predicted(known: Measured, *, warm: bool) -> np.ndarray:
        found = after(of, known, scores, features=("zero_shot",), warm_start=warm)
        return found.candidates

    assert np.ptp(predicted(measured(of, 1), warm=False)) == pytest.approx(0.0, abs=1e-6)
    assert spearmanr(predicted(measured(of, 1), warm=True), zero_shot).statistic > 0.99
    names = [of.name(row) for row in every[:40]]
    values = (-ZeroShot(of, scores)(every[:40])).tolist()
    options = ProposeConfig(direction="higher")
    against = measured_of(zip(names, values, strict=True), options, PROTEIN, 1)
    left = ZeroShot(of, scores)(candidates.without(of, every, every[:40]))
    assert spearmanr(predicted(against, warm=True), left).statistic < -0.99


def test_measured_variants_of_equal_scores_do_not_exaggerate_those_of_others() -> None:
    of = space("1-3", most=1)
    scores = np.linspace(-4.0, 4.0, 60).reshape(3, 20)
    by_score = of.all_variants()[np.argsort(-ZeroShot(of, scores)(of.all_variants()))]
    names = [of.name(row) for row in by_score[:8]]
    options = ProposeConfig(direction="higher")
    known = measured_of(zip(names, range(8), strict=True), options, PROTEIN, 1)
    found = after(of, known, scores)
    assert found.candidates.min() > -10 and found.candidates.max() < 17


def test_measured_variants_are_never_proposed_again() -> None:
    of = space("1-2", residues="ACDE")
    known = measured(of, of.num_variants() - 3)
    names = {of.name(row) for row in of.numbered(known.variants)}
    found = after(of, known)
    assert len(found.proposals) == 3
    assert names.isdisjoint(one.variant for one in found.proposals)
    with pytest.raises(ValueError, match="were measured; allow more"):
        after(of, measured(of, of.num_variants()))


def test_a_search_finds_what_enumeration_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    of = space("1-6", most=2)
    known = of.all_variants()[:50]

    def score(mutations: Mutations) -> np.ndarray:
        return truth(of, mutations)

    every = candidates.candidates_of(of, known, score, 20, seed=0)
    monkeypatch.setattr(candidates, "MOST_ENUMERATED", 100)
    monkeypatch.setattr(candidates, "POPULATION", 400)
    monkeypatch.setattr(candidates, "CHILDREN", 400)
    searched = candidates.candidates_of(of, known, score, 20, seed=0)
    assert every.is_complete and not searched.is_complete
    best = np.sort(score(every.mutations))[-20:]
    found = np.sort(score(searched.mutations))[-20:]
    assert np.allclose(found[-5:], best[-5:])
    assert not set(of.keys(searched.mutations, 2)) & set(of.keys(known, 2))
    again = candidates.candidates_of(of, known, score, 20, seed=0)
    assert np.array_equal(again.mutations, searched.mutations)


def distances(of: Space, found: Round) -> float:
    """Mean number of positions at which two proposals differ."""
    rows = [one.sequence for one in found.proposals]
    return float(
        np.mean([sum(a != b for a, b in zip(x, y, strict=True)) for x in rows for y in rows])
    )


def test_each_way_to_account_for_the_batch_chooses_in_its_own_way() -> None:
    of = space("1-4", residues="ACDEFGHIKL")
    known = measured(of, 40)
    found = {name: after(of, known, batch=name, number=30) for name in BATCHES}
    names = {key: [one.variant for one in one_round.proposals] for key, one_round in found.items()}
    assert names["top"] != names["hallucinated"] != names["liar"] != names["top"]
    assert names["top"][0] == names["hallucinated"][0] == names["liar"][0]
    assert distances(of, found["hallucinated"]) > distances(of, found["top"])
    assert distances(of, found["liar"]) > distances(of, found["top"])


def test_thompson_sampling_depends_on_the_seed_alone() -> None:
    of = space("1-4", residues="ACDEFGHIKL")
    known = measured(of, 40)

    def names(seed: int) -> list[str]:
        found = after(of, known, acquisition="thompson", seed=seed)
        return [one.variant for one in found.proposals]

    assert names(1) == names(1) != names(2)


def test_without_exploration_the_highest_predictions_are_chosen() -> None:
    of = space("1-4", residues="ACDEFGHIKL")
    found = after(of, measured(of, 60), batch="top", exploration=0.0, shapes=("plain",))
    predicted = [one.predicted for one in found.proposals]
    assert predicted == sorted(predicted, reverse=True)
    assert predicted == pytest.approx(np.sort(found.candidates)[::-1][:10])
    assert not any(one.reason == UNCERTAIN for one in found.proposals)


def test_lower_values_are_better_if_the_user_says_so() -> None:
    of = space("1-4", residues="ACDEFGHIKL")
    higher = measured(of, 60)
    names = [of.name(row) for row in of.numbered(higher.variants)]
    negative = zip(names, (-higher.values.values).tolist(), strict=True)
    options = ProposeConfig(direction="lower")
    lower = after(of, measured_of(negative, options, PROTEIN, 1), direction="lower")
    for one, other in zip(after(of, higher).proposals, lower.proposals, strict=True):
        assert one.variant == other.variant
        assert one.predicted == pytest.approx(-other.predicted)
        assert one.reason == other.reason and "high" not in other.reason


def test_diversity_spreads_the_first_round() -> None:
    of = space("1-4", residues="ACDEFGHIKL")
    every = {
        weight: after(of, no_values(), EFFECTS[:4], diversity=weight, number=20)
        for weight in (0.0, 3.0)
    }
    assert distances(of, every[3.0]) > distances(of, every[0.0])
    scores = [one.predicted for one in every[0.0].proposals]
    assert all(one >= other for one, other in pairwise(scores))
    assert all(one.uncertainty is None for one in every[0.0].proposals)


def test_diverse_places_are_the_highest_ones_without_a_weight() -> None:
    values = np.array([1.0, 3.0, 2.9, 0.0])
    assert diverse(values, lambda one, other: 1.0, 2, 0.0) == [1, 2]
    alike = {(1, 2), (2, 1)}
    assert diverse(values, lambda one, other: float((one, other) in alike), 2, 2.5) == [1, 0]


def test_processes_take_turns() -> None:
    of = space("1-3", residues="ACDEFG")
    known = measured(of, 30)
    features = Features(of.numbered(known.variants), np.zeros(30))
    rest = candidates.without(of, of.all_variants(), features.mutations)
    others = Features(rest, np.zeros(len(rest)))
    opinions = []
    for sign in (1.0, -1.0):
        values = dataclasses.replace(known.values, values=sign * known.values.values)
        process = GaussianProcess(of, features, values)
        opinions.append(Opinion(process, process.predict(others)))
    rows = choose(opinions, others, 2, acquisition="ucb", batch="top", exploration=0.0, seed=0)
    assert rows.tolist() == [
        int(opinions[0].prediction.mean.argmax()),
        int(opinions[1].prediction.mean.argmax()),
    ]
