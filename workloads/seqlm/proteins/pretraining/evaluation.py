"""Masked-language-model scores of a split under fixed masks, so that any two models compare."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn

from seqlm.proteins.inference.engine import Engine
from seqlm.proteins.inference.masked_marginals import pseudo_perplexity as perplexity_of
from seqlm.proteins.model.masking import mask_pack
from seqlm.proteins.model.packed_model import MaskedLanguageModel
from seqlm.proteins.model.pretrained import starting_config, starting_weights, with_weights
from seqlm.proteins.model.protein_packs import ProteinStream
from seqlm.runs.run_file import RunFile
from seqlm.training.checksums import verified
from seqlm.training.heartbeat import beat
from seqlm.training.objective import Evaluation, Place
from seqlm.training.packing import HostPack, PackShape, PackStream, PlannedPack
from seqlm.training.parallel import bare
from seqlm.training.precision import select_precision
from seqlm.training.processes import Processes
from seqlm.training.records import RecordSplit
from seqlm.training.tracking.progress import WorkProgress

EVALUATION_SEED = 20_230_317
"""Seed of masks, crops and drawn members of every evaluation. It never changes, so scores stay comparable."""


@dataclass(frozen=True)
class Score(Evaluation):
    """``eval_loss`` (mean cross-entropy in nats), ``eval_accuracy`` and ``perplexity``."""

    num_predicted: int
    """Residues that the scores are means over."""


def score(
    model: nn.Module, split: RecordSplit, place: Place, *, mask_fraction: float, num_packs: int = 0
) -> Score:
    """Score a model on the first ``num_packs`` packs of a split (0: all of them)."""
    longest, device = place.shape.max_length, place.here.runtime.packs_on
    stream = ProteinStream(split, place.shape, EVALUATION_SEED)
    return score_packs(
        model, stream, lambda host: mask_pack(host, longest, mask_fraction, device), place, num_packs
    )


@torch.no_grad()
def score_packs(
    model: nn.Module, stream: PackStream, pack_of: Callable[[HostPack], Any], place: Place, num_packs: int
) -> Score:
    """Score a model that answers a pack with a ``Prediction`` on the first packs of a stream (0: all).

    ``pack_of`` makes what the model reads, whose ``targets`` are -100 where nothing is predicted.
    """
    started, here = time.monotonic(), place.here
    totals = torch.zeros(3, dtype=torch.float64, device=here.runtime.packs_on)  # loss, correct, predicted
    proteins = 0
    for planned, _, pack, prediction in answered(model, stream, pack_of, place, num_packs):
        proteins += sum(len(one.units) for one in planned)
        found = (prediction.loss_sum, prediction.num_correct, (pack.targets != -100).sum())
        totals += torch.stack([value.to(totals.device).double() for value in found])
    here.add_up(totals)
    loss, correct, predicted = here.to_host(totals)
    # A split of a few short proteins may have no masked residue: not a number, and not an error.
    loss, accuracy = (total / predicted if predicted else math.nan for total in (loss, correct))
    values = {"eval_loss": loss, "eval_accuracy": accuracy, "perplexity": math.exp(loss)}
    return Score(values, proteins, time.monotonic() - started, int(predicted))


def answered(
    model: nn.Module, stream: PackStream, pack_of: Callable[[HostPack], Any], place: Place, num_packs: int
) -> Iterator[tuple[list[PlannedPack], HostPack, Any, Any]]:
    """Run a model on the first packs of a stream (0: all), one pack per process at a time.

    Every process calls the model equally often. The progress in the split is printed regularly.

    Yields:
        The packs of all processes, this process's pack before and after ``pack_of``, and the answer.

    Raises:
        Stopped: between two packs, if the run received a signal to stop.
    """
    here, inner = place.here, bare(model)
    progress = WorkProgress("scoring", stream.split.num_units, shows=here.is_first)
    packs = islice(stream.epoch(0), num_packs or None)
    beat("evaluating", slow=True)  # layers may be compiled for it
    was_training = inner.training
    inner.eval()  # without the dropout of heads
    try:
        while planned := list(islice(packs, here.world_size)):
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


def unigram_perplexity(split: RecordSplit) -> float:
    """Perplexity of guessing each residue from the split's own composition: what a model must beat."""
    counts = split.token_counts().astype(float)
    frequencies = counts[counts > 0] / counts.sum()
    return float(np.exp(-(frequencies * np.log(frequencies)).sum()))


@torch.no_grad()
def pseudo_perplexity(
    model: MaskedLanguageModel,
    split: RecordSplit,
    shape: PackShape,
    *,
    num_proteins: int,
    dtype: torch.dtype,
    device: torch.device,
) -> float:
    """Mean over proteins of exp(mean negative log-likelihood of each residue masked alone).

    Salazar et al. 2020; the form that Lin et al. 2023 report for ESM-2. Takes one forward pass a residue,
    several of them to a pack.
    """
    tokens, longest = shape.num_tokens, shape.max_residues
    engine = Engine(model, device=device, dtype=dtype, tokens_per_pack=tokens, max_residues=longest)
    values = []
    places, _ = split.draw(0, min(num_proteins, split.num_units), EVALUATION_SEED, 0)
    progress = WorkProgress("scoring", len(places))
    for place in places:
        values.append(perplexity_of(engine, split.residues(place)[:longest]))
        progress.add(1)
    return float(np.mean(values))


def score_model(config: RunFile, here: Processes) -> dict[str, object]:
    """Score one masked language model on one split.

    Raises:
        ValueError: if there is no such model, or no such split in the prepared data.
    """
    name = config.inference.model or config.model.init_from or str(config.run_dir / "model")
    model_config = dataclasses.replace(config.model, init_from=name)
    split = RecordSplit(config.data.path, config.evaluate.split)
    with verified(name, here) as source:
        model = with_weights(starting_config(model_config), starting_weights(model_config, seed=0))
    model.to(here.device)
    dtype = select_precision(config.train, here.device, here).dtype
    shape = PackShape.of(split, config.train.tokens_per_pack, config.model.max_residues)
    result = score(model, split, Place(here, shape, dtype), mask_fraction=config.model.mask_fraction)
    scores: dict[str, object] = {
        "model": name,
        "model_sha256": source.sha256,
        "data": config.data.path,
        "split": config.evaluate.split,
        **{name: result.values[name] for name in ("eval_loss", "perplexity", "eval_accuracy")},
        "predicted_residues": result.num_predicted,
        "proteins": result.num_proteins,
        "eval_runtime": result.seconds,
        "unigram_perplexity": unigram_perplexity(split),
    }
    if count := config.evaluate.pseudo_perplexity_proteins:
        scores["pseudo_perplexity"] = pseudo_perplexity(
            model, split, shape, num_proteins=count, dtype=dtype, device=here.device
        )
    return scores
