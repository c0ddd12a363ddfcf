"""Variants of records with several chains. Mutations name their chain: ``H.A24G``, ``H.A24G:L.K30R``.

Each chain is numbered from ``first_position``. A variant may have mutations in several chains.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from seqlm.proteins.alphabet import encode
from seqlm.proteins.reading.chains import ChainSpan, chain_texts, has_chains, linkers_of
from seqlm.proteins.reading.policies import Kind
from seqlm.training.strict_yaml import shown

from .changes import Named
from .edits import Edit, Variant, WildType, edits_between
from .errors import MutationError
from .fitting import (
    FIRST_POSITION,
    check_first,
    check_numbering,
    check_sequence,
    fits_by_number,
    fitted,
    parse_variant,
    stated_residues,
)
from .hgvs import is_hgvs
from .names import Description, described
from .saturation import all_single_mutants

_JOINERS = " \t:,;+/_"
"""Characters between the mutations of a variant."""
_NAMED_CHAIN = re.compile(r"(?:^|[\s:,;+/_])([^\s:,;+/_.]+)\.(?=[A-Za-z]-?\d|p\.)")
"""Text before a point and a mutation, which is the name of a chain."""
_SEQUENCE = re.compile(r"[A-Za-z]{2,}\*?")


class ChainedWildType(WildType, Protocol):
    """Protein that variants are made of, maybe of several chains."""

    @property
    def chains(self) -> Sequence[ChainSpan]:
        """Chains in ``tokens``; empty for a protein of one chain."""


@dataclass(frozen=True)
class _ChainOfProtein:
    """Chain as a wild type of its own."""

    id: str
    tokens: npt.NDArray[np.uint8]


class _InChain(NamedTuple):
    """Part of a variant's name that is about one chain."""

    chain: str
    text: str


def variant_named(
    name: str, protein: ChainedWildType, first_position: int = 1, field: str = FIRST_POSITION
) -> Variant:
    """Return the variant of a protein that a name describes.

    Args:
        name: name of the variant; with several chains, each mutation names its chain.
        protein: wild type.
        first_position: number of the first residue of each chain in names.
        field: name of that number for the user.

    Raises:
        MutationError: if the name has another form, or does not fit the protein.
    """
    if not protein.chains:
        _check_no_chain(name, protein)
        return parse_variant(name, protein, first_position, field)
    wild = np.asarray(protein.tokens, dtype=np.uint8)
    unchanged = Variant(name, (), wild, linkers_of(protein.chains))
    text = name.strip()
    sequences = _sequences(text, protein)
    if sequences is not None:
        edits = _edits_of_sequences(name, sequences, protein)
    elif _is_wild_type(text):
        edits = ()
    else:
        edits = _edits_in_chains(name, _parts(text, protein), protein, first_position, field)
    return replace(unchanged, edits=edits)


def check_numbering_of(
    names: Iterable[str],
    protein: ChainedWildType,
    first_position: int = 1,
    field: str = FIRST_POSITION,
) -> None:
    """Raise ValueError if names do not fit a protein, and exactly one other numbering makes all fit.

    The parameters are those of ``fitting.check_numbering``. With several chains, the number is that of the
    first residue of each.
    """
    if not protein.chains:
        check_numbering(names, protein, first_position, field)
        return
    stated: dict[str, set[Named]] = {}
    for name in names:
        for part in _readable_parts(name, protein):
            stated.setdefault(part.chain, set()).update(stated_residues([part.text]))
    fits = Counter[int]()
    for chain, residues in stated.items():
        fits += fits_by_number(residues, _chain_of(protein, _span_of(chain, protein)).tokens)
    num_stated = sum(map(len, stated.values()))
    check_first(protein.id, fits, num_stated, first_position, field)


def single_mutants_of(protein: ChainedWildType, first_position: int = 1) -> list[Variant]:
    """Return every variant that replaces one standard residue of a chain by one of the 19 others.

    Args:
        protein: wild type.
        first_position: number of the first residue of each chain in names.
    """
    if not protein.chains:
        return all_single_mutants(protein, first_position)
    wild = np.asarray(protein.tokens, dtype=np.uint8)
    linkers = linkers_of(protein.chains)
    variants = []
    for span in protein.chains:
        for one in all_single_mutants(_chain_of(protein, span), first_position):
            edits = tuple(_moved(edit, span) for edit in one.edits)
            variants.append(Variant(f"{span.name}.{one.name}", edits, wild, linkers))
    return variants


def _check_no_chain(name: str, protein: WildType) -> None:
    """Raise MutationError if a mutation of a protein with one chain names a chain."""
    found = _NAMED_CHAIN.search(name.strip())
    if found is not None and not is_hgvs(name.strip()):
        raise MutationError(
            f"{shown(name)}: {protein.id} has no chain {shown(found[1])}, but one chain without a name; "
            "write the mutation alone, A42G",
            Kind.OTHER_PROTEIN,
        )


def _chain_of(protein: ChainedWildType, span: ChainSpan) -> _ChainOfProtein:
    """Return a chain as a wild type of its own."""
    tokens = np.asarray(protein.tokens[span.start : span.stop], dtype=np.uint8)
    return _ChainOfProtein(f"chain {span.name} of {protein.id}", tokens)


def _span_of(chain: str, protein: ChainedWildType) -> ChainSpan:
    """Return the place of a chain.

    Raises:
        KeyError: if the protein has no such chain.
    """
    return {span.name: span for span in protein.chains}[chain]


def _moved(edit: Edit, span: ChainSpan) -> Edit:
    """Return an edit of a chain as one of the protein."""
    return replace(edit, start=edit.start + span.start, stop=edit.stop + span.start)


def _is_wild_type(text: str) -> bool:
    """Return whether a name is that of the wild type.

    Raises:
        MutationError: if the name is empty.
    """
    if not text:
        described(text)  # says what is wrong
    try:
        found = described(text)
    except MutationError:
        return False
    return not found.changes and found.sequence is None


def _parts(text: str, protein: ChainedWildType) -> list[_InChain]:
    """Return the parts of a name by chain, in their order.

    Raises:
        MutationError: if a part names no chain, or one that the protein does not have.
    """
    names = sorted((span.name for span in protein.chains), key=len, reverse=True)
    listed = ", ".join(span.name for span in protein.chains)
    start = re.compile(rf"(?:^|(?<=[{re.escape(_JOINERS)}]))({'|'.join(map(re.escape, names))})\.")
    found = list(start.finditer(text))
    starts = [*(match.start() for match in found), len(text)]
    first = starts[0]
    ends = starts[1:]
    parts = [
        _InChain(match[1], text[match.end() : end].strip(_JOINERS))
        for match, end in zip(found, ends, strict=True)
    ]
    for part in (text[:first], *(part.text for part in parts)):
        unknown = _NAMED_CHAIN.search(part)
        if unknown is not None and not is_hgvs(part):
            raise MutationError(
                f"{shown(text)}: {protein.id} has no chain {shown(unknown[1])}; it has the chains {listed}",
                Kind.OTHER_PROTEIN,
            )
    if text[:first].strip(_JOINERS):
        raise MutationError(
            f"{shown(text)} does not name the chain of each mutation, and {protein.id} has the chains "
            f"{listed}; write the chain and a point before each, {protein.chains[0].name}.A42G"
        )
    return parts


def _readable_parts(name: str, protein: ChainedWildType) -> Iterator[_InChain]:
    """Yield the parts of a name; none if it cannot be read."""
    text = name.strip()
    try:
        if text and _sequences(text, protein) is None and not _is_wild_type(text):
            yield from _parts(text, protein)
    except MutationError:
        return


def _edits_in_chains(
    name: str,
    parts: Sequence[_InChain],
    protein: ChainedWildType,
    first_position: int,
    field: str,
) -> tuple[Edit, ...]:
    """Return the edits that the parts of a name describe.

    Raises:
        MutationError: if a part does not fit its chain.
    """
    by_chain: dict[str, Description] = {}
    for part in parts:
        description = described(part.text)
        if description.sequence is not None:
            raise MutationError(
                f"{shown(name)}: give the sequences of all chains, with '|' between them, or mutations"
            )
        if len(description.changes) > 1 and not is_hgvs(part.text):
            other = description.changes[1].text
            raise MutationError(
                f"{shown(name)}: {shown(other)} names no chain; write {part.chain}.{other}, or another chain"
            )
        known = by_chain.get(part.chain, Description(name))
        by_chain[part.chain] = replace(known, changes=known.changes + description.changes)
    edits: list[Edit] = []
    for chain, description in by_chain.items():
        span = _span_of(chain, protein)
        variant = fitted(description, _chain_of(protein, span), first_position, field)
        edits += [_moved(edit, span) for edit in variant.edits]
    return tuple(edits)


def _sequences(text: str, protein: ChainedWildType) -> list[str] | None:
    """Return the whole sequences of all chains, if a name consists of them; otherwise None."""
    if not has_chains(text) and len(protein.chains) > 1:
        return None
    texts = [part.strip() for part in chain_texts(text)]
    is_whole = len(texts) == len(protein.chains) and all(map(_SEQUENCE.fullmatch, texts))
    return texts if is_whole and not _is_wild_type(text) else None


def _edits_of_sequences(
    name: str, sequences: Sequence[str], protein: ChainedWildType
) -> tuple[Edit, ...]:
    """Return the edits that make the whole sequences of all chains from those of the wild type.

    Raises:
        MutationError: if a sequence is hardly a variant of its chain.
    """
    edits: list[Edit] = []
    for span, sequence in zip(protein.chains, sequences, strict=True):
        chain = _chain_of(protein, span)
        mutant = encode(sequence.removesuffix("*")).tobytes()
        check_sequence(name, mutant, chain)
        edits += [_moved(edit, span) for edit in edits_between(chain.tokens.tobytes(), mutant)]
    return tuple(edits)
