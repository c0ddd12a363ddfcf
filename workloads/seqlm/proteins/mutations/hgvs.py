"""Names of protein variants in HGVS, such as ``p.Ala24Gly``, by mavehgvs.

mavehgvs parses the names of MAVE-HGVS (``p.Ala24Gly``, ``p.Ala24_Gly26del``). Other forms that HGVS allows
(https://hgvs-nomenclature.org/stable/recommendations/protein/) are brought into that form before: predicted
consequences in parentheses, one-letter codes, and ``*`` for a stop.
"""

import re

from seqlm.proteins.alphabet import STANDARD_RESIDUES, THREE_LETTER_CODES
from seqlm.training.strict_yaml import shown

from .changes import Change, ChangeKind, Named
from .errors import MutationError

_TO_ONE_LETTER = {code: letter for letter, code in THREE_LETTER_CODES.items()}
_RESIDUE = rf"(?:{'|'.join(_TO_ONE_LETTER)}|[{STANDARD_RESIDUES}])"
"""A residue in three letters, or in one."""
_PLACE = rf"{_RESIDUE}\d{{1,6}}"
_MUTATION = rf"(?:p\.[^:]*|{_PLACE}(?:{_RESIDUE}|[=*]|(?:del|dup|ins|fs)[^:]*))"
"""Mutation that stands before a colon. An accession such as ``P12345`` or ``Q9Y6K9`` has no such form."""
_PREFIX = re.compile(rf"(?:(?!(?:\S*[,;+/_])?{_MUTATION}:)[^\s:]+:)?p\.", re.IGNORECASE)
"""Beginning of a name in HGVS, maybe with the accession of the protein before it."""
_OTHER_PREFIX = re.compile(r"(?:[^\s:]+:)?[cgnmor]\.[\d\[(*=?-]")
"""Beginning of a name of a change in DNA or RNA."""
_WITHOUT_PREFIX = re.compile(
    rf"{_PLACE}(?:_{_PLACE})?(?:=|delins{_RESIDUE}+|del|dup|ins{_RESIDUE}+)"
    rf"|{_PLACE}(?:Ter|\*|{_RESIDUE}?fs(?:(?:Ter|\*)\d*)?)"
)
"""Change in HGVS that only HGVS can mean, although the name has no ``p.``; stops and frame shifts, too."""
_THREE_LETTERS = re.compile(rf"({'|'.join(_TO_ONE_LETTER)})\d+(?:{'|'.join(_TO_ONE_LETTER)})")
"""Substitution in three letters, which is read without ``p.``, too."""
_KINDS = {
    "sub": ChangeKind.REPLACED,
    "delins": ChangeKind.REPLACED,
    "del": ChangeKind.REPLACED,
    "ins": ChangeKind.INSERTED,
    "dup": ChangeKind.DUPLICATED,
    "equal": ChangeKind.SAME,
}
"""Kinds of changes by those of mavehgvs. Frame shifts are refused before."""
_KEPT = ("p.=", "p.(=)")
"""Names of the wild type."""
_NOT_SCORED = {
    r"fs": "a frame shift",
    r"ext": "an extension of the protein",
    r"Ter|\*": "a stop",
    r"\?": "a variant of unknown effect",
    r"^\(?0": "a protein that is not made",
    r"\[\d": "a number of repeats",
    r"\(;\)|\];\[": "variants of several alleles",
    r"\^|//|/": "alternatives or mosaics",
}
"""Patterns of names that describe no single sequence of amino acids, and what they name."""


def is_hgvs(name: str) -> bool:
    """Return whether a name is in HGVS, of a protein or not."""
    return bool(
        _PREFIX.match(name)
        or _OTHER_PREFIX.match(name)
        or _WITHOUT_PREFIX.fullmatch(name)
        or _THREE_LETTERS.fullmatch(name)
    )


def changes_of(name: str) -> list[Change]:
    """Return the changes that a name in HGVS describes; none for the wild type.

    Raises:
        MutationError: if the name is not one of a protein, has another form, or describes no single sequence.
    """
    if _OTHER_PREFIX.match(name) and not _PREFIX.match(name):
        raise MutationError(
            f"{shown(name)} names a change in DNA or RNA; give the name of the protein's change, "
            "such as p.Ala24Gly"
        )
    body = _PREFIX.sub("", name, count=1)
    if f"p.{body}" in _KEPT:
        return []
    for pattern, what in _NOT_SCORED.items():
        if re.search(pattern, body):
            raise MutationError(
                f"{shown(name)} is {what}, which no model of whole proteins can score; leave it out"
            )
    return [_change(name, part) for part in _parts(body)]


def _parts(body: str) -> list[str]:
    """Return the changes of a name: several stand in brackets, and parentheses mean a prediction."""
    if body.startswith("[") and body.endswith("]"):
        return [_without_parentheses(part) for part in body[1:-1].split(";")]
    body = _without_parentheses(body)
    if body.startswith("[") and body.endswith("]"):
        return [_without_parentheses(part) for part in body[1:-1].split(";")]
    return [body]


def _without_parentheses(text: str) -> str:
    return text[1:-1] if text.startswith("(") and text.endswith(")") else text


def _change(name: str, part: str) -> Change:
    """Return one change of a name.

    Raises:
        MutationError: if the change has a form that is not one of HGVS.
    """
    from mavehgvs import MaveHgvsParseError
    from mavehgvs import Variant as ParsedName

    try:
        if ":" in part:  # mavehgvs would take the text before it for the id of a protein
            raise MaveHgvsParseError("':' stands between changes")
        parsed = ParsedName(f"p.{_in_three_letters(part)}")
    except MaveHgvsParseError as error:
        raise MutationError(
            f"{shown(name)} is not a variant in HGVS that can be read: {error}; allowed are p.Ala24Gly, "
            "p.Ala24=, p.Ala24del, p.Ala24_Gly26del, p.Ala24_Gly25insSer, p.Ala24delinsSerThr, p.Ala24dup, "
            "and several in brackets, p.[Ala24Gly;Lys30Arg]"
        ) from None
    ((kind, places, letters),) = parsed.variant_tuples()
    ends = places if isinstance(places, tuple) else (places,)
    named = []
    for end in ends:
        # Only names of the whole protein have no residues and positions, and they are read before.
        assert end is not None and end.amino_acid is not None and end.position is not None
        named.append(Named(_TO_ONE_LETTER[end.amino_acid], end.position))
    # Of a substitution, mavehgvs gives the old and the new residue; of an insertion, the new ones.
    new = letters[1] if isinstance(letters, tuple) else letters or ""
    return Change(
        kind=_KINDS[kind],
        text=part,
        named=tuple(named),
        inserted="" if kind == "equal" else _in_one_letter(new),
    )


def _in_three_letters(part: str) -> str:
    """Return a change in three-letter codes; one of another form as it is."""
    match = re.fullmatch(rf"({_PLACE})(?:_({_PLACE}))?(=|delins|del|dup|ins|)({_RESIDUE}*)", part)
    if match is None:
        return part
    first, last, kind, new = match.groups()
    until = "" if last is None else f"_{_three(last)}"
    return f"{_three(first)}{until}{kind}{_three(new)}"


def _three(text: str) -> str:
    """Return a text with its residues in three-letter codes."""
    return re.sub(_RESIDUE, lambda found: THREE_LETTER_CODES.get(found[0], found[0]), text)


def _in_one_letter(codes: str) -> str:
    """Return residues in three-letter codes as one-letter codes."""
    triples = [codes[first : first + 3] for first in range(0, len(codes), 3)]
    return "".join(_TO_ONE_LETTER[triple] for triple in triples)
