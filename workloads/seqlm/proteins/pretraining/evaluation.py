"""Masked-language-model scores of a split under fixed masks, so that models can be compared."""

import dataclasses
from collections import Counter
from itertools import islice

import numpy as np
import torch
from torch import nn

from seqlm.proteins.inference.engine import Engine
from seqlm.proteins.inference.engine_probabilities import pseudo_perplexity as perplexity_of
from seqlm.proteins.model.masking import mask_pack
from seqlm.proteins.model.packed_model import MaskedLanguageModel, Pack
from seqlm.proteins.model.pretrained import starting_config, starting_weights, with_weights
from seqlm.proteins.model.protein_packs import ProteinSplit, ProteinStream
from seqlm.proteins.reading.counts import Counts
from seqlm.proteins.reading.policies import Kind
from seqlm.runs.run_file import RunFile
from seqlm.training.checksums import verified
from seqlm.training.config import KernelMode
from seqlm.training.objective import Place
from seqlm.training.packing import HostPack, PackShape
from seqlm.training.precision import select_precision
from seqlm.training.processes import Processes
from seqlm.training.records import RecordSplit, Split
from seqlm.training.scoring import EVALUATION_SEED, Score, score_packs
from seqlm.training.tracking.final_scores import scored_text
from seqlm.training.tracking.progress import WorkProgress


def score(
    model: nn.Module,
    split: RecordSplit,
    place: Place,
    *,
    mask_fraction: float,
    num_packs: int = 0,
    compiles: bool = False,
) -> Score:
    """Score a model on the first packs of a split.

    Args:
        model: masked language model.
        split: proteins to score.
        place: processes, pack shape and precision.
        mask_fraction: share of the residues to predict.
        num_packs: number of packs; 0 scores all.
        compiles: whether a compiled function masks.
    """
    longest = place.shape.max_length
    device = place.here.runtime.packs_on
    stream = ProteinStream(split, place.shape, EVALUATION_SEED)

    def masked(host: HostPack) -> Pack:
        return mask_pack(host, longest, mask_fraction, device, compiles)

    return score_packs(model, stream, masked, place, num_packs)


def unigram_perplexity(split: RecordSplit) -> float:
    """Return the perplexity of predicting each residue from the composition of the split.

    A model that has learned something is below it.
    """
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
    kernels: KernelMode = "auto",
    here: Processes | None = None,
) -> float:
    """Return the mean over proteins of exp(mean negative log-likelihood of each residue masked alone).

    It is the form of Salazar et al. 2020 that Lin et al. 2023 report for ESM-2. It takes one forward pass per
    residue, several of them in a pack.

    Args:
        model: masked language model.
        split: split of the proteins.
        shape: shape of the packs.
        num_proteins: number of proteins, drawn with a fixed seed.
        dtype: type of the arithmetic.
        device: device of the model.
        kernels: value of ``inference.kernels``.
        here: this process, if every process of a group calls this. All of them use the same kernels.
    """
    longest = shape.max_record_tokens
    engine = Engine(
        model,
        device=device,
        dtype=dtype,
        tokens_per_pack=shape.num_tokens,
        max_residues=longest,
        kernels=kernels,
        here=here,
    )
    values = []
    places, _ = split.draw(0, min(num_proteins, split.num_units), EVALUATION_SEED, 0)
    progress = WorkProgress("scoring", len(places))
    for place in places:
        values.append(perplexity_of(engine, split.token_ids(place)[:longest]))
        progress.add(1)
    return float(np.mean(values))


def split_counts(config: RunFile, name: Split) -> list[Counts]:
    """Return the numbers of proteins and residues of a split that ``score_model`` scores."""
    split = ProteinSplit(config.data.path, name)
    _, lengths = split.draw(0, split.num_units, EVALUATION_SEED, 0)
    if config.evaluate.packs:
        shape = _shape(config, split)
        packs = islice(ProteinStream(split, shape, EVALUATION_SEED).epoch(0), config.evaluate.packs)
        lengths = lengths[np.concatenate([pack.units for pack in packs])]
    num_read = int(np.minimum(lengths, config.model.max_residues).sum())
    num_others = split.num_records - len(lengths)
    return [
        Counts("proteins", len(lengths), Counter({Kind.NOT_DRAWN: num_others})),
        Counts("residues", num_read, Counter({Kind.LONG: int(lengths.sum()) - num_read})),
    ]


def _shape(config: RunFile, split: RecordSplit) -> PackShape:
    """Return the shape of the packs in which a split is scored."""
    return PackShape.of(split, config.train.tokens_per_pack, config.model.max_residues)


def score_model(config: RunFile, here: Processes) -> dict[str, object]:
    """Score one masked language model on one split.

    Raises:
        ValueError: if there is no such model, or no such split in the prepared data.
    """
    name = config.inference.model or config.model.init_from or str(config.run_dir / "model")
    model_config = dataclasses.replace(config.model, init_from=name)
    split = ProteinSplit(config.data.path, config.evaluate.split)
    with verified(name, here) as source:
        model = with_weights(starting_config(model_config), starting_weights(model_config, seed=0))
    model.to(here.device)
    dtype = select_precision(config.train, here.device, here).dtype
    shape = _shape(config, split)
    result = score(
        model,
        split,
        Place(here, shape, dtype),
        mask_fraction=config.model.mask_fraction,
        num_packs=config.evaluate.packs,
    )
    scores: dict[str, object] = {
        "model": name,
        "model_sha256": source.sha256,
        "data": config.data.path,
        "split": config.evaluate.split,
        **{key: result.values[key] for key in ("eval_loss", "perplexity", "eval_accuracy")},
        "predicted_residues": result.num_predicted,
        "proteins": result.num_records,
        "scored": scored_text(result.num_records, split.num_units, split.records),
        "eval_runtime": result.seconds,
        "unigram_perplexity": unigram_perplexity(split),
    }
    num_proteins = config.evaluate.pseudo_perplexity_proteins
    if num_proteins:
        scores["pseudo_perplexity"] = pseudo_perplexity(
            model,
            split,
            shape,
            num_proteins=num_proteins,
            dtype=dtype,
            device=here.device,
            kernels=config.inference.kernels,
            here=here,
        )
    return scores
