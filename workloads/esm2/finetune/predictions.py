"""A model's outputs on a split, collected from all processes, and their scores."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import nn

from workloads.esm2.evaluation import EVALUATION_SEED, answered
from workloads.training.objective import Evaluation, Place

from .labelled import LabelledSplit
from .packs import LabelledStream, labelled_pack
from .prediction_file import Predictions
from .scores import scores
from .task_kinds import IGNORED
from .tasks import TaskLoss


@dataclass(frozen=True)
class TaskEvaluation(Evaluation):
    predictions: Predictions


@torch.no_grad()
def evaluate(
    model: nn.Module, split: LabelledSplit, loss: TaskLoss, place: Place, num_packs: int
) -> TaskEvaluation:
    """Scores on the first packs of a split (0: all), the same on every process.

    ``eval_loss`` is a mean over all labels, weighted as in training.
    """
    started = time.monotonic()
    here, shape, schema = place.here, place.shape, split.schema
    stream = LabelledStream(split, shape, EVALUATION_SEED)
    offsets = _row_offsets(split, shape.max_residues)
    outputs = torch.zeros(int(offsets[-1]), schema.num_outputs)
    seen = torch.zeros(split.num_units, dtype=torch.bool)
    totals = torch.zeros(2, dtype=torch.float64, device=here.device)  # loss, labels
    longest, device = shape.max_length, here.device
    answers = answered(model, stream, lambda host: labelled_pack(host, longest, device), place, num_packs)
    for packs, host, pack, found in answers:
        totals += torch.stack([loss(found, pack.targets).double(), loss.num_targets(pack.targets).double()])
        for mine in packs[here.rank : here.rank + 1]:
            count, bounds = len(mine.units), host.cumulative
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
    units = np.flatnonzero(seen.numpy())
    rows = _ranges(offsets[units], offsets[units + 1])
    predictions = Predictions(
        ids=np.array(split.ids(units), dtype=np.str_),
        offsets=np.concatenate([[0], np.cumsum(np.diff(offsets)[units])]),
        labels=_labels(split, units, shape.max_residues),
        outputs=loss.in_units(outputs.numpy()[rows]),
        lengths=split.draw(0, split.num_units, 0, 0)[1][units],
    )
    loss_sum, num_labels = here.to_host(totals)
    found_scores = scores(schema, predictions.labels, predictions.outputs)
    return TaskEvaluation(
        values={
            "eval_loss": loss_sum / max(1.0, num_labels),
            **{f"eval_{name}": value for name, value in found_scores.items()},
        },
        num_proteins=len(units),
        seconds=time.monotonic() - started,
        predictions=predictions,
    )


def _row_offsets(split: LabelledSplit, max_residues: int) -> npt.NDArray[np.int64]:
    """(units + 1,) first row of each protein: one for all of it, or one for each residue that is read."""
    if not split.schema.task.per_residue:
        return np.arange(split.num_units + 1)
    _, lengths = split.draw(0, split.num_units, 0, 0)
    return np.concatenate([[0], np.cumsum(np.minimum(lengths, max_residues))])


def _ranges(starts: npt.NDArray[Any], stops: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the whole numbers from each start up to its stop, one range after another."""
    ranges = map(np.arange, starts.tolist(), stops.tolist())
    return np.concatenate([np.zeros(0, dtype=np.int64), *ranges])


def _labels(split: LabelledSplit, units: npt.NDArray[np.int64], max_residues: int) -> npt.NDArray[np.float32]:
    if not split.schema.task.per_residue:
        return split.labels(units)
    parts = [labels[:max_residues] for labels in split.residue_labels(units)]
    flat = np.concatenate([np.zeros(0, dtype=np.int64), *parts]).astype(np.float32)[:, None]
    flat[flat == IGNORED] = np.nan
    return flat
