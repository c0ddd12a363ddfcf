"""Mutations of records with several chains name their chain."""

from __future__ import annotations

import numpy as np
import pytest

from seqlm.proteins.alphabet import decode, encode
from seqlm.proteins.inference.records import Protein, proteins_of
from seqlm.proteins.inference.variant_scores import score_of
from seqlm.proteins.mutations.errors import MutationError
from seqlm.proteins.mutations.in_chains import check_numbering_of, single_mutants_of, variant_named
from seqlm.proteins.reading.chain_modes import chain_mode
from seqlm.proteins.reading.chains import Chain, Complex
from seqlm.proteins.reading.policies import Kind

LINKER = "G" * 25


def pair(mode: str = "linker", names: tuple[str, str] = ("H", "L")) -> Protein:
    chains = (Chain(names[0], encode("EVQLK")), Chain(names[1], encode("DIQMT")))
    [protein] = proteins_of(Complex("ab1", chains), chain_mode(mode))
    return protein


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("H.E1A", "AVQLK-DIQMT"),
        ("L.D1A", "EVQLK-AIQMT"),
        ("H.E1A:L.D1A", "AVQLK-AIQMT"),
        ("H.E1A, L.D1A", "AVQLK-AIQMT"),
        ("L.p.Asp1Gly", "EVQLK-GIQMT"),
        ("L.p.[Asp1Gly;Ile2Val]", "EVQLK-GVQMT"),
        ("L.p.Gln3del", "EVQLK-DIMT"),
        ("WT", "EVQLK-DIQMT"),
        ("EVQLR|DIQMS", "EVQLR-DIQMS"),
        ("EVQLK:DIQ", "EVQLK-DIQ"),
    ],
)
@pytest.mark.parametrize("mode", ["linker", "joined"])
def test_names_change_their_chain(name: str, expected: str, mode: str) -> None:
    variant = variant_named(name, pair(mode))
    linker = LINKER if mode == "linker" else ""
    assert decode(variant.tokens) == expected.replace("-", linker)
    assert decode(variant.tokens[variant.scored_places]) == expected.replace("-", "")
    assert decode(variant.unchanged.tokens) == pair(mode).sequence


def test_positions_begin_anew_in_each_chain() -> None:
    variant = variant_named("H.E25A:L.D25A", pair(), first_position=25)
    assert decode(variant.tokens) == f"AVQLK{LINKER}AIQMT"


def test_columns_may_have_joiners_in_their_names() -> None:
    protein = pair(names=("heavy_chain", "VL 1"))
    assert (
        decode(variant_named("heavy_chain.E1A,VL 1.D1A", protein).tokens) == f"AVQLK{LINKER}AIQMT"
    )


@pytest.mark.parametrize(
    ("name", "reason", "kind"),
    [
        ("X.E1A", "ab1 has no chain 'X'; it has the chains H, L", Kind.OTHER_PROTEIN),
        ("H.E1A:X.D1A", "ab1 has no chain 'X'", Kind.OTHER_PROTEIN),
        ("E1A", "does not name the chain of each mutation", Kind.BAD_MUTATION),
        ("H.E1A:V2G", "'V2G' names no chain; write H.V2G", Kind.BAD_MUTATION),
        ("H.D1A", "chain H of ab1 has E at position 1", Kind.OTHER_PROTEIN),
        ("L.T6A", "position 6 is outside chain L of ab1", Kind.OTHER_PROTEIN),
        ("H.E1A:H.E1G", "two mutations change the residue at position 1", Kind.BAD_MUTATION),
        ("H.EVQLR", "give the sequences of all chains", Kind.BAD_MUTATION),
        ("", "the name of the variant is empty", Kind.BAD_MUTATION),
    ],
)
def test_names_that_do_not_fit_are_refused(name: str, reason: str, kind: Kind) -> None:
    with pytest.raises(MutationError, match=reason) as caught:
        variant_named(name, pair())
    assert caught.value.kind is kind


def test_one_chain_has_no_name() -> None:
    protein = Protein("p1", encode("EVQLK"), "")
    assert decode(variant_named("E1A", protein).tokens) == "AVQLK"
    with pytest.raises(MutationError, match="p1 has no chain 'H', but one chain without a name"):
        variant_named("H.E1A", protein)


def test_single_mutants_are_those_of_the_chains() -> None:
    mutants = single_mutants_of(pair())
    assert len(mutants) == 10 * 19
    assert mutants[0].name == "H.E1L" and mutants[-1].name.startswith("L.T5")
    assert all(decode(one.tokens)[5:30] == LINKER for one in mutants)


def test_a_numbering_must_fit_all_chains() -> None:
    check_numbering_of(["H.E1A", "L.M4A"], pair())
    with pytest.raises(ValueError, match=r"set inference\.first_position=31"):
        check_numbering_of(["H.E31A:L.D31A", "L.M34A"], pair())
    check_numbering_of(["H.E31A", "L.M4A"], pair())  # no numbering fits, which each row says


class FixedProbabilities:
    """Log probabilities that depend on the place and on the residue that is scored."""

    def masked(self, protein: np.ndarray, places: range) -> dict[int, np.ndarray]:
        return {place: -np.arange(33) / 10 - len(protein) for place in places}

    def seen(self, proteins: list[np.ndarray]) -> list[np.ndarray]:
        raise AssertionError("not needed")


def test_linkers_are_left_out_of_pseudo_log_likelihoods() -> None:
    protein = pair()
    score = score_of("pseudo_log_likelihood")
    wanted = [variant_named("H.p.Val2del", protein)]
    residues = protein.tokens[protein.places].astype(float)
    of_wild = -residues.sum() / 10 - 35 * 10
    of_variant = -(residues.sum() - residues[1]) / 10 - 34 * 9
    [found] = score.compute(FixedProbabilities(), protein.tokens, wanted)  # type: ignore[arg-type]
    assert found == pytest.approx(of_variant - of_wild)
    assert score.num_reads(protein.tokens, wanted) == 10 + 9
    repeated = [*wanted, variant_named("WT", protein), variant_named("H.V2del", protein)]
    scores = score.compute(FixedProbabilities(), protein.tokens, repeated)  # type: ignore[arg-type]
    assert scores == [found, 0.0, found]
    assert score.num_reads(protein.tokens, repeated) == 10 + 9
