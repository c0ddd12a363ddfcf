"""Contacts of proteins (``seqlm contacts``).

For each protein of L residues, the table has the L most probable contacts that are at least six positions
apart: id, i, j (from 1), residue_i, residue_j and probability. A folder beside the table has for each protein
the matrix of all probabilities, as ``contacts`` (L, L) in .npz and as .tsv, and a picture.
"""

import dataclasses
import hashlib
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch.distributed as dist
from matplotlib.figure import Figure

from seqlm.proteins.inference.job import Command
from seqlm.proteins.inference.records import Protein
from seqlm.runs.run_file import RunFile
from seqlm.training.heartbeat import beat
from seqlm.training.processes import Processes
from seqlm.training.whole_file import writing_whole

from .head import RANGES, SHORTEST, Matrix, chains, check_folder, fit, load, precision, save

_SCHEMA = pa.schema(
    [
        *[("id", pa.string()), ("i", pa.int32()), ("j", pa.int32())],
        *[("residue_i", pa.string()), ("residue_j", pa.string()), ("probability", pa.float32())],
    ]
)


def contacts(config: RunFile, here: Processes) -> None:
    """Write the contacts of every protein of the input, and fit the model's regression first if asked to.

    Raises:
        ValueError: if the model, the input or the output cannot be used, or the model has no fitted head.
    """
    # Windows have no contacts with each other.
    inference = dataclasses.replace(config.inference, long_proteins="reject")
    config = dataclasses.replace(config, inference=inference)
    command = Command(config, here, "contacts")
    if inference.fit_contacts:
        check_folder(command.model_name)
        if here.is_first:
            _fit(command)
        beat("waiting for the fitted contacts", slow=True)
        dist.barrier(group=here.control)
        command = Command(config, here, "contacts")
    engine, folder = command.engine, command.output.path.with_suffix("")
    head = load(engine.model, command.model_name)
    command.settings["contact_head"] = hashlib.sha256(head.weights.tobytes()).hexdigest()[:16]
    if here.is_first:
        # Scores, softmax and corrected maps of one layer, in fp32.
        gigabytes = 3 * 4 * engine.model.config.num_attention_heads * (engine.max_residues + 2) ** 2 / 1e9
        print(
            f"memory for attention maps: {gigabytes:.2f} GB for a protein of {engine.max_residues} residues, "
            "the longest allowed (model.max_residues); it grows with the square of the length"
        )

    def tabulate(proteins: list[Protein]) -> pa.Table:
        rows: list[tuple[object, ...]] = []
        for protein in proteins:
            found = head.probabilities(engine, protein.tokens)
            text = protein.sequence
            i, j = top_contacts(found)
            write_contacts(folder / _file_name(protein), protein.id, found)
            rows += [
                (protein.id, a + 1, b + 1, text[a], text[b], found[a, b])
                for a, b in zip(i.tolist(), j.tolist(), strict=True)
            ]
            engine.on_residues(len(text))
        return pa.table(list(zip(*rows, strict=True)) or [()] * len(_SCHEMA), schema=_SCHEMA)

    command.run(tabulate, inference.part_residues)
    if here.is_first:
        print(f"wrote {folder}: matrices (.npz, .tsv) and pictures (.png), one for each protein")


def _fit(command: Command) -> None:
    engine = command.engine
    print("fitting the contact head on the bundled structures")
    head = fit(engine, chains("fit"))
    if not head.weights.any():
        print("warning: no attention head tells contacts from other pairs, so all get one probability")
    file = save(engine.model, command.model_name, head)
    scored = [(chain, head.probabilities(engine, chain.tokens)) for chain in chains("score")]
    means = {kind: np.mean([precision(*each, kind) for each in scored]) for kind in RANGES}
    shown = ", ".join(f"{kind} {mean:.3f}" for kind, mean in means.items())
    print(f"wrote {file}: contact head; precision at L on {len(scored)} other structures: {shown}")


def top_contacts(probabilities: Matrix) -> tuple[np.ndarray, np.ndarray]:
    """Return i and j of the L most probable pairs with |i - j| >= 6, the most probable first."""
    i, j = np.triu_indices(len(probabilities), SHORTEST)
    best = np.argsort(-probabilities[i, j], kind="stable")[: len(probabilities)]
    return i[best], j[best]


def write_contacts(path: Path, title: str, probabilities: Matrix) -> None:
    """Write ``path`` with the ends .npz, .tsv and .png; each file appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)

    with writing_whole(path.with_name(f"{path.name}.npz")) as file:
        np.savez_compressed(file, contacts=probabilities)
    with writing_whole(path.with_name(f"{path.name}.tsv")) as file:
        np.savetxt(file, probabilities, fmt="%.4f", delimiter="\t")
    with writing_whole(path.with_name(f"{path.name}.png")) as file:
        _figure(title, probabilities).savefig(file, dpi=150)


def _file_name(protein: Protein) -> str:
    """Return the id as a file name, with a hash: several records may have one id."""
    digest = hashlib.blake2b(protein.tokens.tobytes(), digest_size=3).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9_-]+', '-', protein.id)[:80]}-{digest}"


def _figure(title: str, probabilities: Matrix) -> Figure:
    figure = Figure(figsize=(6.4, 5.6), layout="constrained")
    axis = figure.subplots()
    span = (0.5, len(probabilities) + 0.5)
    image = axis.imshow(probabilities, cmap="Blues", vmin=0, vmax=1, extent=(*span, *span[::-1]))
    i, j = top_contacts(probabilities)
    label = f"top {len(i)}, |i - j| >= {SHORTEST}"
    axis.plot(i + 1, j + 1, "s", color="#c0392b", markersize=1.5, label=label)
    axis.set(xlabel="position", ylabel="position")
    axis.legend(loc="upper right", fontsize=8)
    axis.set_title(title, fontsize=10, parse_math=False)
    figure.colorbar(image, label="probability of a contact (C-beta < 8 A)")
    return figure
