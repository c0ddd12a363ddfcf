"""Masked language modeling: the model predicts masked residues from the rest of their protein."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seqlm.proteins.model.masking import mask_pack
from seqlm.proteins.model.packed_model import Pack, PackedModel
from seqlm.proteins.model.pretrained import on_meta, save_esm, starting_config, starting_weights
from seqlm.proteins.model.protein_packs import ProteinSplit, ProteinStream
from seqlm.runs.run_file import RunFile
from seqlm.training.objective import Evaluation, Guard, Objective, Place, held_out_scores
from seqlm.training.packing import PackShape
from seqlm.training.records import RecordSplit
from seqlm.training.step.staging import AnyPack

from .evaluation import score, unigram_perplexity


class Pretraining(Objective):
    """Objective of masked language modeling, with all weights, on proteins without labels."""

    config: RunFile
    splits = ProteinSplit
    streams = ProteinStream
    has_constant_passes = True
    can_score_any_packs = True

    def __init__(self, config: RunFile) -> None:
        self.esm_config = starting_config(config.model)
        super().__init__(config, ProteinSplit(config.data.path, "train"), self.esm_config)
        self.final_packs = config.evaluate.packs

    def on_meta(self) -> PackedModel:
        return on_meta(self.esm_config)

    def weights(self) -> dict[str, Tensor]:
        return starting_weights(self.config.model, self.config.train.seed)

    def guard(self) -> Guard | None:
        guard = self.config.guard
        if guard is None:
            return None
        return Guard(ProteinSplit(guard.path, "validation"), guard.max_increase, guard.stop)

    def pack(self, host: AnyPack, shape: PackShape, device: torch.device) -> Pack:
        fraction = self.config.model.mask_fraction
        return mask_pack(host, shape.max_length, fraction, device, self.compiles_packs)

    def evaluate(
        self, model: nn.Module, split: RecordSplit, place: Place, num_packs: int
    ) -> Evaluation:
        return score(
            model,
            split,
            place,
            mask_fraction=self.config.model.mask_fraction,
            num_packs=num_packs,
            compiles=self.compiles_packs,
        )

    def write_model(
        self, run_dir: Path, weights: Mapping[str, Tensor], device: torch.device
    ) -> None:
        save_esm(run_dir / "model", self.esm_config, dict(weights))

    def results(self, validation: Evaluation, test: Evaluation | None) -> dict[str, Any]:
        return {
            "unigram_perplexity": unigram_perplexity(self.open("validation")),
            **held_out_scores(test),
        }

    def summary(self, results: Mapping[str, Any]) -> str:
        return (
            f"validation perplexity {results['perplexity']:.2f} "
            f"(unigram {results['unigram_perplexity']:.2f}), accuracy {results['eval_accuracy']:.3f}"
        )
