"""Names of variants from their edits, in the forms that ``names`` reads."""

from seqlm.proteins.alphabet import decode

from .edits import Edit, Variant

WILD_TYPE = "WT"


def spelt(variant: Variant, first_position: int = 1) -> str:
    """Return the name of a variant: ``WT``, ``A24G:K30R``, or for other edits such as ``A24_G26delinsST``.

    Args:
        variant: variant.
        first_position: number of the protein's first residue.
    """
    if not variant.edits:
        return WILD_TYPE
    edits = sorted(variant.edits, key=lambda edit: edit.start)
    return ":".join(_name(variant, edit, first_position) for edit in edits)


def _name(variant: Variant, edit: Edit, first_position: int) -> str:
    """Return the name of one edit."""
    inserted = decode(list(edit.inserted))
    if len(edit.inserted) == 1 and edit.stop - edit.start == 1:
        return f"{_place(variant, edit.start, first_position)}{inserted}"
    if edit.start < edit.stop:
        kind = "delins" if inserted else "del"
        return f"{_stretch(variant, edit.start, edit.stop - 1, first_position)}{kind}{inserted}"
    last = len(variant.wild) - 1
    # An insertion at an end has no residue on one side, so that it replaces the end by more residues.
    if edit.start == 0:
        end = decode(variant.wild[:1])
        return f"{_place(variant, 0, first_position)}delins{inserted}{end}"
    if edit.start > last:
        end = decode(variant.wild[last:])
        return f"{_place(variant, last, first_position)}delins{end}{inserted}"
    return f"{_stretch(variant, edit.start - 1, edit.start, first_position)}ins{inserted}"


def _stretch(variant: Variant, first: int, last: int, first_position: int) -> str:
    """Return the first and the last place of a stretch, or its only one."""
    start = _place(variant, first, first_position)
    return start if first == last else f"{start}_{_place(variant, last, first_position)}"


def _place(variant: Variant, place: int, first_position: int) -> str:
    """Return the residue of the wild type at a place, and its number."""
    return f"{decode(variant.wild[place : place + 1])}{place + first_position}"
