"""Records with several chains: their names, and the proteins that a model reads of them.

In text, ``|`` or ``:`` separates the chains of a record. A table may have a column for each chain instead,
and readers of structures make such records, too.
"""

import itertools
import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seqlm.proteins.alphabet import encode
from seqlm.training.strict_yaml import shown

from .chain_modes import CHAIN_MODES, ChainMode

Tokens = npt.NDArray[np.uint8]
"""Token ids, (L,), without CLS and EOS."""
MAX_CHAINS = 1_000
"""Largest number of chains of a record. Each one is an object in memory."""
_SEPARATOR = re.compile(r"[|:]")
"""Characters between two chains of a record."""
_NAMES = re.compile(r"(?:^|\s)chains=(\S*)")
"""Word with the names of the chains in a header of FASTA."""
_BAD_NAME = re.compile(r"[\0-\x1f\x7f-\x9f]")


class ChainError(ValueError):
    """Chains that make no record."""


@dataclass(frozen=True)
class Chain:
    """Chain of a record."""

    name: str
    tokens: Tokens


@dataclass(frozen=True)
class Complex:
    """Record of named chains.

    Raises:
        ChainError: if it has no chain or more than ``MAX_CHAINS``, a chain without residues, or two chains of
            one name.
    """

    id: str
    chains: tuple[Chain, ...]
    file: str = ""
    """File that the record comes from, for messages."""

    def __post_init__(self) -> None:
        if not self.chains:
            raise ChainError("no chain; give at least one")
        if len(self.chains) > MAX_CHAINS:
            raise ChainError(
                f"{len(self.chains):,} chains in one record; allowed are {MAX_CHAINS:,}"
            )
        check_names([chain.name for chain in self.chains])
        for chain in self.chains:
            if not len(chain.tokens):
                raise ChainError(
                    f"chain {shown(chain.name)} has no residues; give its sequence, or remove the chain"
                )

    @property
    def names(self) -> str:
        """Names of the chains, for messages."""
        return ", ".join(shown(chain.name) for chain in self.chains)


@dataclass(frozen=True)
class ChainSpan:
    """Place of a chain in the tokens that a model reads."""

    name: str
    start: int
    """Place of its first residue, from 0."""
    stop: int
    """Place after its last residue."""

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class JoinedChains:
    """Chains that a model reads as one protein."""

    tokens: Tokens
    spans: tuple[ChainSpan, ...]


def has_chains(text: str) -> bool:
    """Return whether a sequence has separators of chains."""
    return _SEPARATOR.search(text) is not None


def chain_texts(text: str) -> list[str]:
    """Return the sequences of the chains of a text."""
    return _SEPARATOR.split(text)


def names_in_header(header: str) -> list[str] | None:
    """Return the names in the word ``chains=H,L`` of a header; None without the word."""
    found = _NAMES.search(header)
    return None if found is None else found[1].split(",")


def default_names(count: int) -> list[str]:
    """Return the names of chains that have none: A to Z, then AA, AB and so on."""
    return [_letters(number) for number in range(count)]


def _letters(number: int) -> str:
    """Return the name of a chain by its number, from 0, as spreadsheets name columns."""
    letters = ""
    number += 1
    while number:
        number, place = divmod(number - 1, len(string.ascii_uppercase))
        letters = string.ascii_uppercase[place] + letters
    return letters


def named_texts(text: str, names: Sequence[str] | None) -> list[tuple[str, str]]:
    """Return the names and sequences of the chains of a text.

    Args:
        text: sequences with separators between them.
        names: names of the chains; None to name them A, B and so on.

    Raises:
        ChainError: if there are too many chains, more or fewer names than chains, or bad names.
    """
    texts = chain_texts(text)
    if len(texts) > MAX_CHAINS:
        raise ChainError(f"{len(texts):,} chains in one record; allowed are {MAX_CHAINS:,}")
    if names is None:
        names = default_names(len(texts))
    if len(names) != len(texts):
        raise ChainError(
            f"got {len(names)} name(s) of chains ({', '.join(map(shown, names))}) for {len(texts)} chain(s); "
            "name each chain once, as in chains=H,L"
        )
    check_names(names)
    return list(zip(names, texts, strict=True))


def check_names(names: Sequence[str]) -> None:
    """Raise ChainError if a name of a chain is empty, has control characters, or repeats."""
    for name, count in Counter(names).items():
        if not name or _BAD_NAME.search(name):
            raise ChainError(
                f"the name of a chain is {shown(name)}; expected a name such as H, without control characters"
            )
        if count > 1:
            raise ChainError(
                f"{count} chains are called {shown(name)}; name each chain differently"
            )


def joined(chains: Iterable[Chain], mode: ChainMode) -> JoinedChains:
    """Return chains as one protein, with the mode's linker between them."""
    linker = encode(mode.linker)
    parts: list[Tokens] = []
    spans: list[ChainSpan] = []
    end = 0
    for chain in chains:
        if parts:
            parts.append(linker)
            end += len(linker)
        parts.append(chain.tokens)
        spans.append(ChainSpan(chain.name, end, end + len(chain.tokens)))
        end = spans[-1].stop
    return JoinedChains(np.concatenate(parts), tuple(spans))


def linkers_of(spans: Sequence[ChainSpan]) -> tuple[tuple[int, int], ...]:
    """Return the first place of each linker between chains, and the place after it."""
    bounds = itertools.pairwise(spans)
    return tuple(
        (one.stop, following.start) for one, following in bounds if one.stop < following.start
    )


def places_of(spans: Sequence[ChainSpan]) -> npt.NDArray[np.int64]:
    """Return the places of the residues of chains, without linkers."""
    return np.concatenate([np.arange(span.start, span.stop) for span in spans])


def choice_needed(found: Complex, field: str, modes: Iterable[str] = CHAIN_MODES) -> str:
    """Return the message for a record with several chains if the run file does not say how to read it.

    Args:
        found: record.
        field: field of the run file, or parameter, that decides.
        modes: allowed values.
    """
    return (
        f"record {shown(found.id)} has {len(found.chains)} chains ({found.names}); set {field} to "
        f"{_alternatives(list(modes))}"
    )


def _alternatives(words: Sequence[str]) -> str:
    """Return words as alternatives: ``a, b or c``."""
    return f"{', '.join(words[:-1])} or {words[-1]}"


def rows_of_chains(spans: Sequence[ChainSpan]) -> Iterator[tuple[str, int, int]]:
    """Yield each chain's name and the numbers, from 1, of its first and last residue without linkers."""
    end = 0
    for span in spans:
        yield span.name, end + 1, end + len(span)
        end += len(span)
