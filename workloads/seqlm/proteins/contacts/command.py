"""Contacts of proteins (``seqlm contacts``).

For each protein of L residues, the table has the L most probable contacts that are at least six positions
apart: id, i, j (from 1), residue_i, residue_j and probability. A folder beside the table has the
matrices of all probabilities, and pictures of the first proteins (``files.py``).

If records with several chains are read as one protein, the table has the columns chain_i and chain_j, and i
and j are positions in these chains. Residues of different chains may have any positions.

If the structure of a protein is known, the picture compares the contacts with it, and a further table has the
precision by range (``truth.py``).
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa
import torch.distributed as dist

from seqlm.proteins.alphabet import decode
from seqlm.proteins.inference.job import Command, Work
from seqlm.proteins.inference.records import Protein
from seqlm.proteins.inference.repeated_ids import Rows
from seqlm.proteins.model.packed_model import PackedModel
from seqlm.proteins.reading.chains import ChainSpan
from seqlm.proteins.reading.rejects import Reject
from seqlm.runs.inference_commands import PRECISION_END
from seqlm.runs.run_file import RunFile
from seqlm.training.heartbeat import beat
from seqlm.training.packing import SPECIAL_TOKENS
from seqlm.training.processes import Processes

from .files import OWN_FILES, Matrices, MatrixArchive, file_name, write_contacts
from .head import Matrix, check_folder, fit, load, mean_precisions, save
from .head import chains as known_chains
from .picture import top_contacts
from .truth import Compared, Truths, precisions, write_precisions

MAPS_IN_MEMORY = 3
"""Attention maps of a layer that are in memory at once: scores, softmax and corrected maps."""
BYTES_PER_NUMBER = 4
"""Bytes of a number in a map, which is in fp32."""
HEAD_HASH_CHARACTERS = 16
"""Characters of the hash of the regression in the settings of a result."""
_CHAIN_FIELDS = (pa.field("chain_i", pa.string()), pa.field("chain_j", pa.string()))
"""Columns with the chains of a contact."""
_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("i", pa.int32()),
        ("j", pa.int32()),
        ("residue_i", pa.string()),
        ("residue_j", pa.string()),
        ("probability", pa.float32()),
    ]
)


def contacts(config: RunFile, here: Processes) -> None:
    """Write the contacts of every protein of the input.

    With ``inference.fit_contacts``, the model's regression is fitted first.

    Raises:
        ValueError: if the model, the input or the output cannot be used, or the model has no fitted head.
    """
    inference = config.inference
    truths = Truths(config)
    command = Command(config, here, "contacts")
    if inference.fit_contacts:
        check_folder(command.model_name)
        if here.is_first:
            _fit(command)
        beat("waiting for the fitted contacts", slow=True)
        dist.barrier(group=here.control)
        command = Command(config, here, "contacts")
    engine = command.engine
    folder = command.output.path.with_suffix("")
    head = load(engine.model, command.model_name)
    head_hash = hashlib.sha256(head.weights.tobytes()).hexdigest()
    command.settings["contact_head"] = head_hash[:HEAD_HASH_CHARACTERS]
    if truths.digest is not None:  # otherwise the result is that of versions without structures
        command.settings["structures"] = truths.digest
    if inference.all_pictures:  # otherwise the result is that of versions without this field
        command.settings["all_pictures"] = True
    if here.is_first:
        gigabytes = peak_bytes(engine.model, engine.max_residues) / 1e9
        print(
            f"memory for attention maps: {gigabytes:.2f} GB for a protein of {engine.max_residues} residues, "
            "the longest allowed (model.max_residues); it grows with the square of the length"
        )

    def records() -> Iterable[Protein | Reject]:
        return truths.checked(command.records())

    schema = _SCHEMA
    if command.joins_chains:
        for column in _CHAIN_FIELDS:
            schema = schema.append(column)

    def has_own_files(number: int) -> bool:
        """Return whether a protein has files of its own, by its number in the input from 0."""
        return inference.all_pictures or number < OWN_FILES

    def tabulate(proteins: list[Protein]) -> Rows:
        rows: list[dict[str, object]] = []
        per_protein: list[int] = []
        place = command.part_place
        with MatrixArchive(folder, place.part) as archive:
            for number, protein in enumerate(proteins, start=place.first_protein):
                places = protein.places if protein.chains else None
                probabilities = head.probabilities(engine, protein.tokens, places)
                name = file_name(protein)
                if has_own_files(number):
                    truth = truths.of(protein)
                    write_contacts(folder / name, protein.id, probabilities, truth, protein.chains)
                else:
                    archive.add(name, probabilities, protein.chains)
                found = _rows(protein, probabilities)
                rows += found
                per_protein.append(len(found))
                engine.on_residues(protein.num_residues)
        return Rows(pa.Table.from_pylist(rows, schema=schema), per_protein)

    def compared() -> Iterator[Compared]:
        matrices = Matrices(folder)
        proteins = (record for record in records() if isinstance(record, Protein))
        for number, protein in enumerate(proteins):
            truth = truths.of(protein)
            if truth is not None:
                beat("comparing contacts")
                matrix = matrices.read(protein, has_own_file=has_own_files(number))
                yield Compared(protein.id, truth, precisions(truth, matrix))

    def draw() -> None:
        which = (
            "each protein" if inference.all_pictures else f"each of the first {OWN_FILES} proteins"
        )
        print(
            f"wrote {folder}: matrices (.npz), and one picture (.png) and matrix as text (.tsv) for {which}"
        )
        if truths.digest is not None:
            path = command.output.path.with_suffix(PRECISION_END)
            for line in write_precisions(path, compared()):
                print(line)

    command.run(
        Work(
            tabulate=tabulate,
            part_residues=inference.part_residues,
            records=records,
            draw=draw,
        )
    )


def peak_bytes(model: PackedModel, length: int) -> int:
    """Return the memory that attention maps of a protein of ``length`` residues need at once, in bytes."""
    numbers_per_map = (length + SPECIAL_TOKENS) ** 2
    heads: int = model.config.num_attention_heads
    return MAPS_IN_MEMORY * BYTES_PER_NUMBER * heads * numbers_per_map


def _rows(protein: Protein, probabilities: Matrix) -> list[dict[str, object]]:
    """Return the rows of the table for a protein."""
    text = decode(protein.residues)
    pairs = top_contacts(probabilities, protein.chains)
    residues = _positions(protein)
    return [
        {
            "id": protein.id,
            "i": residues[i].position,
            "j": residues[j].position,
            "residue_i": text[i],
            "residue_j": text[j],
            "probability": probabilities[i, j],
            "chain_i": residues[i].chain,
            "chain_j": residues[j].chain,
        }
        for i, j in zip(pairs.i.tolist(), pairs.j.tolist(), strict=True)
    ]


class _Position(NamedTuple):
    """Place of a residue, as the table has it."""

    chain: str
    """Name of its chain; empty if the protein has one chain."""
    position: int
    """Position in the chain, from 1."""


def _positions(protein: Protein) -> list[_Position]:
    """Return the place of each residue, without linkers."""
    chains = protein.chains or (ChainSpan("", 0, len(protein.tokens)),)
    return [
        _Position(span.name, position) for span in chains for position in range(1, len(span) + 1)
    ]


def _fit(command: Command) -> None:
    """Fit the regression on the bundled structures, and store it with the model folder."""
    engine = command.engine
    print("fitting the contact head on the bundled structures")
    head = fit(engine, known_chains("fit"))
    if not head.weights.any():
        print(
            "warning: no attention head tells contacts from other pairs, so all get one probability"
        )
    file = save(engine.model, command.model_name, head)
    others = known_chains("score")
    means = mean_precisions(engine, head, others)
    shown = ", ".join(f"{kind} {mean:.3f}" for kind, mean in means.items())
    print(f"wrote {file}: contact head; precision at L on {len(others)} other structures: {shown}")
