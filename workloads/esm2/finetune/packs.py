"""Packs of labelled proteins. Shapes: T tokens, S segments, L label columns."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from workloads.esm2.masking import plain_pack, to_device
from workloads.esm2.packed_model import Pack
from workloads.esm2.protein_packs import ProteinStream
from workloads.training.packing import HostPack, PlannedPack

from .labelled import LabelledSplit
from .task_kinds import IGNORED


@dataclass(frozen=True)
class LabelledPack(HostPack):
    """A micro-batch and its labels."""

    targets: npt.NDArray[Any]
    """(S, L) float32, NaN where there is no label; of a residue task (T,) int64, ``IGNORED`` there."""


class LabelledStream(ProteinStream):
    """Packs with labels. Long proteins keep their first residues, as by transformers' tokenizers."""

    split: LabelledSplit

    def crop_starts(
        self, epoch: int, units: npt.NDArray[np.int64], spare: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        return np.zeros_like(units)

    def load(self, pack: PlannedPack | None) -> LabelledPack:
        host = super().load(pack)
        units = np.zeros(0, dtype=np.int64) if pack is None else pack.units
        if self.split.schema.task.per_residue:
            targets: npt.NDArray[Any] = np.full(len(host.tokens), IGNORED, dtype=np.int64)
            for index, labels in enumerate(self.split.residue_labels(units)):
                first, kept = int(host.cumulative[index]) + 1, labels[: self.shape.max_residues]
                targets[first : first + len(kept)] = kept
        else:
            columns = len(self.split.schema.columns)
            targets = np.full((len(host.keys), columns), np.nan, dtype=np.float32)
            targets[: len(units)] = self.split.labels(units)
        return LabelledPack(**vars(host), targets=targets)


def labelled_pack(host: HostPack, max_length: int, device: torch.device) -> Pack:
    """Return the input of the model and the loss; nothing is masked."""
    assert isinstance(host, LabelledPack)
    targets = to_device(torch.from_numpy(host.targets), device)
    return replace(plain_pack(host, max_length, device), targets=targets)
