"""Fine-tuning: a model with a head for a task, all of its weights trained or adapters beside them.

Shapes: T tokens, S segments, L label columns.
"""

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from seqlm.proteins.model.masking import plain_pack
from seqlm.proteins.model.packed_model import Pack, PackedModel
from seqlm.proteins.model.pretrained import of_config, starting_config, starting_weights, tokenizer
from seqlm.proteins.model.protein_packs import ProteinStream
from seqlm.runs.run_file import RunFile
from seqlm.training.adapters.adapters import AdaptedObjective
from seqlm.training.checkpoint import check_identity
from seqlm.training.checkpoint_reader import saved_weights
from seqlm.training.checksums import CHECKPOINT_FILE, verified
from seqlm.training.command_line import require
from seqlm.training.config_rules import fine_tuning_on_xla
from seqlm.training.data.manifest import IGNORED
from seqlm.training.heartbeat import beat
from seqlm.training.objective import Evaluation, Place
from seqlm.training.packing import HostPack, PackShape, PlannedPack
from seqlm.training.precision import select_precision
from seqlm.training.processes import Processes
from seqlm.training.records import RecordSplit
from seqlm.training.saved_model import assigned
from seqlm.training.scoring import EVALUATION_SEED, answered, check_finite
from seqlm.training.step.staging import AnyPack, staged

from .baselines import write_baselines
from .labelled import LabelledSplit
from .labels import Floats
from .prediction_file import Predictions, predictions_file, write_prediction_table
from .scores import scores
from .tasks import TaskLoss, new_head, task_class, task_config
from .variants.baselines import variant_scores, write_variant_baselines
from .variants.records import VariantFacts

Ints = npt.NDArray[np.int64]
NO_NUMBERS: Ints = np.zeros(0, dtype=np.int64)
RANKING_SCORES = ("ndcg", "top_recall")
"""Scores of variants of one protein besides those of every regression."""


@dataclass(frozen=True)
class LabelledPack(HostPack):
    """Micro-batch with its labels."""

    targets: npt.NDArray[Any]
    """(S, L) float32 labels, NaN for missing ones. For a residue task (T,) int64, then ``IGNORED``."""


class LabelledStream(ProteinStream):
    """Packs with labels. Long proteins keep their first residues, as by transformers' tokenizers."""

    split: LabelledSplit

    def crop_starts(self, epoch: int, units: Ints, spare: Ints) -> Ints:
        return np.zeros_like(units)

    def load(self, pack: PlannedPack | None) -> LabelledPack:
        host = super().load(pack)
        units = NO_NUMBERS if pack is None else pack.units
        if self.split.schema.task.per_residue:
            targets: npt.NDArray[Any] = np.full(len(host.tokens), IGNORED, dtype=np.int64)
            for index, labels in enumerate(self.split.token_labels(units)):
                first = int(host.cumulative[index]) + 1
                kept = labels[: self.shape.max_record_tokens]
                targets[first : first + len(kept)] = kept
        else:
            shape = (len(host.keys), len(self.split.schema.columns))
            targets = np.full(shape, np.nan, dtype=np.float32)
            targets[: len(units)] = self.split.labels(units)
        return LabelledPack(**vars(host), targets=targets)


def labelled_pack(host: AnyPack, max_length: int, device: torch.device) -> Pack:
    """Return the input of the model and the loss for a ``LabelledPack``; nothing is masked."""
    pack = staged(host, device)
    return dataclasses.replace(
        plain_pack(pack, max_length, device), targets=pack.tensors["targets"]
    )


@dataclass(frozen=True)
class TaskEvaluation(Evaluation):
    """Scores of a model on a split, with the predictions."""

    predictions: Predictions


class FineTuning(AdaptedObjective):
    """Objective of a labelled task.

    Raises:
        ValueError: if the data belong to another kind of task, or 4-bit weights are not available.
    """

    config: RunFile
    splits = LabelledSplit
    streams = LabelledStream
    xla_problems = (fine_tuning_on_xla("task"),)

    def __init__(self, config: RunFile) -> None:
        assert config.task is not None, "a run without a task pre-trains"
        require("sklearn")  # for the scores
        self.task = config.task
        self.labelled = LabelledSplit(config.data.path, "train")
        self.schema = self.labelled.schema
        if self.schema.kind != self.task.kind:
            raise ValueError(
                f"data.path: {config.data.path} holds labels of a {self.schema.kind} task, and task.kind is "
                f"{self.task.kind}; give another data.path, or delete that folder and run make data again"
            )
        self.base_config = starting_config(config.model)
        self.esm_config = task_config(self.base_config, self.schema)
        self.classes = task_class(self.esm_config, self.schema.task)
        architecture = of_config(self.esm_config)
        self.encoder = architecture.encoder
        super().__init__(config, self.labelled, self.esm_config, architecture.adapted)
        self.loss = TaskLoss(self.labelled, balanced=self.task.class_weights == "balanced")
        self.is_of_variants = (
            self.schema.task.measured and VariantFacts.of(self.labelled.facts) is not None
        )
        """Whether the labels are measurements of variants of one protein."""
        self._beside_variants: Mapping[str, Any] = {}
        """Scores of the baselines of such a run, once they are known."""

    @property
    def plain(self) -> type[PreTrainedModel]:
        return self.classes.plain

    def plain_on_meta(self) -> PackedModel:
        with torch.device("meta"):
            return self.classes.packed(self.esm_config)

    def plain_weights(self) -> dict[str, Tensor]:
        """Return the model to start from, without adapters, with its head if it fits, or a new one."""
        seed = self.config.train.seed
        if self.has_head:
            start = starting_weights(self.config.model, seed, self.plain)
            return self.loss.head_in_units(start, undo=True)
        start = starting_weights(self.config.model, seed, encoder_only=True)
        encoder = {name: value for name, value in start.items() if name.startswith(self.encoder)}
        return encoder | new_head(self.esm_config, self.schema.task, seed)

    @property
    def has_head(self) -> bool:
        """Whether the model to start from was fine-tuned for outputs of the same kinds and names."""
        is_checkpoint = (Path(self.config.model.init_from or "") / CHECKPOINT_FILE).exists()
        if self.schema.task.measured and is_checkpoint:
            return False  # a checkpoint does not hold the units of its head
        return all(
            getattr(self.base_config, name) == getattr(self.esm_config, name)
            for name in ("architectures", "problem_type", "id2label")
        )

    def pack(self, host: AnyPack, shape: PackShape, device: torch.device) -> Pack:
        return labelled_pack(host, shape.max_length, device)

    def num_targets(self, pack: Pack) -> Tensor:
        return self.loss.num_targets(pack.targets)

    def loss_sum(self, model: nn.Module, pack: Pack) -> Tensor:
        return self.loss(model(pack), pack.targets)

    @torch.no_grad()
    def evaluate(
        self, model: nn.Module, split: RecordSplit, place: Place, num_packs: int
    ) -> TaskEvaluation:
        """Return the scores on the first packs of a split (0: all), the same on every process.

        ``eval_loss`` is a mean over all labels, weighted as in training.
        """
        assert isinstance(split, LabelledSplit)
        started = time.monotonic()
        here = place.here
        shape = place.shape
        schema = split.schema
        stream = LabelledStream(split, shape, EVALUATION_SEED)
        offsets = _row_offsets(split, shape.max_record_tokens)
        outputs = torch.zeros(int(offsets[-1]), schema.num_outputs)
        seen = torch.zeros(split.num_units, dtype=torch.bool)
        totals = torch.zeros(2, dtype=torch.float64, device=here.device)  # loss, labels
        answers = answered(
            model, stream, lambda host: self.pack(host, shape, here.device), place, num_packs
        )
        for packs, host, pack, found in answers:
            loss = self.loss(found, pack.targets)
            num_labels = self.loss.num_targets(pack.targets)
            totals += torch.stack([loss.double(), num_labels.double()])
            for mine in packs[here.rank : here.rank + 1]:
                count = len(mine.units)
                bounds = host.cumulative
                if schema.task.per_residue:  # between CLS and EOS
                    places = _ranges(bounds[:count] + 1, bounds[1 : count + 1] - 1)
                else:
                    places = np.arange(count)
                rows = _ranges(offsets[mine.units], offsets[mine.units + 1])
                outputs[rows] = found[places].float().cpu()
            for planned in packs:
                seen[torch.from_numpy(planned.units)] = True
        dist.all_reduce(totals)
        dist.all_reduce(outputs, group=here.control)
        check_finite(outputs.numpy())
        units = np.flatnonzero(seen.numpy())
        rows = _ranges(offsets[units], offsets[units + 1])
        row_counts = np.diff(offsets)[units]
        _, lengths = split.draw(0, split.num_units, 0, 0)
        predictions = Predictions(
            ids=np.array(split.ids(units), dtype=np.str_),
            offsets=np.concatenate([[0], np.cumsum(row_counts)]),
            labels=_labels(split, units, shape.max_record_tokens),
            outputs=self.loss.in_units(outputs.numpy()[rows]),
            lengths=lengths[units],
            num_masked=int(split.num_masked(units, shape.max_record_tokens).sum()),
        )
        loss_sum, total_labels = here.to_host(totals)
        found_scores = scores(schema, predictions.labels, predictions.outputs)
        return TaskEvaluation(
            values={
                "eval_loss": loss_sum / max(1.0, total_labels),
                **{f"eval_{name}": value for name, value in found_scores.items()},
            },
            num_records=len(units),
            seconds=time.monotonic() - started,
            predictions=predictions,
        )

    def as_written(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        return self.loss.head_in_units(weights)

    @property
    def tokens(self) -> PreTrainedTokenizerBase:
        return tokenizer(self.esm_config)

    def results(self, validation: Evaluation, test: Evaluation | None) -> dict[str, Any]:
        tested = {} if test is None else test.values
        ranked = {}
        if isinstance(test, TaskEvaluation):
            ranked = self.ranking_scores(test.predictions)
        return {
            "task": self.schema.kind,
            "classes": list(self.schema.output_names),
            **{name.replace("eval_", "test_", 1): value for name, value in tested.items()},
            **{f"test_{name}": value for name, value in ranked.items()},
            "test_samples": 0 if test is None else test.num_records,
            **self._beside_variants,
        }

    def ranking_scores(self, found: Predictions) -> dict[str, float]:
        """Return the scores that measurements of variants have besides those of every regression."""
        if not self.is_of_variants:
            return {}
        values = variant_scores(self.task.direction, found.labels, found.outputs)
        return {name: values[name] for name in RANKING_SCORES}

    def record(self, run_dir: Path, validation: Evaluation, test: Evaluation | None) -> None:
        for name, evaluation in (("validation", validation), ("test", test)):
            if isinstance(evaluation, TaskEvaluation):
                file = predictions_file(run_dir, name)
                evaluation.predictions.save(file)
                write_prediction_table(
                    file.with_suffix(".csv"), self.schema, evaluation.predictions
                )

    def score_written(self, run_dir: Path, place: Place) -> Mapping[str, float]:
        def score_baselines() -> None:
            if self.is_of_variants:
                self._beside_variants = write_variant_baselines(self.config, place)
            else:
                write_baselines(self.config, place)

        if self.task.baselines:
            # The other processes wait on the host, where waits may be long.
            place.here.first_does(score_baselines)
        return {}

    def summary(self, results: Mapping[str, Any]) -> str:
        parts = []
        for split, prefix in (("validation", "eval_"), ("test", "test_")):
            names = [name for name in self.schema.task.headlines if prefix + name in results]
            found = [f"{name} {results[prefix + name]:.3f}" for name in names]
            if found:
                parts.append(f"{split} {', '.join(found)}")
        return "; ".join(parts)

    def identity(self, here: Processes) -> dict[str, Any]:
        return super().identity(here) | {
            "task.kind": self.task.kind,
            "task.class_weights": self.task.class_weights,
        }


def _row_offsets(split: LabelledSplit, max_residues: int) -> Ints:
    """Return the first row of each protein, (units + 1,).

    A protein has one row, and in a residue task one for each residue that is read.
    """
    if not split.schema.task.per_residue:
        return np.arange(split.num_units + 1)
    _, lengths = split.draw(0, split.num_units, 0, 0)
    return np.concatenate([[0], np.cumsum(np.minimum(lengths, max_residues))])


def _ranges(starts: npt.NDArray[Any], stops: npt.NDArray[Any]) -> Ints:
    """Return the whole numbers from each start up to its stop, one range after another."""
    ranges = [
        np.arange(start, stop) for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
    ]
    return np.concatenate([NO_NUMBERS, *ranges])


def _labels(split: LabelledSplit, units: Ints, max_residues: int) -> Floats:
    """Return the labels of the rows of these proteins, NaN where a label is missing."""
    if not split.schema.task.per_residue:
        return split.labels(units)
    parts = [labels[:max_residues] for labels in split.token_labels(units)]
    column = np.concatenate([NO_NUMBERS, *parts]).astype(np.float32)
    column[column == IGNORED] = np.nan
    return column[:, None]


def score_task(config: RunFile, here: Processes) -> dict[str, Any]:
    """Score the run's model, or the folder or checkpoint that ``inference.model`` names.

    Every process calls it, and gets the same scores.

    Raises:
        ValueError: if there is no such model, if its outputs are not the task's, or if the checkpoint belongs
            to another run.
    """
    name = config.inference.model or str(config.run_dir / "model")
    beat("loading", slow=True)
    is_checkpoint = (Path(name) / CHECKPOINT_FILE).exists()
    objective = FineTuning(config) if is_checkpoint else _of_model(config, name)
    start: dict[str, Tensor] = {}
    if is_checkpoint and not objective.trains_all:
        with verified(objective.start, here):  # checkpoints of adapters hold no other weights
            start = objective.weights()
    with verified(name, here) as source:
        if is_checkpoint:
            advice = "score a checkpoint with the run file and the settings of its run"
            check_identity(Path(name), objective.identity(here), advice)
            weights = start | saved_weights(Path(name))
        else:
            weights = objective.weights()
    dtype = select_precision(config.train, here.device, here).dtype
    empty = objective.on_meta()
    objective.quantize(empty, weights, dtype, here.device)
    model = assigned(empty, weights)
    objective.loaded(model, dtype)
    model.to(here.device).eval()
    split = objective.open(config.evaluate.split)
    found = objective.evaluate(model, split, Place(here, objective.pack_shape(split), dtype), 0)
    return {
        "model": name,
        "model_sha256": source.sha256,
        "data": config.data.path,
        "split": config.evaluate.split,
        "task": objective.schema.kind,
        "classes": list(objective.schema.output_names),
        **found.values,
        **{
            f"eval_{name}": value
            for name, value in objective.ranking_scores(found.predictions).items()
        },
        "proteins": found.num_records,
        **found.predictions.residue_counts(objective.schema),
        "eval_runtime": found.seconds,
    }


def _of_model(config: RunFile, name: str) -> FineTuning:
    """Return the objective of a run that starts from the model and keeps its head."""
    start = dataclasses.replace(config.model, init_from=name)
    objective = FineTuning(dataclasses.replace(config, model=start, lora=None))
    if not objective.has_head:
        raise ValueError(
            f"{name} has not been fine-tuned for this task, whose outputs are "
            f"{', '.join(objective.schema.output_names)}; give the model of a run with them (inference.model)"
        )
    return objective
