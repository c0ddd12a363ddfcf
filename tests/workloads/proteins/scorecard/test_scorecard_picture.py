"""Rows, picture, references and the baseline of neighbours of the scorecard."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

from seqlm.proteins.alphabet import TOKENS, VOCAB_SIZE, encode
from seqlm.proteins.inference.records import Protein
from seqlm.proteins.mutations.fitting import parse_variant
from seqlm.proteins.scorecard.neighbours import PRIOR, Neighbours
from seqlm.proteins.scorecard.page import short_names
from seqlm.proteins.scorecard.picture import Value, score_block
from seqlm.proteins.scorecard.references import (
    SHIPPED,
    read_references,
    record,
    reference_of,
)
from seqlm.proteins.scorecard.row import Comparison, Row

COMPARED = Comparison(chance=16.0, chance_of="<composition>", baseline=4.0, baseline_of="counts")
PERPLEXITY = Row(
    name="perplexity <b>",
    value=4.0,
    data="validation",
    protocol="masks",
    compared=COMPARED,
    best=1.0,
    scale="log",
    data_sha256="a" * 64,
)
ACCURACY = Row(
    name="accuracy",
    value=0.6,
    data="validation",
    protocol="probe",
    compared=Comparison(chance=0.2, chance_of="random", baseline=0.4, baseline_of="one-hot"),
    data_sha256="b" * 64,
)


def test_a_value_lies_between_chance_and_the_best_value() -> None:
    assert PERPLEXITY.is_lower_better and not ACCURACY.is_lower_better
    assert [PERPLEXITY.share(value) for value in (16.0, 4.0, 1.0)] == pytest.approx([0, 0.5, 1])
    assert [ACCURACY.share(value) for value in (0.2, 0.6, 1.0, 0.0)] == pytest.approx(
        [0, 0.5, 1, -0.25]
    )


def places(html: str, kind: str) -> list[float]:
    return [float(found) for found in re.findall(rf'class="{kind}" style="left:([\d.]+)%', html)]


def test_the_picture_names_every_value_and_places_it() -> None:
    values = [
        Value("<mine>", 4.0, "model"),
        Value("undefined", math.nan, "model"),
        Value("worse than chance", 64.0, "baseline"),
        Value("far off", 1e9, "known"),
        Value("published", 1.0, "published"),
    ]
    html = score_block(PERPLEXITY, values)
    label = re.findall('aria-label="([^"]*)"', html)[0]
    assert "&lt;mine&gt; 4.000" in label and "worse than chance 64.000" in label
    assert "&lt;composition&gt;: 16.000" in label and "lower is better" in label
    assert "<mine>" not in html and "<b>" not in html
    # The lowest place is that of a value as far from chance as the best one.
    assert places(html, "chance") == pytest.approx([50.0] * len(values))
    assert places(html, "bar") == pytest.approx([50.0])
    assert re.findall(r"width:([\d.]+)%", html) == ["25.00"]
    assert places(html, "mark") == pytest.approx([25.0, 0.0, 100.0], abs=0.01)
    assert html.count("\N{EN DASH}</span>") == 1


def test_a_reference_stands_beside_the_same_data_alone(tmp_path: Path) -> None:
    assert read_references(SHIPPED) == []
    file = tmp_path / "references.json"
    with pytest.raises(ValueError, match=r"scorecard\.references: .*FileNotFoundError"):
        read_references(file)
    elsewhere = Row(**{**vars(ACCURACY), "data_sha256": None})
    record(file, [reference_of("runs/a", "f1", "fp32", [PERPLEXITY, elsewhere])])
    record(file, [reference_of("runs/b", "f2", "fp32", [ACCURACY])])
    first, second = read_references(file)
    assert first.model == "runs/a" and first.revision is None and len(first.date) == 10
    assert [one.name for one in first.scores] == ["perplexity <b>"]
    assert first.value_of(PERPLEXITY) == 4.0 and second.value_of(PERPLEXITY) is None
    other_data = Row(**{**vars(PERPLEXITY), "data_sha256": "c" * 64})
    assert first.value_of(other_data) is None
    record(file, [reference_of("runs/a", "f1", "bf16", [ACCURACY])])
    assert [(one.model, one.precision) for one in read_references(file)] == [
        ("runs/b", "fp32"),
        ("runs/a", "bf16"),
    ]


@pytest.mark.parametrize("text", ["{}", "[{}]", "[1]", "nothing", '[{"model": "a"}]'])
def test_a_file_that_has_no_references_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "references.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"scorecard\.references: .* is no file of references"):
        read_references(file)


def test_neighbours_count_three_residues_in_a_row() -> None:
    neighbours = Neighbours([encode("AKA"), encode("AKA"), encode("ALA")])
    probabilities = np.exp(neighbours.log_probabilities(encode("AKA")))
    assert probabilities.shape == (3, VOCAB_SIZE)
    assert probabilities.sum(axis=1) == pytest.approx(np.ones(3))
    total = 9 + VOCAB_SIZE
    expected = (2 + PRIOR * 3 / total) / (3 + PRIOR)
    assert probabilities[1, TOKENS.index("K")] == pytest.approx(expected)
    assert neighbours.losses(encode("AKA"))[1] == pytest.approx(-math.log(expected))
    variant = parse_variant("K2L", Protein("p", encode("AKA"), ""))
    change = math.log((1 + PRIOR * 2 / total) / (2 + PRIOR * 3 / total))
    assert neighbours.scores(encode("AKA"), [variant]) == pytest.approx([change])


def test_models_are_named_as_briefly_as_they_differ() -> None:
    assert short_names(["/x/y/runs/a/model"]) == ["a"]
    assert short_names(["/x/y/runs/a/model", "/x/z/runs/a/model"]) == ["y/runs/a", "z/runs/a"]
    assert short_names(["owner/name", "runs/b/model"]) == ["name", "b"]
    assert short_names(["a", "./a"]) == ["a", "./a"]
