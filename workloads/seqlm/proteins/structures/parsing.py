"""Parse files with structures with gemmi, within bounds of size and time.

gemmi compares each chain, and each residue of a chain, with all earlier ones. The bounds keep a file of a
stranger from taking minutes. They are far above the largest structures of the PDB.
"""

import re
import stat
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqlm.training.data.compressions import MAX_EXPANDED_BYTES, MAX_EXPANSION
from seqlm.training.data.limits import MIB
from seqlm.training.data.source_file import Source
from seqlm.training.strict_yaml import shown

from .formats import StructureFormat, structure_format

if TYPE_CHECKING:
    import gemmi

MAX_CHAINS = 10_000
"""Largest number of chains, and of their parts in a PDB file."""
MAX_MODELS = 10_000
"""Largest number of models of an mmCIF file. Of a PDB file, only the first one is parsed."""
MAX_CHAIN_RESIDUES = 50_000
"""Largest number of residues of a chain, its waters included."""
MAX_ALIGNED = 200_000_000
"""Largest product of the residues in SEQRES and those with coordinates, which a PDB file has aligned."""
HEAD_CHARACTERS = MIB
"""Characters by which the format is recognised."""
MAX_MESSAGE_CHARACTERS = 200
"""Length to which messages of gemmi are cut."""
_END_OF_MODEL = re.compile(rb"^ENDMDL", re.MULTILINE)
_MODEL = re.compile(rb"^MODEL ", re.MULTILINE)
_SEQRES = re.compile(rb"^SEQRES", re.MULTILINE)
SEQRES_LINE_RESIDUES = 13
"""Largest number of residues in a line of SEQRES."""
_ATOMS = "_atom_site."
_ERRORS = (ValueError, RuntimeError, IndexError, OverflowError)
"""Errors of gemmi for files that it cannot read."""


@dataclass(frozen=True)
class Parsed:
    """Structure as gemmi has parsed it."""

    structure: "gemmi.Structure"
    """First model at least, with the parts of its chains merged, and with entities and positions in them."""
    num_models: int
    format: StructureFormat
    notes: tuple[str, ...] = ()
    """Sentences about what was chosen."""


def parse(path: Path) -> Parsed:
    """Return the structure in a file.

    Raises:
        ValueError: if the file is no structure, cannot be read or is above a bound, or gemmi is missing.
    """
    content = content_of(path)
    found = structure_format(content[:HEAD_CHARACTERS].decode(errors="replace"))
    if found is None:
        raise ValueError(f"{path} is no structure; give a file in PDB or mmCIF format")
    try:
        if found is StructureFormat.PDB:
            return _of_pdb(path, content)
        return _of_mmcif(path, content)
    except _ERRORS as error:
        if str(error).startswith(str(path)):
            raise
        raise ValueError(
            f"{path} cannot be read as a structure ({gemmi_message(error)}); check it or fetch it again"
        ) from None


def content_of(path: Path) -> bytes:
    """Return the content of a regular file, unpacked.

    Raises:
        ValueError: if it is too large, or cannot be read.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path} is not a regular file; give a file in PDB or mmCIF format")
    bound = MAX_EXPANDED_BYTES
    parts: list[bytes] = []
    size = 0
    with Source(path) as source:
        if source.compression is not None:
            bound = min(bound, MAX_EXPANSION * status.st_size + MIB)
        while part := source.read(MIB):
            parts.append(part)
            size += len(part)
            if size > bound:
                raise ValueError(
                    f"{path} is a structure of more than {bound // MIB:,} MiB; allowed are "
                    f"{MAX_EXPANDED_BYTES // MIB:,} MiB and {MAX_EXPANSION} times a compressed file"
                )
    return b"".join(parts)


def gemmi_of(path: Path) -> Any:
    """Return the module gemmi, which reads structures.

    Raises:
        ValueError: if it is not installed.
    """
    try:
        import gemmi
    except ModuleNotFoundError:
        raise ValueError(
            f"{path} is a structure, and gemmi is not installed; install it with "
            "pip install 'seqlm[structures]', or give the sequences as FASTA"
        ) from None
    return gemmi


def gemmi_message(error: Exception) -> str:
    """Return an error of gemmi in one line."""
    return " ".join(str(error).split())[:MAX_MESSAGE_CHARACTERS]


def _of_pdb(path: Path, content: bytes) -> Parsed:
    """Parse the first model of a PDB file."""
    gemmi = gemmi_of(path)
    num_models = max(1, len(_MODEL.findall(content)))
    end = _END_OF_MODEL.search(content)
    structure = gemmi.read_pdb_string(content if end is None else content[: end.start()])
    if len(structure):
        _check_number(path, "parts of chains", len(structure[0]), MAX_CHAINS)
    structure.merge_chain_parts()
    structure.setup_entities()
    if len(structure):
        most = max((len(chain) for chain in structure[0]), default=0)
        num_in_sequence = SEQRES_LINE_RESIDUES * len(_SEQRES.findall(content))
        if most * num_in_sequence > MAX_ALIGNED:
            raise ValueError(
                f"{path} has up to {num_in_sequence:,} residues in SEQRES and {most:,} in a chain; their "
                f"product may be {MAX_ALIGNED:,}. Remove SEQRES, or give the structure as mmCIF"
            )
        structure.assign_label_seq_id()
    return Parsed(structure, num_models, StructureFormat.PDB)


def _of_mmcif(path: Path, content: bytes) -> Parsed:
    """Parse the first block with coordinates of an mmCIF file."""
    gemmi = gemmi_of(path)
    document = gemmi.cif.read_string(content)
    block = block_with_atoms(document)
    if block is None:
        raise ValueError(f"{path} has no coordinates (_atom_site); give a structure with atoms")
    notes: tuple[str, ...] = ()
    if len(document) > 1:
        notes = (f"the block {shown(block.name)}, the first one with coordinates, is read",)
    chains = _column(block, "auth_asym_id") or _column(block, "label_asym_id")
    _check_number(path, "chains", len(set(chains)), MAX_CHAINS)
    for tag in ("_entity.id", "_entity_poly_seq.entity_id", "_struct_asym.id"):
        _check_number(path, f"values of {tag}", len(set(block.find_values(tag))), MAX_CHAINS)
    num_models = max(1, len(set(_column(block, "pdbx_PDB_model_num"))))
    _check_number(path, "models", num_models, MAX_MODELS)
    _check_residues(path, block, chains)
    structure = gemmi.make_structure_from_block(block)
    structure.merge_chain_parts()
    structure.setup_entities()
    structure.assign_label_seq_id()
    return Parsed(structure, num_models, StructureFormat.MMCIF, notes)


def block_with_atoms(document: Any) -> Any:
    """Return the first block of an mmCIF file that has coordinates; None if none has."""
    for block in document:
        if len(_column(block, "Cartn_x")):
            return block
    return None


def _column(block: Any, name: str) -> Any:
    """Return a column of the atoms; empty if the block has none."""
    return block.find_values(f"{_ATOMS}{name}")


def _check_residues(path: Path, block: Any, chains: Any) -> None:
    """Refuse chains with too many residues."""
    if len(chains) <= MAX_CHAIN_RESIDUES:
        return
    numbers = _column(block, "auth_seq_id") or _column(block, "label_seq_id")
    places = set(zip(chains, numbers, strict=False))
    [(_, most)] = Counter(chain for chain, _ in places).most_common(1) or [("", 0)]
    _check_number(path, "residues in one chain", most, MAX_CHAIN_RESIDUES)


def _check_number(path: Path, what: str, number: int, most: int) -> None:
    """Refuse a file that has too much of something."""
    if number > most:
        raise ValueError(f"{path} has {number:,} {what}; allowed are {most:,}. Divide it")
