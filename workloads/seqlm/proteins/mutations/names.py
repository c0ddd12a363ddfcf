"""Names of variants as people write them: ``A24G``, ``A24G:K30R``, HGVS, ``WT``, or the whole sequence."""

import re
from dataclasses import dataclass

from seqlm.proteins.alphabet import STANDARD_RESIDUES
from seqlm.training.strict_yaml import shown

from . import hgvs
from .changes import Change, ChangeKind, Named
from .errors import MutationError

WILD_TYPES = ("wt", "_wt", "wildtype", "wild-type", "wild_type", "wild type")
"""Names of the wild type, besides those of HGVS, in small letters."""
_SYNONYMOUS = "_sy"
"""Name that Enrich2 gives to all variants without a change in the protein, together."""
_JOINER = re.compile(r"\s*[:,;+/_]\s*|\s+")
"""Text between several mutations of a variant."""
_POSITION = r"(?:0|-?[1-9][0-9]{0,5})"
"""Number of a residue. Residues before the numbered protein, such as those of a tag, have 0 and less."""
_SHORT = re.compile(rf"([A-Za-z])({_POSITION})([A-Za-z*=])")
"""Residue of the wild type, position, and the new residue."""
_ALTERNATIVES = re.compile(rf"([A-Za-z]{_POSITION})([A-Za-z](?:/[A-Za-z])+)")
"""Mutation with several new residues, such as ``A24G/S``."""
_SEQUENCE = re.compile(r"[A-Za-z]{2,}\*?")
_STOP = "*"
_SAME = "="


@dataclass(frozen=True)
class Description:
    """Meaning of a variant's name."""

    name: str
    """Name as the user wrote it."""
    changes: tuple[Change, ...] = ()
    """Changes of the wild type; empty for the wild type itself."""
    sequence: str | None = None
    """Whole sequence of the variant, if the name is one."""


def described(name: str) -> Description:
    """Return what a name says.

    Raises:
        MutationError: if the name is none of a variant, or has two meanings.
    """
    text = name.strip()
    if not text:
        raise MutationError("the name of the variant is empty; write WT for the wild type")
    if text.lower() in WILD_TYPES:
        return Description(name)
    if text.lower() == _SYNONYMOUS:
        raise MutationError(
            f"{text} stands for all variants without a change in the protein; leave it out, or write WT"
        )
    if hgvs.is_hgvs(text):
        return Description(name, tuple(hgvs.changes_of(text)))
    if _SEQUENCE.fullmatch(text):
        return Description(name, sequence=text.removesuffix(_STOP).upper())
    if match := _ALTERNATIVES.fullmatch(text):
        _refuse_alternatives(text, match[1], match[2].split("/"))
    return Description(name, tuple(_change(part, text) for part in _JOINER.split(text)))


def _refuse_alternatives(text: str, place: str, residues: list[str]) -> None:
    """Raise MutationError with the meanings of a mutation with several new residues."""
    single = " and ".join(f"{place}{residue}" for residue in residues)
    joined = "".join(residues)
    raise MutationError(
        f"{shown(text)} may mean the variants {single}, or one variant with {joined} in place of {place}; "
        f"give each variant a row of its own, or write p.{place}delins{joined}"
    )


def _change(text: str, name: str) -> Change:
    """Return the change that one mutation of a name describes.

    Args:
        text: mutation.
        name: whole name, for messages.

    Raises:
        MutationError: if it has another form, or is a stop.
    """
    if hgvs.is_hgvs(text):
        found = hgvs.changes_of(text)
        if len(found) == 1:
            return found[0]
    match = _SHORT.fullmatch(text)
    if match is None:
        of_name = "" if text == name else f" of {shown(name)}"
        raise MutationError(
            f"{shown(text)}{of_name} is not a mutation; write the residue, its position and the new residue, "
            "A42G, or A42G:K50R for several; deletions and insertions as in HGVS, p.Ala42del"
        )
    wild = match[1].upper()
    number = int(match[2])
    mutant = match[3].upper()
    if mutant == _STOP:
        raise MutationError(
            f"{shown(text)} is a stop, which no model of whole proteins can score; leave it out"
        )
    for letter in (wild, mutant):
        if letter not in STANDARD_RESIDUES + _SAME:
            raise MutationError(f"{text}: {letter} is not one of the residues {STANDARD_RESIDUES}")
    if mutant == _SAME:
        return Change(ChangeKind.SAME, text, (Named(wild, number),), "")
    return Change(ChangeKind.REPLACED, text, (Named(wild, number),), mutant)
