"""Frozen probes equal scikit-learn's own models, and their intervals cover groups of similar examples."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler

from seqlm.proteins.finetune import probes
from seqlm.proteins.finetune.labels import LabelSchema
from seqlm.proteins.finetune.probes import STRENGTHS, Examples, fit_probe, interval
from seqlm.proteins.finetune.scores import headline_values, scores

KINDS = {
    "binary": LabelSchema("binary", ("a",), ("no", "yes")),
    "multiclass": LabelSchema("multiclass", ("c",), ("x", "y", "z")),
    "multilabel": LabelSchema("multilabel", ("a", "b")),
    "regression": LabelSchema("regression", ("u", "v")),
}


def data(kind: str, number: int, seed: int) -> Examples:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(number, 6))
    signal = features[:, :3] + 0.5 * rng.normal(size=(number, 3))
    labels = {
        "binary": signal[:, :1] > 0,
        "multiclass": signal.argmax(axis=1)[:, None],
        "multilabel": signal[:, :2] > 0.5,
        "regression": signal[:, :2],
    }[kind].astype(np.float32)
    labels[::17] = np.nan
    return Examples(features, labels)


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_those_of_scikit_learn_with_the_best_penalty(kind: str) -> None:
    schema, train, validation, test = KINDS[kind], *(data(kind, n, n) for n in (200, 90, 80))
    probe = fit_probe(schema, train, validation)
    scaler = StandardScaler().fit(train.features)
    by_strength = {}
    for strength in STRENGTHS:
        columns = []
        for column in train.labels.T:
            known = np.isfinite(column)
            classifier = LogisticRegression(C=strength, tol=1e-3)
            model = Ridge(alpha=1 / strength) if kind == "regression" else classifier
            model.fit(scaler.transform(train.features[known]), column[known])
            predict = model.predict if kind == "regression" else model.decision_function
            columns.append(
                [predict(scaler.transform(each.features)) for each in (validation, test)]
            )
        both = [np.column_stack(found) for found in zip(*columns, strict=True)]
        value = scores(schema, validation.labels, both[0])[schema.task.headlines[0]]
        by_strength[strength] = (value, both[1])
    best = max(by_strength, key=lambda strength: by_strength[strength][0])
    assert (probe.strength, probe.validation) == (best, pytest.approx(by_strength[best][0]))
    np.testing.assert_allclose(
        probe.outputs(test.features), by_strength[best][1], rtol=1e-4, atol=1e-4
    )
    sparse = fit_probe(schema, train._replace(features=csr_matrix(train.features)), validation)
    assert sparse.validation == pytest.approx(probe.validation, abs=0.05)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "regression"])
def test_headlines_are_means_over_examples(kind: str) -> None:
    schema = KINDS[kind]
    examples = data(kind, 200, 0)
    outputs = np.random.default_rng(5).normal(size=(200, schema.num_outputs)).astype(np.float32)
    values = headline_values(schema, examples.labels, outputs)
    expected = scores(schema, examples.labels, outputs)[schema.task.headlines[0]]
    assert np.nanmean(values) == pytest.approx(expected)


def test_labels_of_one_value_and_absent_classes_are_constant_answers() -> None:
    features = np.random.default_rng(0).normal(size=(30, 4))
    ones = np.ones((30, 1), dtype=np.float32)
    probe = fit_probe(KINDS["binary"], Examples(features, ones), Examples(features, ones))
    assert (probe.outputs(features) > 10).all()
    two = (features[:, :1] > 0).astype(np.float32)  # of three classes
    probe = fit_probe(KINDS["multiclass"], Examples(features, two), Examples(features, two))
    assert set(probe.outputs(features).argmax(axis=1)) == {0, 1}


def test_intervals_draw_whole_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "RESAMPLES", 60)
    schema = KINDS["regression"]
    rng = np.random.default_rng(1)
    labels = np.repeat(rng.normal(size=(12, 2)), 20, axis=0).astype(
        np.float32
    )  # 12 groups of 20 alike
    good = labels + rng.normal(size=labels.shape) * 0.1
    bad = rng.normal(size=labels.shape)
    outputs = [good.astype(np.float32), bad.astype(np.float32)]
    grouped = interval(schema, labels, outputs, np.repeat(np.arange(12), 20))
    alone = interval(schema, labels, outputs, np.arange(240))
    value = scores(schema, labels, outputs[0])["spearman"]
    assert grouped[0][0] <= value <= grouped[0][1]
    assert np.ptp(grouped[0]) > 1.5 * np.ptp(alone[0]), "fewer independent examples"
    assert grouped[1][0] > 0.5, "the difference of good and bad is clear"
    same = interval(schema, labels, [outputs[0], outputs[0]], np.arange(240))
    assert same[1] == pytest.approx([0, 0])
