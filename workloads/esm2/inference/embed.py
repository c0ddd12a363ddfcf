"""Embeddings of proteins (``python -m workloads.embed``).

The result is Parquet with the columns id, length (residues) and embedding. An embedding is a list of C
numbers, the mean over the residues, or a list of L such lists with ``inference.embedding=residue``. The
numbers are the hidden states after the model's last layer norm (``last_hidden_state`` in transformers),
without CLS and EOS.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from workloads.run_file import RunFile
from workloads.training.processes import Processes

from .engine import EMBEDDING, RESIDUE_EMBEDDINGS
from .job import Command
from .records import Protein

MAX_PART_BYTES = 256 << 20
"""Size limit of a part with one embedding per residue, which stays in memory until it is written."""


def embed(config: RunFile, here: Processes) -> None:
    """Write the embedding of every protein of the input.

    Raises:
        ValueError: if the model, the input or the output cannot be used.
    """
    inference = config.inference
    command = Command(config, here, "embed")
    size = command.engine.model.config.hidden_size
    is_mean = inference.embedding == "mean"
    command.settings |= {"embedding": inference.embedding, "stored_as": inference.stored_as}

    def tabulate(proteins: list[Protein]) -> pa.Table:
        found = command.answers(proteins, EMBEDDING if is_mean else RESIDUE_EMBEDDINGS)
        flat = np.concatenate([np.empty(0, np.float32), *(rows.ravel() for rows in found)])
        embeddings = pa.FixedSizeListArray.from_arrays(pa.array(flat.astype(inference.stored_as)), size)
        if not is_mean:
            offsets = np.concatenate([[0], np.cumsum([len(rows) for rows in found])]).astype(np.int32)
            embeddings = pa.ListArray.from_arrays(pa.array(offsets), embeddings)
        ids, lengths = [protein.id for protein in proteins], [len(protein.tokens) for protein in proteins]
        columns = [pa.array(ids, pa.string()), pa.array(lengths, pa.int32()), embeddings]
        return pa.table(columns, names=["id", "length", "embedding"])

    part_residues = inference.part_residues
    if not is_mean:
        part_residues = max(1, min(part_residues, MAX_PART_BYTES // (4 * size)))
    command.run(tabulate, part_residues)
