"""Scores of a language model on the packs of a split."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from .data.manifest import IGNORED
from .heartbeat import beat
from .objective import Evaluation, Place
from .packing import HostPack, PackStream, PlannedPack
from .parallel import bare
from .tracking.progress import WorkProgress

EVALUATION_SEED = 20_230_317
"""Seed of masks, crops and drawn members of every evaluation. It never changes, so scores stay comparable."""

_LARGEST_EXPONENT = math.log(sys.float_info.max)
"""Loss beyond which the perplexity exceeds the largest number."""


class NotFiniteError(ValueError):
    """An answer or a score of a model is infinite or not a number."""

    def __init__(self) -> None:
        super().__init__(
            "the model's answers are not finite; give another checkpoint of its training, or correct its "
            "config.json"
        )


def check_finite(numbers: npt.ArrayLike) -> None:
    """Check answers or scores of a model, which no command may write as results.

    Raises:
        NotFiniteError: if a number is infinite or NaN.
    """
    if not np.isfinite(numbers).all():
        raise NotFiniteError


@dataclass(frozen=True)
class Score(Evaluation):
    """``eval_loss`` (mean cross-entropy in nats), ``eval_accuracy`` and ``perplexity``."""

    num_predicted: int
    """Tokens that the scores are means over."""


@torch.no_grad()
def score_packs(
    model: nn.Module,
    stream: PackStream,
    pack_of: Callable[[HostPack], Any],
    place: Place,
    num_packs: int,
) -> Score:
    """Score a model that answers a pack with a ``Prediction``.

    Args:
        model: language model.
        stream: packs of the split.
        pack_of: function that returns the input of the model for a pack. Its ``targets`` are ``IGNORED``
            where nothing is predicted.
        place: processes, pack shape and precision.
        num_packs: number of packs, the first ones of the stream; 0 for all.

    Raises:
        NotFiniteError: on every process, if the loss is infinite or NaN.
    """
    started = time.monotonic()
    here = place.here
    totals = torch.zeros(
        3, dtype=torch.float64, device=here.runtime.packs_on
    )  # loss, correct, predicted
    num_records = 0
    for planned, _, pack, prediction in answered(model, stream, pack_of, place, num_packs):
        num_records += sum(len(one.units) for one in planned)
        num_predicted = (pack.targets != IGNORED).sum()
        found = (prediction.loss_sum, prediction.num_correct, num_predicted)
        totals += torch.stack([value.to(totals.device).double() for value in found])
    here.add_up(totals)
    loss_sum, correct, predicted = here.to_host(totals)
    check_finite(loss_sum)
    # A split of a few short records may have no predicted token: then scores are NaN, which is no error.
    loss = loss_sum / predicted if predicted else math.nan
    accuracy = correct / predicted if predicted else math.nan
    perplexity = math.inf if loss > _LARGEST_EXPONENT else math.exp(loss)
    values = {"eval_loss": loss, "eval_accuracy": accuracy, "perplexity": perplexity}
    return Score(values, num_records, time.monotonic() - started, int(predicted))


def answered(
    model: nn.Module,
    stream: PackStream,
    pack_of: Callable[[HostPack], Any],
    place: Place,
    num_packs: int,
) -> Iterator[tuple[list[PlannedPack], HostPack, Any, Any]]:
    """Run a model on the first packs of a stream (0: all), one pack per process at a time.

    Every process calls the model equally often. The progress in the split is printed regularly.

    Yields:
        The packs of all processes, this process's pack before and after ``pack_of``, and the answer.

    Raises:
        Stopped: between two packs, if the run received a signal to stop.
    """
    here = place.here
    inner = bare(model)
    progress = WorkProgress("scoring", stream.split.num_units, shows=here.is_first)
    packs = islice(stream.epoch(0), num_packs or None)
    beat("evaluating", slow=True)  # layers may be compiled for it
    was_training = inner.training
    inner.eval()  # without the dropout of heads
    try:
        while planned := list(islice(packs, here.world_size)):
            # A sum over the hosts. No step follows whose figures could carry the flag, and a process that
            # stopped alone would leave the others in the collectives of a sharded model. The device computes
            # the last round meanwhile. A round has a pack of each process, so an evaluation of a fixed number
            # of packs has the fewer rounds, the more processes there are.
            here.check_stop()
            host = stream.load(planned[here.rank] if here.rank < len(planned) else None)
            pack = pack_of(host)
            enabled = place.dtype == torch.bfloat16
            with torch.autocast(here.device.type, dtype=torch.bfloat16, enabled=enabled):
                answer = inner(here.runtime.place(pack))
            here.runtime.flush()
            yield planned, host, pack, answer
            beat("evaluating")
            progress.add(sum(len(one.units) for one in planned))
    finally:
        inner.train(was_training)
