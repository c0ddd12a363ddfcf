"""Predictions of a fine-tuned model (``seqlm predict``).

The result is CSV or Parquet with the columns id, length (residues), and

* for classes: label, and probability_<class> for each class. Labels that do not exclude each other are joined
  by semicolons. The label is empty if a protein has none of them.
* for regression: one column per value.
* for residues: label, with a letter or name per residue, and probability, with that of each residue's label.

The server's CSV and the predictions of a run have the same columns. The latter also have the true labels.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from seqlm.proteins.finetune.prediction_file import residue_separator
from seqlm.proteins.finetune.task_kinds import KIND_OF_PROBLEM, THRESHOLD, TaskKind
from seqlm.proteins.inference.model_head import check_head
from seqlm.proteins.model.packed_model import PackedModel, TokenClassifier
from seqlm.runs.inference_commands import MASKED_LM
from seqlm.runs.run_file import RunFile
from seqlm.training.processes import Processes

from .described import CHAINS, described_proteins
from .engine import PROTEIN_LOGITS, RESIDUE_LOGITS, Answer, Array
from .job import Command, Work
from .records import Protein
from .repeated_ids import OCCURRENCE, Rows


@dataclass(frozen=True)
class Head:
    """Meaning of a fine-tuned model's outputs, from its config.json."""

    kind: TaskKind
    names: tuple[str, ...]
    """Names of the outputs, in their order."""
    negative: str = ""
    """Label of a protein with none of the names; empty for several labels that do not exclude each other."""

    @staticmethod
    def of(model: PackedModel, name: str) -> "Head":
        """Return the head of a model called ``name``.

        Raises:
            ValueError: if the model has not been fine-tuned.
        """
        config: Any = model.config
        names = tuple(str(config.id2label[index]) for index in range(config.num_labels))
        check_head("predict", name, config.architectures or [MASKED_LM])
        problem = None if isinstance(model, TokenClassifier) else config.problem_type or ""
        kind = KIND_OF_PROBLEM.get(problem)
        if kind is None:
            raise ValueError(
                f"{name}: config.json has problem_type {config.problem_type!r}; allowed are regression, "
                "multi_label_classification and single_label_classification"
            )
        is_binary = len(names) == 1 and not (kind.measured or kind.one_of_many)
        negative = getattr(config, "negative_class", f"not {names[0]}") if is_binary else ""
        return Head(kind, names, negative)

    @property
    def answer(self) -> Answer:
        """Kind of answer that the engine computes."""
        return RESIDUE_LOGITS if self.kind.per_residue else PROTEIN_LOGITS

    def labels(self, values: Array) -> list[str]:
        """Return the labels of a protein, or one per residue; none for a regression."""
        if self.kind.measured:
            return []
        if not self.kind.one_of_many:
            likely = [
                name for name, value in zip(self.names, values, strict=True) if value >= THRESHOLD
            ]
            if not likely and self.negative:
                return [self.negative]
            return likely
        return [self.names[index] for index in np.atleast_1d(values.argmax(axis=-1)).tolist()]


def predict(config: RunFile, here: Processes) -> None:
    """Write the predictions for every protein of the input.

    Raises:
        ValueError: if the model, the input or the output cannot be used.
    """
    command = Command(config, here, "predict")
    head = Head.of(command.engine.model, command.model_name)
    taken = sorted({"id", "length", CHAINS, OCCURRENCE} & set(head.names))
    if head.kind.measured and taken:
        raise ValueError(
            f"{command.model_name} predicts a value called {taken[0]}, as another column is; give it another "
            "name in id2label of the model's config.json"
        )

    def tabulate(proteins: list[Protein]) -> Rows:
        logits = command.answers(proteins, head.answer)
        values = [head.kind.values(found) for found in logits]
        described = described_proteins(proteins, has_chains=command.joins_chains)
        return Rows(pa.table({**described, **predictions(head, values)}))

    command.run(Work(tabulate=tabulate, part_residues=config.inference.part_residues))


def predictions(head: Head, values: list[Array]) -> dict[str, pa.Array]:
    """Return the columns for proteins with these values of the head."""
    labels = [head.labels(found) for found in values]
    if head.kind.per_residue:
        separator = residue_separator(head.names)
        return {
            "label": pa.array([separator.join(found) for found in labels], pa.string()),
            "probability": pa.array(
                [found.max(axis=-1) for found in values], pa.list_(pa.float32())
            ),
        }
    table = np.stack(values) if values else np.empty((0, len(head.names)), np.float32)
    each = {name: pa.array(table[:, index]) for index, name in enumerate(head.names)}
    if head.kind.measured:
        return each
    return {
        "label": pa.array([";".join(found) for found in labels], pa.string()),
        **{f"probability_{name}": column for name, column in each.items()},
    }
