"""Names of variants in the forms that people write, and those that are refused by name."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from seqlm.proteins.alphabet import STANDARD_RESIDUES, THREE_LETTER_CODES, decode, encode
from seqlm.proteins.mutations.fitting import check_numbering, parse_variant
from seqlm.proteins.mutations.saturation import all_single_mutants
from seqlm.proteins.mutations.similarity import num_common_residues


class WildType(NamedTuple):
    id: str
    tokens: npt.NDArray[np.uint8]


SEQUENCE = "MKTAYIAKQRQISFVKSHFSRQ"
PROTEIN = WildType("w", encode(SEQUENCE))
TWO = "MKTGYIARQRQISFVKSHFSRQ"
"""Sequence with A4G and K8R."""


def sequence_of(name: str, first_position: int = 1) -> str:
    return decode(parse_variant(name, PROTEIN, first_position).tokens)


@pytest.mark.parametrize(
    "name",
    [
        "A4G:K8R",
        "A4G,K8R",
        "A4G; K8R",
        "A4G+K8R",
        "A4G/K8R",
        "A4G_K8R",
        "A4G K8R",
        "k8r:a4g",
        "Ala4Gly;Lys8Arg",
        "A4G:Lys8Arg",
        "A4G:p.Lys8Arg",
        "A4G, p.Lys8Arg",
        "p.[Ala4Gly;Lys8Arg]",
        "p.[(Ala4Gly);(Lys8Arg)]",
        "p.([Ala4Gly;Lys8Arg])",
        "p.[A4G;K8R]",
        TWO,
        f" {TWO.lower()}* ",
    ],
)
def test_several_mutations(name: str) -> None:
    variant = parse_variant(name, PROTEIN)
    assert decode(variant.tokens) == TWO
    assert variant.num_mutations == 2 and variant.keeps_length
    assert sorted(one.place for one in variant.substitutions) == [3, 7]


@pytest.mark.parametrize(
    ("name", "sequence", "num_mutations"),
    [
        ("A4G", "MKTGYIAKQRQISFVKSHFSRQ", 1),
        ("p.Ala4Gly", "MKTGYIAKQRQISFVKSHFSRQ", 1),
        ("p.(Ala4Gly)", "MKTGYIAKQRQISFVKSHFSRQ", 1),
        ("p.A4G", "MKTGYIAKQRQISFVKSHFSRQ", 1),
        ("NP_000537.3:p.Ala4Gly", "MKTGYIAKQRQISFVKSHFSRQ", 1),
        ("P12345:p.Ala4Gly", "MKTGYIAKQRQISFVKSHFSRQ", 1),
        ("Q9Y6K9:p.Ala4Gly", "MKTGYIAKQRQISFVKSHFSRQ", 1),
        ("p.Ala4del", "MKTYIAKQRQISFVKSHFSRQ", 1),
        ("A4del", "MKTYIAKQRQISFVKSHFSRQ", 1),
        ("p.Ala4_Ala7del", "MKTKQRQISFVKSHFSRQ", 4),
        ("p.Ala4_Tyr5insSerThr", "MKTASTYIAKQRQISFVKSHFSRQ", 2),
        ("A4_Y5insST", "MKTASTYIAKQRQISFVKSHFSRQ", 2),
        ("p.Ala4delinsSerThr", "MKTSTYIAKQRQISFVKSHFSRQ", 2),
        ("p.Ala4_Ala7delinsSerThr", "MKTSTKQRQISFVKSHFSRQ", 4),
        ("p.Ala4_Tyr5delinsGlyTrp", "MKTGWIAKQRQISFVKSHFSRQ", 2),
        ("p.Ala4dup", "MKTAAYIAKQRQISFVKSHFSRQ", 1),
        ("p.Ala4_Tyr5dup", "MKTAYAYIAKQRQISFVKSHFSRQ", 2),
        ("p.[Ala4del;Gln22_Gln22del]", None, 0),
        ("p.[Lys8del;Ala4_Tyr5insSer]", "MKTASYIAQRQISFVKSHFSRQ", 2),
        ("MKTYIAKQRQISFVKSHFSRQ", "MKTYIAKQRQISFVKSHFSRQ", 1),
        ("MKTAYIAGGKQRQISFVKSHFSRQ", "MKTAYIAGGKQRQISFVKSHFSRQ", 2),
    ],
)
def test_one_variant(name: str, sequence: str | None, num_mutations: int) -> None:
    if sequence is None:  # a range from a residue to itself
        with pytest.raises(ValueError, match="start position must be before end position"):
            parse_variant(name, PROTEIN)
        return
    variant = parse_variant(name, PROTEIN)
    assert decode(variant.tokens) == sequence
    assert variant.num_mutations == num_mutations


def test_insertions_and_deletions_are_no_substitutions() -> None:
    assert parse_variant("p.Ala4_Tyr5delinsGlyTrp", PROTEIN).keeps_length
    moved = parse_variant("p.[Lys8del;Ala4_Tyr5insSer]", PROTEIN)
    assert len(moved.tokens) == len(SEQUENCE) and not moved.keeps_length
    with pytest.raises(ValueError, match="inserts or deletes residues"):
        _ = moved.substitutions


@pytest.mark.parametrize(
    "name",
    [
        "WT",
        "wt",
        "_wt",
        "Wild-type",
        "p.=",
        "p.(=)",
        "p.Ala4=",
        "p.(Ala4=)",
        "A4=",
        "A4A",
        SEQUENCE,
    ],
)
def test_wild_type(name: str) -> None:
    variant = parse_variant(name, PROTEIN)
    assert variant.edits == () and variant.substitutions == () and variant.num_mutations == 0
    assert decode(variant.tokens) == SEQUENCE


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "the name of the variant is empty"),
        (
            "A4G/S",
            "'A4G/S' may mean the variants A4G and A4S, or one variant with GS in place of A4",
        ),
        ("p.Ala4Ter", "a stop"),
        ("p.A4*", "a stop"),
        ("A4*", "a stop"),
        ("p.Ala4fs", "a frame shift"),
        ("p.Ala4ProfsTer3", "a frame shift"),
        ("p.Ala4Profs*3", "a frame shift"),
        ("A4fs", "a frame shift"),
        ("Ala4ProfsTer3", "a frame shift"),
        ("Ala4Ter", "a stop"),
        ("K8R:A4Ter", "a stop"),
        ("p.Ala4Gly:p.Lys8Arg", "':' stands between changes; allowed are"),
        ("p.Met1ext-5", "an extension"),
        ("p.?", "unknown effect"),
        ("p.Met1?", "unknown effect"),
        ("p.0", "a protein that is not made"),
        ("p.Ala4[10]", "a number of repeats"),
        ("p.[Ala4Gly];[Lys8Arg]", "several alleles"),
        ("p.[Ala4Gly(;)Lys8Arg]", "several alleles"),
        ("_sy", "_sy stands for all variants without a change"),
        ("c.12A>G", "a change in DNA or RNA"),
        ("NM_1.1:c.12A>G", "a change in DNA or RNA"),
        ("p.Ala4_Lys8insGly", "insertion positions must be adjacent"),
        ("p.Ala4_Met1del", "start position must be before end position"),
        ("p.Ala4Xaa", "not a variant in HGVS"),
        ("A4", "'A4' is not a mutation"),
        ("4G", "'4G' is not a mutation"),
        ("A0G", "A0G: position 0 is outside w"),
        ("A-4G", "A-4G: position -4 is outside w"),
        ("A04G", "'A04G' is not a mutation"),
        ("A4G,", "'' of 'A4G,' is not a mutation"),
        ("A4G:WT", "'WT' of 'A4G:WT' is not a mutation"),
        ("A4B", f"A4B: B is not one of the residues {STANDARD_RESIDUES}"),
        ("A5G", "A5G: w has Y at position 5, not A"),
        ("A4_A8del", "A4_A8del: w has K at position 8, not A"),
        ("A99G", "A99G: position 99 is outside w, which has the positions 1 to 22"),
        ("A4G:A4V", "two mutations change the residue at position 4"),
        ("p.[Ala4_Ala7del;Tyr5Gly]", "two mutations change the residue at position 5"),
        ("p.Met1_Gln22del", "deletes all residues of w"),
        ("VDGV", "'VDGV' has 4 residues, and w has 22"),
        ("W" * 22, "has 0 of the 22 residues of w; at least half, 11, must agree"),
        (
            "W" * 20,
            "has 20 residues, of which 0 are in w (22 residues) in the same order; at least half",
        ),
        (
            "GDNKLMTRWECPAVNDKLMTRWECPA",
            "of which 6 are in w (22 residues) in the same order; at least half, 13, must agree",
        ),
        ("A" + "9" * 5000 + "G", "is not a mutation"),
    ],
)
def test_names_that_are_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse_variant(name, PROTEIN)
    assert message in str(refused.value)
    assert len(str(refused.value)) < 500


def test_numbering_that_begins_elsewhere() -> None:
    assert sequence_of("A23G", first_position=20) == sequence_of("A4G")
    assert sequence_of("p.Ala23_Ala26del", first_position=20) == sequence_of("p.Ala4_Ala7del")
    with pytest.raises(ValueError, match="which has the positions 20 to 41"):
        sequence_of("A4G", first_position=20)
    with pytest.raises(ValueError, match="two mutations change the residue at position 23"):
        sequence_of("A23G:A23V", first_position=20)
    # Residues of a tag before the protein have numbers below 1.
    assert sequence_of("M-2L:K-1R:T0S", first_position=-2) == "LRS" + SEQUENCE[3:]
    names = [variant.name for variant in all_single_mutants(PROTEIN, first_position=-2)]
    assert all(parse_variant(name, PROTEIN, first_position=-2).name == name for name in names)


def test_another_numbering_is_named_and_not_applied() -> None:
    names = ["A23G", "p.Lys27Arg", "WT", "not a name"]
    with pytest.raises(ValueError, match=r"do not fit .* set inference\.first_position=20"):
        check_numbering(names, PROTEIN)
    check_numbering(names, PROTEIN, first_position=20)
    # Several numberings fit, or none, or there is nothing to compare.
    check_numbering(["K100R"], PROTEIN)
    check_numbering([*names, "W24R"], PROTEIN)
    check_numbering(["WT", ""], PROTEIN)


def test_a_wrong_name_among_many_does_not_hide_another_numbering() -> None:
    names = [f"{letter}{place}C" for place, letter in enumerate(SEQUENCE, start=20)]
    wrong = [*names[:18], "W40C", "M41C"]
    with pytest.raises(ValueError, match=r"18 of 20 fit .* set inference\.first_position=20"):
        check_numbering(wrong, PROTEIN)
    check_numbering(wrong, PROTEIN, first_position=20)
    # Fewer than nine tenths fit, or half of them fit the number that the user gives.
    check_numbering([*wrong, "W39C"], PROTEIN)
    repeat = [f"{letter}{place}C" for place, letter in enumerate("A" * 10 + "DEFGHIKLMN", start=1)]
    tail = "C" * 20 + "A" * 10 + "DEFGHIKLMW"
    check_numbering(repeat, WildType("half", encode("A" * 10 + tail)))
    with pytest.raises(ValueError, match="19 of 20 fit if it has the number -29"):
        check_numbering(repeat, WildType("fewer", encode("W" + "A" * 9 + tail)))


def test_whole_sequences_of_other_lengths_need_residues_in_common() -> None:
    longer = SEQUENCE[:4] + "GGSGGSGGSGGSGGSGGSGGS" + SEQUENCE[4:]
    assert sequence_of(longer) == longer
    assert sequence_of(SEQUENCE[11:]) == SEQUENCE[11:]
    scattered = "M" + SEQUENCE[3:9] + "WW" + SEQUENCE[11:]
    assert sequence_of(scattered) == scattered


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [(b"ABCBDAB", b"BDCABA", 4), (b"", b"A", 0), (b"AB", b"BA", 1), (b"AXBYC", b"ABC", 3)],
)
def test_common_residues(one: bytes, other: bytes, common: int) -> None:
    assert num_common_residues(one, other) == num_common_residues(other, one) == common


def test_saturation() -> None:
    found = all_single_mutants(WildType("w", encode("MXK")), first_position=10)
    assert len(found) == 2 * 19
    assert {variant.name[:-1] for variant in found} == {"M10", "K12"}
    assert all(decode(one.tokens) == f"{one.name[-1]}XK" for one in found[:19])


def test_codes_of_residues_are_those_of_mavehgvs() -> None:
    """The parser of HGVS takes its codes from fqfa."""
    from fqfa.constants import AA_CODES

    assert {letter: AA_CODES[letter] for letter in STANDARD_RESIDUES} == THREE_LETTER_CODES
