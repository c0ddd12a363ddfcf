"""Contacts of proteins (``seqlm contacts``).

For each protein of L residues, the table has the L most probable contacts that are at least six positions
apart: id, i, j (from 1), residue_i, residue_j and probability. A folder beside the table has for each protein
the matrix of all probabilities, as ``contacts`` (L, L) in .npz and as .tsv, and a picture.

If records with several chains are read as one protein, the table has the columns chain_i and chain_j, and i
and j are positions in these chains. Residues of different chains may have any positions.

If the structure of a protein is known, the picture compares the contacts with it, and a further table has the
precision by range (``truth.py``).
"""

import hashlib
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch.distributed as dist

from seqlm.proteins.alphabet import decode
from seqlm.proteins.inference.job import Command, Work
from seqlm.proteins.inference.records import Protein, records_of
from seqlm.proteins.inference.repeated_ids import Rows
from seqlm.proteins.model.packed_model import PackedModel
from seqlm.proteins.reading.chains import ChainSpan
from seqlm.proteins.reading.rejects import Reject
from seqlm.runs.inference_commands import PRECISION_END
from seqlm.runs.run_file import RunFile
from seqlm.training.heartbeat import beat
from seqlm.training.packing import SPECIAL_TOKENS
from seqlm.training.processes import Processes
from seqlm.training.whole_file import writing_whole

from .head import Chain, Matrix, check_folder, fit, load, mean_precisions, save
from .head import chains as known_chains
from .picture import comparison_figure, prediction_figure, top_contacts
from .truth import (
    Compared,
    Truths,
    described,
    precisions,
    write_precisions,
)

MAPS_IN_MEMORY = 3
"""Attention maps of a layer that are in memory at once: scores, softmax and corrected maps."""
BYTES_PER_NUMBER = 4
"""Bytes of a number in a map, which is in fp32."""
MAX_NAME_CHARACTERS = 80
"""Largest number of characters of an id in the name of a file."""
HASH_BYTES = 3
"""Bytes of the hash of a sequence in the name of a file."""
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
    if here.is_first:
        gigabytes = peak_bytes(engine.model, engine.max_residues) / 1e9
        print(
            f"memory for attention maps: {gigabytes:.2f} GB for a protein of {engine.max_residues} residues, "
            "the longest allowed (model.max_residues); it grows with the square of the length"
        )

    def records() -> Iterable[Protein | Reject]:
        return truths.checked(records_of(command.config, reader=command.reader))

    schema = _SCHEMA
    if command.joins_chains:
        for column in _CHAIN_FIELDS:
            schema = schema.append(column)

    def tabulate(proteins: list[Protein]) -> Rows:
        rows: list[dict[str, object]] = []
        per_protein: list[int] = []
        for protein in proteins:
            places = protein.places if protein.chains else None
            probabilities = head.probabilities(engine, protein.tokens, places)
            path = folder / _file_name(protein)
            truth = truths.of(protein)
            write_contacts(path, protein.id, probabilities, truth, protein.chains)
            found = _rows(protein, probabilities)
            rows += found
            per_protein.append(len(found))
            engine.on_residues(protein.num_residues)
        return Rows(pa.Table.from_pylist(rows, schema=schema), per_protein)

    def compared() -> Iterator[Compared]:
        for record in records():
            truth = truths.of(record) if isinstance(record, Protein) else None
            if isinstance(record, Protein) and truth is not None:
                beat("comparing contacts")
                matrix = read_contacts(folder / _file_name(record))
                yield Compared(record.id, truth, precisions(truth, matrix))

    def draw() -> None:
        print(f"wrote {folder}: matrices (.npz, .tsv) and pictures (.png), one for each protein")
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


def write_contacts(
    path: Path,
    title: str,
    probabilities: Matrix,
    truth: Chain | None = None,
    chains: Sequence[ChainSpan] = (),
) -> None:
    """Write ``path`` with the ends .npz, .tsv and .png; each file appears whole or not at all.

    Args:
        path: path of the files, without their ends.
        title: title of the picture.
        probabilities: probability of each pair, (L, L).
        truth: chain with its contacts, with which the picture compares; None if they are not known.
        chains: chains of the protein; empty for one. Their names and lengths are in the .npz, too.
    """
    of_chains: dict[str, Any] = {}
    if chains:
        of_chains = {
            "chains": np.array([span.name for span in chains]),
            "lengths": np.array([len(span) for span in chains]),
        }
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing_whole(path.with_name(f"{path.name}.npz")) as file:
        np.savez_compressed(file, contacts=probabilities, **of_chains)
    with writing_whole(path.with_name(f"{path.name}.tsv")) as file:
        np.savetxt(file, probabilities, fmt="%.4f", delimiter="\t")
    with writing_whole(path.with_name(f"{path.name}.png")) as file:
        if truth is None:
            figure = prediction_figure(title, probabilities, chains)
        else:
            lines = described(precisions(truth, probabilities)).split("; ")
            figure = comparison_figure(title, probabilities, truth, lines)
        figure.savefig(file, dpi=150)


def read_contacts(path: Path) -> Matrix:
    """Return the matrix that ``write_contacts`` has written.

    Raises:
        ValueError: if the file is missing or damaged.
    """
    file = path.with_name(f"{path.name}.npz")
    try:
        with np.load(file) as saved:
            return np.asarray(saved["contacts"], dtype=np.float32)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{file} cannot be read ({error}); delete the table beside its folder, and run the command again"
        ) from None


def _file_name(protein: Protein) -> str:
    """Return the id as a file name, with a hash, because several records may have one id."""
    digest = hashlib.blake2b(protein.tokens.tobytes(), digest_size=HASH_BYTES).hexdigest()
    safe = re.sub(r"[^A-Za-z0-9_-]+", "-", protein.id)[:MAX_NAME_CHARACTERS]
    return f"{safe}-{digest}"
