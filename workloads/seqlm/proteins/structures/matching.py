"""Chains of structures whose sequences are those of proteins of the input."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from seqlm.proteins.alphabet import encode
from seqlm.proteins.inference.records import Protein
from seqlm.proteins.reading.rejects import Reject
from seqlm.training.strict_yaml import shown

from .chains import Structure, StructureChain, read_structure
from .formats import format_of_file

FIELD = "inference.structure"
"""Field of the run file that names the structure."""
SHOWN_CHAINS = 5
_READ_BYTES = 1 << 20


def read_named(location: str) -> Structure:
    """Return the structure that the run file names.

    Raises:
        ValueError: naming the field, if the file is no structure or cannot be read.
    """
    try:
        return read_structure(Path(location))
    except ValueError as error:
        raise ValueError(f"{FIELD}: {error}") from None


def same_chains(
    structure: Structure, name: str, tokens: npt.NDArray[np.uint8]
) -> list[StructureChain]:
    """Return the chains with the sequence of a protein. The one with its id is the first.

    Args:
        structure: structure.
        name: id of the protein.
        tokens: token ids of the protein, (L,).
    """
    found = [chain for chain in structure.chains if _is_same(chain, tokens)]
    return sorted(found, key=lambda chain: chain.id != name)


def _is_same(chain: StructureChain, tokens: npt.NDArray[np.uint8]) -> bool:
    return len(chain.sequence) == len(tokens) and bool((encode(chain.sequence) == tokens).all())


def with_a_match(
    records: Iterable[Protein | Reject], structure: Structure
) -> Iterator[Protein | Reject]:
    """Yield records.

    Raises:
        ValueError: if no protein has the sequence of a chain.
    """
    is_found = False
    for record in records:
        if not is_found and isinstance(record, Protein):
            is_found = bool(same_chains(structure, record.id, record.tokens))
        yield record
    if not is_found:
        raise _no_match(structure)


def _no_match(structure: Structure) -> ValueError:
    """Return the error for a structure of which no chain is in the input."""
    described = [
        f"{shown(chain.id)} ({len(chain.sequence):,} residues)"
        for chain in structure.chains[:SHOWN_CHAINS]
    ]
    more = ", ..." if len(structure.chains) > SHOWN_CHAINS else ""
    return ValueError(
        f"{FIELD}: no chain of {structure.path} has the sequence of a protein of the input; it has "
        f"{', '.join(described)}{more}. Give these sequences, for example with "
        f"inference.input=[{structure.path}]"
    )


@lru_cache(maxsize=4)
def structure_in(path: Path) -> Structure | None:
    """Return the structure in a file of the input; None for other files.

    Raises:
        ValueError: if the file cannot be read.
    """
    return None if format_of_file(path) is None else read_structure(path)


def digest_of_files(files: Sequence[Path]) -> str:
    """Return a hash of the contents of files."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while piece := file.read(_READ_BYTES):
                digest.update(piece)
    return digest.hexdigest()
