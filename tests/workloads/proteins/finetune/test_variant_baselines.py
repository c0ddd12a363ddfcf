"""Baselines of variants equal published definitions, and stand beside the tuned model."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy.stats import spearmanr

from seqlm.proteins.alphabet import STANDARD_RESIDUES, VOCAB_SIZE, encode
from seqlm.proteins.finetune.prepare import prepare_table
from seqlm.proteins.finetune.variants import ridge
from seqlm.proteins.finetune.variants.ranking import compared, ndcg, spearman, top_recall
from seqlm.proteins.mutations.edits import Variant, edits_between
from seqlm.runs.run_file import load_config
from tests.workloads.proteins.finetune.test_variant_splits import WILD, names_table
from tests.workloads.training.training_runs import train_here, write_run_file

HSU_SCALE = 1e4
"""Factor of the score in the program of Hsu et al.: the root of 1 over its penalty of 1e-8."""


def variants_of(count: int, seed: int = 0) -> list[Variant]:
    draw = random.Random(seed)
    wild = encode(WILD)
    found = []
    for _ in range(count):
        letters = list(WILD)
        for place in draw.sample(range(len(WILD)), draw.randint(1, 3)):
            letters[place] = draw.choice(STANDARD_RESIDUES)
        mutant = encode("".join(letters))
        found.append(Variant("", edits_between(wild.tobytes(), mutant.tobytes()), wild))
    return found


def one_hot(variants: list[Variant]) -> np.ndarray:
    return np.stack([np.eye(VOCAB_SIZE)[one.tokens].ravel() for one in variants])


@pytest.mark.parametrize("with_score", [False, True])
def test_ridge_equals_the_program_of_hsu(with_score: bool) -> None:
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import KFold

    variants = variants_of(150)
    draw = np.random.default_rng(1)
    target = draw.normal(size=150) + 2 * one_hot(variants)[:, ::7].sum(axis=1)
    score = draw.normal(size=150) + target
    design = ridge.one_hot(variants)
    plain = one_hot(variants)
    if with_score:
        design = design.with_score(score)
        plain = np.column_stack([plain, (score - score.mean()) / score.std() * HSU_SCALE])
    fitted = ridge.fit(design, target)
    means = {}
    for strength in ridge.STRENGTHS:
        # Folds are every fifth variant, here put next to each other.
        order = np.argsort(np.arange(150) % 5, kind="stable")
        found = []
        for train, test in KFold(5).split(order):
            model = Ridge(strength, solver="cholesky").fit(
                plain[order[train]], target[order[train]]
            )
            predicted = model.predict(plain[order[test]])
            found.append(spearmanr(predicted, target[order[test]]).statistic)
        means[strength] = np.mean(found)
    assert fitted.strength == max(means, key=lambda strength: means[strength])
    expected = Ridge(fitted.strength, solver="cholesky").fit(plain, target).predict(plain)
    assert fitted.predict(design) == pytest.approx(expected, abs=1e-4)


def test_insertions_and_deletions_have_features() -> None:
    wild = encode(WILD)
    mutants = [WILD, WILD[:4] + WILD[5:], WILD[:4] + "G" + WILD[4:], WILD[:4] + "W" + WILD[4:]]
    variants = [
        Variant("", edits_between(wild.tobytes(), encode(one).tobytes()), wild) for one in mutants
    ]
    rows = ridge.one_hot(variants).residues.toarray()
    assert not rows[0].any()
    assert len(np.unique(rows, axis=0)) == 4


def test_scores_of_a_ranking_are_those_counted_by_hand() -> None:
    truth = np.arange(20.0)
    # The two best ones are predicted second and fifth.
    predicted = truth.copy()
    predicted[[19, 17]] = predicted[[17, 19]]
    predicted[[18, 15]] = predicted[[15, 18]]
    gains = {number: number / 19 for number in range(20)}
    ideal = gains[19] / np.log2(2) + gains[18] / np.log2(3)
    assert np.argsort(-predicted)[:2].tolist() == [17, 15]
    assert ndcg(truth, predicted) == pytest.approx(
        (gains[17] / np.log2(2) + gains[15] / np.log2(3)) / ideal
    )
    assert top_recall(truth, predicted) == 0
    assert ndcg(truth, truth) == top_recall(truth, truth) == 1
    assert ndcg(truth, np.ones(20)) == pytest.approx(0.5 * (1 + 1 / np.log2(3)) / ideal)
    assert spearman(truth, predicted) == pytest.approx(spearmanr(truth, predicted).statistic)
    ties = np.round(predicted / 3)
    assert spearman(truth, ties) == pytest.approx(spearmanr(truth, ties).statistic)
    assert spearman(truth, np.ones(20)) == 0
    assert np.isnan([ndcg(truth[:9], truth[:9]), top_recall(np.ones(20), truth)]).all()


def test_a_model_beats_another_beyond_chance_only() -> None:
    draw = np.random.default_rng(0)
    truth = draw.normal(size=(200, 1))
    noise = draw.normal(size=(3, 200, 1))
    good = compared(truth, truth + 0.3 * noise[0], truth + 3 * noise[1])
    assert good.is_better and good.low < good.value < good.high
    even = compared(truth, truth + noise[0], truth + noise[2])
    assert not even.is_better and even.low < 0 < even.high
    worse = compared(truth, noise[0], truth)
    assert not worse.is_better and worse.high < 0
    same = compared(truth, noise[0], noise[0])
    assert (same.value, same.low, same.high, same.is_better) == (0, 0, 0, False)


def test_missing_measurements_do_not_count() -> None:
    draw = np.random.default_rng(0)
    truth = draw.normal(size=(60, 2))
    first = truth.copy()
    second = draw.normal(size=(60, 2))
    first[:50, 1] = draw.normal(size=50)
    truth[:50, 1] = np.nan
    found = compared(truth, first, second)
    expected = [
        1 - spearmanr(truth[:, 0], second[:, 0]).statistic,
        1 - spearmanr(truth[50:, 1], second[50:, 1]).statistic,
    ]
    assert found.value == pytest.approx(np.mean(expected))


@pytest.fixture(scope="module")
def run_file(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("variants")
    path = write_run_file(folder, folder / "data", tiny_model)
    settings = yaml.safe_load(path.read_text())
    settings["train"]["max_steps"] = 4
    settings["task"] = {
        "kind": "regression",
        "table": [str(names_table(folder))],
        "wild_type": WILD,
        "split": {"variants": "random", "folds": 3},
    }
    path.write_text(yaml.safe_dump(settings))
    prepare_table(load_config(path))
    return path


@pytest.mark.long
def test_results_and_report_have_the_baselines(
    run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_here(run_file)
    text = capsys.readouterr().out
    run_dir = load_config(run_file).run_dir
    results = json.loads((run_dir / "all_results.json").read_text())
    document = json.loads((run_dir / "variant_baselines.json").read_text())
    statements = [line for line in text.splitlines() if line.startswith("the tuned model")]
    verb = "beats" if results["beats"] else "does not beat"
    assert len(statements) == 1 and f"{verb} the better baseline" in statements[0]
    assert set(results["baselines"]) == {
        "one-hot ridge",
        "augmented ridge",
        "zero-shot score",
        "frozen probe",
    }
    assert results["better_baseline"] in ("one-hot ridge", "augmented ridge")
    tuned = document["scores"]["tuned model"]
    assert tuned["spearman"] == pytest.approx(results["test_spearman"], abs=1e-6)
    assert tuned["ndcg"] == results["test_ndcg"]
    better = results["baselines"][results["better_baseline"]]["spearman"]
    difference = results["spearman_difference"]
    assert difference["value"] == pytest.approx(tuned["spearman"] - better, abs=1e-9)
    assert sum(one["variants"] for one in document["by_mutations"]) == results["test_samples"]
    page = (run_dir / "report.html").read_text()
    assert f"{statements[0][1:]}." in page
    for words in (
        "NDCG",
        "Recall of the top 10 %",
        "augmented ridge",
        "RMSE by number of mutations",
    ):
        assert words in page
    assert "k-mers" not in page and "protein length" not in page
