"""Table of the ways in which a model reads a record with several chains.

The run file's values, its schema and ``--help``, ``seqlm.Model`` and the documentation follow from the table.
Imports the standard library alone, because ``--help`` reads it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

LINKER_RESIDUES = 25
"""Residues between two chains. ESMFold puts as many glycines between the chains of a complex before its
language model reads them (facebookresearch/esm, ``esmfold/v1/misc.py``: ``chain_linker="G" * 25``)."""


@dataclass(frozen=True, kw_only=True)
class ChainMode:
    """Way to read a record with several chains."""

    reads: str
    """Proteins that the model reads, as the documentation shows it."""
    use: str
    """Use of the mode, as the documentation shows it."""
    joins: bool
    """Whether the chains of a record are one protein to the model, and the record has one answer."""
    linker: str = ""
    """Residues between two chains, which get no answer."""


CHAIN_MODES: Mapping[str, ChainMode] = {
    "separate": ChainMode(
        reads="each chain alone",
        use="Chains that do not need each other. Each one is a row with the id `<id>.<chain>`.",
        joins=False,
    ),
    "linker": ChainMode(
        reads=f"the chains with {LINKER_RESIDUES} glycines between them",
        use="Pairs such as heavy and light chains, and complexes. The glycines are left out of pooling, "
        "scores and contacts.",
        joins=True,
        linker="G" * LINKER_RESIDUES,
    ),
    "joined": ChainMode(
        reads="the chains one after another",
        use="Models that were trained on chains without anything between them.",
        joins=True,
    ),
}
"""Values of ``inference.chains``."""
JOINING_MODES = tuple(name for name, mode in CHAIN_MODES.items() if mode.joins)
"""Values of ``task.chains``, whose labels belong to whole records."""


def chain_mode(name: str) -> ChainMode:
    """Return a mode by its name.

    Raises:
        ValueError: if there is no such mode.
    """
    if name not in CHAIN_MODES:
        raise ValueError(f"chains: got {name!r}; allowed are {', '.join(CHAIN_MODES)}")
    return CHAIN_MODES[name]
