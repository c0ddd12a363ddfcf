"""Predictions of a fine-tuned model (``seqlm predict``).

The result is CSV or Parquet with the columns id, length (residues), and

* for classes: label, and probability_<class> for each class. Labels that do not exclude each other are joined
  by semicolons. The label is empty if a protein has none of them.
* for regression: one column per value.
* for residues: label, with a letter or name per residue, and probability, with that of each residue's label.

The server's CSV and the predictions of a run have the same columns. The latter also have the true labels.
"""

import numpy as np
import pyarrow as pa

from workloads.esm2.finetune.prediction_file import residue_separator
from workloads.run_file import RunFile
from workloads.training.processes import Processes

from .engine import Array
from .heads import Head
from .job import Command
from .records import Protein


def predict(config: RunFile, here: Processes) -> None:
    """Write the predictions for every protein of the input.

    Raises:
        ValueError: if the model, the input or the output cannot be used.
    """
    command = Command(config, here, "predict")
    head = Head.of(command.engine.model, command.model_name)
    if head.kind.measured and (taken := sorted({"id", "length"} & set(head.names))):
        raise ValueError(
            f"{command.model_name} predicts a value called {taken[0]}, as another column is; give it another "
            "name in id2label of the model's config.json"
        )

    def tabulate(proteins: list[Protein]) -> pa.Table:
        logits = command.answers(proteins, head.answer)
        columns = {
            "id": pa.array([protein.id for protein in proteins], pa.string()),
            "length": pa.array([len(protein.tokens) for protein in proteins], pa.int32()),
            **predictions(head, [head.kind.values(found) for found in logits]),
        }
        return pa.table(columns)

    command.run(tabulate, config.inference.part_residues)


def predictions(head: Head, values: list[Array]) -> dict[str, pa.Array]:
    """Return the columns for proteins with these values of the head."""
    labels = [head.labels(found) for found in values]
    if head.kind.per_residue:
        separator = residue_separator(head.names)
        return {
            "label": pa.array([separator.join(found) for found in labels], pa.string()),
            "probability": pa.array([found.max(axis=-1) for found in values], pa.list_(pa.float32())),
        }
    table = np.stack(values) if values else np.empty((0, len(head.names)), np.float32)
    each = {name: pa.array(table[:, index]) for index, name in enumerate(head.names)}
    if head.kind.measured:
        return each
    return {
        "label": pa.array([";".join(found) for found in labels], pa.string()),
        **{f"probability_{name}": column for name, column in each.items()},
    }
