"""ROUGE is that of the package that everybody compares with."""

from __future__ import annotations

import random

import pytest

from seqlm.language.rouge import MEASURES, mean_scores, rouge


def random_text(draw: random.Random) -> str:
    """Few words, so that they repeat, on a few lines, some of them empty."""
    words = ["Heart", "liver", "b12", "the", "of", "pain,", "x-ray", "é", "..."]
    lines = [" ".join(draw.choices(words, k=draw.randrange(12))) for _ in range(draw.randrange(4))]
    return "\n".join(lines)


def test_scores_are_those_of_rouge_score() -> None:
    from rouge_score.rouge_scorer import RougeScorer  # imports nltk, which takes seconds

    draw = random.Random(0)
    scorer = RougeScorer(list(MEASURES), use_stemmer=False)
    distinct = set()
    for _ in range(300):
        reference = random_text(draw)
        written = random_text(draw)
        expected = {
            name: found.fmeasure for name, found in scorer.score(reference, written).items()
        }
        found = rouge(reference, written)
        assert found == pytest.approx(expected, abs=1e-12), (reference, written)
        distinct.add(tuple(found.values()))
    assert len(distinct) > 100, "the texts differ"


def test_means_are_over_texts() -> None:
    scores = [rouge("the heart", "the heart"), rouge("the heart", "liver")]
    assert mean_scores(scores) == dict.fromkeys(MEASURES, 0.5)
