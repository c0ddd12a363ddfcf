"""Embeddings of proteins (``seqlm embed``).

The result is Parquet with the columns id, length (residues) and embedding. An embedding is a list of C
numbers, pooled over the residues without CLS and EOS, or a list of L such lists with
``inference.pooling=none``. The numbers are transformers' ``hidden_states``; those of the last layer are
behind its norm (``last_hidden_state``). With several layers or poolings, the columns are called
``layer<number>_<pooling>``.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from seqlm.runs.run_file import RunFile
from seqlm.training.processes import Processes

from .engine import Answer
from .job import Command
from .poolings import pooling_of
from .records import Protein

MAX_PART_BYTES = 256 << 20
"""Size limit of a part with one embedding per residue, which stays in memory until it is written."""


def embed(config: RunFile, here: Processes) -> None:
    """Write the embeddings of every protein of the input.

    Raises:
        ValueError: if the model, a layer, the input or the output cannot be used.
    """
    inference = config.inference
    command = Command(config, here, "embed")
    size = command.engine.model.config.hidden_size
    layers = layer_numbers(inference.layers, len(command.engine.model.layers))
    pooled = not pooling_of(inference.pooling[0]).per_residue
    names = [f"layer{layer}_{pooling}" for pooling, layer in itertools.product(inference.pooling, layers)]
    names = ["embedding"] if len(names) == 1 else names
    command.settings |= {"pooling": inference.pooling, "layers": layers, "stored_as": inference.stored_as}
    answer = layer_embeddings(layers, inference.pooling)

    def tabulate(proteins: list[Protein]) -> pa.Table:
        found = command.answers(proteins, answer)
        rows = np.concatenate([np.empty((0, len(names) * size), np.float32), *map(np.atleast_2d, found)])
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in found])]).astype(np.int32)
        columns = [pa.array([protein.id for protein in proteins], pa.string())]
        columns.append(pa.array([len(protein.tokens) for protein in proteins], pa.int32()))
        for values in np.split(rows.astype(inference.stored_as), len(names), axis=1):
            column = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), size)
            columns.append(column if pooled else pa.ListArray.from_arrays(pa.array(offsets), column))
        return pa.table(columns, names=["id", "length", *names])

    part_residues = inference.part_residues
    if not pooled:
        part_residues = max(1, min(part_residues, MAX_PART_BYTES // (4 * size * len(layers))))
    command.run(tabulate, part_residues)


def layer_embeddings(layers: tuple[int, ...], poolings: Sequence[str]) -> Answer:
    """Return the answer with the hidden states of layers, (poolings * layers * C,), or (L, layers * C).

    Args:
        layers: numbers of the layers.
        poolings: names of ``POOLINGS``; one with a vector per residue stands alone.

    Raises:
        ValueError: if there is no such pooling.
    """
    chosen = tuple(pooling_of(name) for name in poolings)
    per_residue = any(pooling.per_residue for pooling in chosen)
    return Answer(
        lambda model, pack: model.hidden_states(pack, layers),
        "residue" if per_residue else "pooled",
        () if per_residue else chosen,
    )


def layer_numbers(layers: tuple[int, ...], num_layers: int) -> tuple[int, ...]:
    """Return the numbers of layers from 0, which is the embedding.

    Raises:
        ValueError: if the model has no such layer.
    """
    wrong = [layer for layer in layers if not -num_layers - 1 <= layer <= num_layers]
    if wrong:
        raise ValueError(
            f"inference.layers: got {wrong[0]}; the model has the layers 0 (embedding) to {num_layers}"
        )
    return tuple(dict.fromkeys(layer % (num_layers + 1) for layer in layers))
