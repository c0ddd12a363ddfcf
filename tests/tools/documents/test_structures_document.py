"""The pages on structures name the limits, the ends of files and the functions of the code."""

import re
from pathlib import Path

import seqlm
from seqlm.proteins.contacts.head import RANGES
from seqlm.proteins.contacts.truth import SHARES
from seqlm.proteins.structures import b_factors, chains, parsing
from seqlm.runs.inference_commands import PRECISION_END, STRUCTURE_ENDS

PAGE = Path("docs/structures.md").read_text()
INPUT_FILES = " ".join(Path("docs/input-files.md").read_text().split())


def test_limits_are_named() -> None:
    assert (
        f"A structure has at most 1 GiB, {parsing.MAX_CHAINS:,} chains and {parsing.MAX_CHAIN_RESIDUES:,} "
        "residues in a chain, waters included."
    ) in INPUT_FILES
    assert f"({b_factors.LOWEST} to {b_factors.HIGHEST})" in PAGE
    assert f"get {b_factors.OTHER_VALUE:.2f}" in PAGE
    assert f"less than {chains.CONTACT_ANGSTROMS:.0f} Å apart" in PAGE


def test_ranges_and_precisions_are_named() -> None:
    for name, (low, high) in RANGES.items():
        bounds = rf"{name} \({low} to {high}\b" if high < 100 else rf"{name} \({low} or more\)"
        assert re.search(bounds, " ".join(PAGE.split()))
    assert {"P@L", "P@L/5"} == {*SHARES} and all(name in PAGE for name in SHARES)


def test_files_and_functions_are_named() -> None:
    for end in (PRECISION_END, *STRUCTURE_ENDS):
        assert f"`<output>{end}`" in PAGE
    for name in re.findall(r"seqlm\.(\w+)\(", PAGE):
        assert name in seqlm.__all__
    for name in re.findall(r"`(H\w\w|CY\w)`", PAGE):
        assert name in chains.FORCE_FIELD_PARENTS
