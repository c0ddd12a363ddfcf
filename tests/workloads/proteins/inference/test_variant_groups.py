"""Many variants of one protein are scored in groups, and the model reads each masked place once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from seqlm.proteins.alphabet import MASK, encode
from seqlm.proteins.inference import engine_probabilities
from seqlm.proteins.inference.records import Protein
from seqlm.proteins.inference.variant_scores import SCORES
from seqlm.proteins.mutations.edits import Variant
from seqlm.proteins.mutations.in_chains import variant_named

NAMES = ["M1A", "K2R", "M1A:K2R", "T3S", "K2R:T3S", "M1L", "A4G"]
VOCABULARY = 33


class FixedEngine:
    """Engine whose answers depend on the tokens that it reads, and which counts the proteins."""

    max_residues = 100

    def __init__(self) -> None:
        self.num_read = 0

    def run(self, proteins: Sequence[Any], answer: Any) -> list[Any]:
        self.num_read += len(proteins)
        return [self._logits(protein) for protein in proteins]

    def _logits(self, protein: Any) -> Any:
        seed = int(np.dot(protein.astype(np.int64), np.arange(1, len(protein) + 1)))
        generator = np.random.default_rng(seed)
        is_masked = bool((protein == MASK).any())
        shape = (VOCABULARY,) if is_masked else (len(protein), VOCABULARY)
        return generator.normal(size=shape)


@pytest.fixture
def protein() -> Protein:
    return Protein("p", encode("MKTA"), "p.fasta")


def variants_of(protein: Protein) -> Iterator[Variant]:
    for name in NAMES:
        yield variant_named(name, protein)


@pytest.mark.parametrize("score", SCORES)
def test_groups_have_the_scores_of_all_variants_together(
    score: str, protein: Protein, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scored(engine: Any) -> list[float]:
        wanted = variants_of(protein)
        return engine_probabilities.score_variants(engine, protein.tokens, wanted, score)

    together = FixedEngine()
    expected = scored(together)
    assert together.num_read == SCORES[score].num_reads(protein.tokens, variants_of(protein))
    monkeypatch.setattr(engine_probabilities, "VARIANTS_AT_ONCE", 2)
    in_groups = FixedEngine()
    assert scored(in_groups) == expected
    if SCORES[score].is_distribution:
        assert in_groups.num_read == together.num_read


@pytest.mark.parametrize("score", SCORES)
def test_no_variants_have_no_scores_and_need_no_reads(score: str, protein: Protein) -> None:
    engine: Any = FixedEngine()
    assert engine_probabilities.score_variants(engine, protein.tokens, [], score) == []
    assert engine.num_read == 0
    assert SCORES[score].num_reads(protein.tokens, []) == 0
