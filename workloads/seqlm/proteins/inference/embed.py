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

from .described import described_proteins
from .engine import Answer
from .job import Command, Work
from .poolings import pooling_of
from .records import Protein
from .repeated_ids import Rows

MAX_PART_BYTES = 256 << 20
"""Size limit of a part with one embedding per residue, which stays in memory until it is written."""
BYTES_PER_NUMBER = 4
"""Bytes of a number before it is written: the engine returns fp32."""


def embed(config: RunFile, here: Processes) -> None:
    """Write the embeddings of every protein of the input.

    Raises:
        ValueError: if the model, a layer, the input or the output cannot be used.
    """
    inference = config.inference
    command = Command(config, here, "embed")
    model = command.engine.model
    num_features = model.config.hidden_size
    layers = layer_numbers(inference.layers, len(model.layers))
    per_residue = pooling_of(inference.pooling[0]).per_residue
    names = _column_names(layers, inference.pooling)
    command.settings |= {
        "pooling": inference.pooling,
        "layers": layers,
        "stored_as": inference.stored_as,
    }
    answer = layer_embeddings(layers, inference.pooling)

    def tabulate(proteins: list[Protein]) -> Rows:
        described = described_proteins(proteins, has_chains=command.joins_chains)
        found = [np.atleast_2d(embedding) for embedding in command.answers(proteins, answer)]
        # An input of rejects alone has no embeddings, and its columns need their width all the same.
        without_rows = np.empty((0, len(names) * num_features), np.float32)
        rows = np.concatenate([without_rows, *found]).astype(inference.stored_as)
        offsets = np.cumsum([0, *map(len, found)]).astype(np.int32)
        columns = []
        for values in np.split(rows, len(names), axis=1):
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), num_features)
            if per_residue:
                vectors = pa.ListArray.from_arrays(pa.array(offsets), vectors)
            columns.append(vectors)
        return Rows(pa.table({**described, **dict(zip(names, columns, strict=True))}))

    part_residues = inference.part_residues
    if per_residue:
        bytes_per_residue = BYTES_PER_NUMBER * num_features * len(layers)
        part_residues = max(1, min(part_residues, MAX_PART_BYTES // bytes_per_residue))
    command.run(Work(tabulate=tabulate, part_residues=part_residues))


def _column_names(layers: tuple[int, ...], poolings: Sequence[str]) -> list[str]:
    """Return the columns of embeddings, in the order of ``layer_embeddings``."""
    names = [f"layer{layer}_{pooling}" for pooling, layer in itertools.product(poolings, layers)]
    return ["embedding"] if len(names) == 1 else names


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
        compute=lambda model, pack: model.hidden_states(pack, layers),
        each="residue" if per_residue else "pooled",
        poolings=() if per_residue else chosen,
    )


def layer_numbers(layers: tuple[int, ...], num_layers: int) -> tuple[int, ...]:
    """Return the numbers of layers from 0, which is the embedding; negative numbers count from the last.

    Raises:
        ValueError: if the model has no such layer.
    """
    wrong = [layer for layer in layers if not -num_layers - 1 <= layer <= num_layers]
    if wrong:
        raise ValueError(
            f"inference.layers: got {wrong[0]}; the model has the layers 0 (embedding) to {num_layers}"
        )
    return tuple(dict.fromkeys(layer % (num_layers + 1) for layer in layers))
