"""Protein chains of a structure as records, with the residues that are not resolved.

A chain has the residues of SEQRES (PDB) or ``_entity_poly_seq`` (mmCIF); those without coordinates are
unresolved. Without SEQRES, it has the residues with coordinates, and gaps are not filled. Modified residues
become their parents, by gemmi's table and that of names in force fields. The first model and the first
alternative location are read. Chains have the author's names, as in PDB files; mmCIF calls them
``auth_asym_id``.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from seqlm.proteins.reading.policies import POLICIES, Decision, Kind, Reader, decision
from seqlm.training.data.compressions import COMPRESSIONS
from seqlm.training.data.source_file import note_once
from seqlm.training.strict_yaml import shown, shown_first

from .formats import STRUCTURE_SUFFIXES, StructureFormat, title_of
from .parsing import Parsed, gemmi_of, parse

if TYPE_CHECKING:
    import gemmi

SAMPLE = Path(__file__).parent / "sample" / "5pti.cif.gz"
"""Bundled structure."""
CONTACT_ANGSTROMS = 8.0
"""Distance of C-beta atoms (C-alpha of glycine) below which two residues are in contact."""
UNKNOWN = "X"
HEADER = ("id", "sequence", "resolved")
"""Columns of the records. ``resolved`` is 1 for each residue with coordinates, and 0 for others."""
PROTEIN_TYPES = frozenset(("PeptideL", "PeptideD", "CyclicPseudoPeptide"))
"""Names of gemmi's types of polymers that are proteins."""
FORCE_FIELD_PARENTS: Mapping[str, str] = {
    "ASH": "D",
    "CYM": "C",
    "CYX": "C",
    "GLH": "E",
    "HID": "H",
    "HIE": "H",
    "HIP": "H",
    "HSD": "H",
    "HSE": "H",
    "HSP": "H",
    "LYN": "K",
}
"""Parents of residues as AMBER and CHARMM name them by their protons and bonds. gemmi's table lacks them."""
FORCE_FIELD_WATERS = frozenset(("SOL", "TIP", "TIP3", "TP3", "SPC"))
LEAST_RESIDUES = 2
"""Smallest number of amino acids that make a chain a protein if gemmi does not know its type."""
_COMPRESSED = frozenset(one.suffix for one in COMPRESSIONS.values())


@dataclass(frozen=True, eq=False)
class StructureChain:
    """Protein chain of L residues."""

    id: str
    """Name of the entry and of the chain: ``1ABC_A``."""
    name: str
    """Author's name of the chain; empty if it has none."""
    sequence: str
    numbers: tuple[str, ...]
    """Author's number of each residue, with its insertion code; empty for unresolved ones."""
    resolved: npt.NDArray[np.bool_]
    """(L,) whether the residue has coordinates."""
    beta: npt.NDArray[np.float32]
    """(L, 3) C-beta, C-alpha of glycine, in Angstrom; NaN for residues without it."""
    has_whole_sequence: bool
    """Whether unresolved residues are known from SEQRES."""

    @property
    def has_beta(self) -> npt.NDArray[np.bool_]:
        """(L,) whether the residue has a C-beta atom, or a C-alpha atom if it is glycine."""
        return ~np.isnan(self.beta[:, 0])

    def contacts(self) -> npt.NDArray[np.bool_]:
        """Return the pairs with C-beta atoms less than 8 A apart, (L, L); none for a residue without it."""
        near = np.zeros((len(self.sequence), len(self.sequence)), dtype=bool)
        # Row by row, because a chain may have thousands of residues.
        for i in np.flatnonzero(self.has_beta):
            distances = np.linalg.norm(self.beta - self.beta[i], axis=1)
            near[i] = distances < CONTACT_ANGSTROMS
            near[i, i] = False
        return near


@dataclass(frozen=True)
class Structure:
    """Protein chains of a file, and what was left out."""

    path: Path
    format: StructureFormat
    entry: str
    chains: tuple[StructureChain, ...]
    counts: Mapping[Kind, int]
    """Numbers of residues, chains and molecules that were changed or left out."""
    notes: tuple[str, ...] = ()

    @property
    def sequences(self) -> dict[str, str]:
        """Sequences of the chains by their ids."""
        return {chain.id: chain.sequence for chain in self.chains}

    def lines(self) -> Iterator[str]:
        """Yield sentences about what was read."""
        number = f"{len(self.chains):,} protein chain{'' if len(self.chains) == 1 else 's'}"
        line = ", ".join([f"{number}, named as by the author", *self._counted(is_left_out=False)])
        left_out = ", ".join(self._counted(is_left_out=True))
        yield f"{line}; left out {left_out}" if left_out else line
        partial = [chain.name for chain in self.chains if not chain.has_whole_sequence]
        if partial:
            listed = shown_first(partial)
            yield f"no SEQRES fits the chains {listed}, so unresolved residues between others are not filled"
        yield from self.notes

    def check_has_chains(self) -> None:
        """Raise ValueError if there is no protein chain."""
        if self.chains:
            return
        others = ", ".join(self._counted(is_left_out=True))
        but = f", but {others}" if others else ""
        raise ValueError(f"{self.path} has no protein chain{but}. Give a structure of a protein")

    def _counted(self, *, is_left_out: bool) -> list[str]:
        """Return the numbers of what is left out, or of what is read in another way."""
        found = []
        for kind in Kind:
            if not self.counts.get(kind):
                continue
            is_reject = decision(kind, Reader.INFERENCE) is Decision.REJECT
            if is_reject == is_left_out:
                found.append(POLICIES[kind].counted(self.counts[kind]))
        return found


@dataclass(frozen=True)
class StructureSource:
    """Reader of structures as rows, one for each protein chain."""

    format: StructureFormat
    header: tuple[str, ...] = HEADER

    @property
    def title(self) -> str:
        """Name of the format, with its article."""
        return title_of(self.format)

    def rows(self, path: Path) -> Iterator[Mapping[str, str]]:
        """Yield id, sequence and resolved residues of each chain.

        Raises:
            ValueError: if the file cannot be read, or has no protein chain.
        """
        structure = read_structure(path)
        for line in structure.lines():
            note_once(f"{path} is {self.title}: {line}")
        for chain in structure.chains:
            resolved = "".join("1" if one else "0" for one in chain.resolved)
            yield {"id": chain.id, "sequence": chain.sequence, "resolved": resolved}


def read_structure(path: Path) -> Structure:
    """Return the protein chains of a structure.

    Raises:
        ValueError: if the file is no structure or cannot be read, or has no protein chain.
    """
    found = _Reader(path, parse(path)).structure()
    found.check_has_chains()
    return found


def entry_of(path: Path) -> str:
    """Return the name of a file without the suffixes of structures and of compressed files."""
    name = path.name
    for suffixes in (_COMPRESSED, STRUCTURE_SUFFIXES):
        suffix = Path(name).suffix
        if suffix.lower() in suffixes and name != suffix:
            name = name.removesuffix(suffix)
    return name


@dataclass
class _Reader:
    """Reader of the first model of a parsed structure."""

    path: Path
    parsed: Parsed
    counts: Counter[Kind] = field(default_factory=Counter)

    def structure(self) -> Structure:
        """Return all protein chains."""
        structure = self.parsed.structure
        info = dict(structure.info)
        entry = "_".join(info.get("_entry.id", "").split()) or entry_of(self.path)
        chains: list[StructureChain] = []
        repeated: Counter[str] = Counter()
        for chain in structure[0] if len(structure) else ():
            for span in chain.subchains():
                residues = self._protein_of(span)
                if not residues:
                    continue
                name = f"{entry}_{chain.name}" if chain.name else entry
                repeated[name] += 1
                if repeated[name] > 1:  # a chain of two polymers
                    name = f"{name}-{repeated[name]}"
                entity = structure.get_entity_of(span)
                chains.append(self._chain(name, chain.name, residues, entity))
        if self.parsed.num_models > 1:
            self.counts[Kind.MODEL] = self.parsed.num_models - 1
        return Structure(
            self.path, self.parsed.format, entry, tuple(chains), self.counts, self.parsed.notes
        )

    def _protein_of(self, span: "gemmi.ResidueSpan") -> list["gemmi.Residue"]:
        """Return the residues of a protein; none for other molecules. Those are counted."""
        gemmi = gemmi_of(self.path)
        kind = gemmi.PolymerType.Unknown
        if span[0].entity_type == gemmi.EntityType.Water:
            self.counts[Kind.WATER] += len(span)
            return []
        residues = list(span.first_conformer())
        if span[0].entity_type == gemmi.EntityType.Polymer:
            entity = self.parsed.structure.get_entity_of(span)
            if entity is not None:
                kind = entity.polymer_type
            if kind == gemmi.PolymerType.Unknown:
                kind = span.check_polymer_type()
        if kind.name in PROTEIN_TYPES:
            return residues
        if kind != gemmi.PolymerType.Unknown:
            self.counts[Kind.OTHER_POLYMER] += 1
            return []
        # A simulation has proteins, waters and ions in one chain.
        protein = [residue for residue in residues if self._parent(residue.name)]
        if len(protein) < LEAST_RESIDUES:
            protein = []
        num_others = len(residues) - len(protein)
        num_waters = sum(residue.name in FORCE_FIELD_WATERS for residue in residues)
        self.counts[Kind.WATER] += num_waters
        self.counts[Kind.LIGAND] += num_others - num_waters
        return protein

    def _chain(
        self,
        identifier: str,
        name: str,
        residues: Sequence["gemmi.Residue"],
        entity: "gemmi.Entity | None",
    ) -> StructureChain:
        """Return the record of a chain.

        Args:
            identifier: id of the chain.
            name: author's name of the chain.
            residues: residues with coordinates.
            entity: entity with the sequence of the chain; None if it is not known.
        """
        gemmi = gemmi_of(self.path)
        full = []
        if entity is not None:
            full = [gemmi.Entity.first_mon(one) for one in entity.full_sequence]
        places = [residue.label_seq for residue in residues]
        has_whole_sequence = bool(full) and all(
            place is not None and 1 <= place <= len(full) for place in places
        )
        if has_whole_sequence:
            positions = [place - 1 for place in places if place is not None]
        else:
            full = [residue.name for residue in residues]
            positions = list(range(len(residues)))
        length = len(full)
        numbers = [""] * length
        resolved = np.zeros(length, dtype=bool)
        beta = np.full((length, 3), np.nan, dtype=np.float32)
        for position, residue in zip(positions, residues, strict=True):
            numbers[position] = str(residue.seqid)
            resolved[position] = True
            beta[position] = self._beta(name, residue)
        letters = [self._letter(one) for one in full]
        self.counts[Kind.UNRESOLVED] += length - int(resolved.sum())
        self.counts[Kind.ALTERNATIVE] += sum(
            any(atom.has_altloc() for atom in residue) for residue in residues
        )
        return StructureChain(
            id=identifier,
            name=name,
            sequence="".join(letters),
            numbers=tuple(numbers),
            resolved=resolved,
            beta=beta,
            has_whole_sequence=has_whole_sequence,
        )

    def _letter(self, name: str) -> str:
        """Return the letter of a residue, or of its parent if it is modified. Others are X, and counted."""
        letter = self._parent(name)
        if not letter:
            self.counts[Kind.UNKNOWN_RESIDUE] += 1
            return UNKNOWN
        if letter.islower():
            self.counts[Kind.MODIFIED] += 1
        return letter.upper()

    def _parent(self, name: str) -> str:
        """Return the letter of an amino acid, in lower case that of the parent; empty for other residues."""
        if name in FORCE_FIELD_PARENTS:
            return FORCE_FIELD_PARENTS[name]
        known: Any = gemmi_of(self.path).find_tabulated_residue(name)
        letter: str = known.one_letter_code.strip() if known.is_amino_acid() else ""
        return letter

    def _beta(self, chain: str, residue: "gemmi.Residue") -> tuple[float, float, float]:
        """Return the C-beta atom of a residue, or C-alpha of glycine; NaN without it.

        Raises:
            ValueError: if a coordinate is no finite number.
        """
        wanted = "CA" if self._parent(residue.name).upper() == "G" else "CB"
        found = (np.nan, np.nan, np.nan)
        for atom in residue:
            place = (atom.pos.x, atom.pos.y, atom.pos.z)
            if not np.isfinite(place).all():
                raise ValueError(
                    f"{self.path}: atom {shown(atom.name)} of residue {residue.seqid} in chain "
                    f"{shown(chain)} has coordinates that are no numbers; correct or remove it"
                )
            if atom.name == wanted and np.isnan(found[0]):
                found = place
        return found
