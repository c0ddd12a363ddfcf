"""Proteins through a model in packs of similar lengths; answers in the order of the proteins.

Shapes: T tokens of a pack, S proteins (or windows of one) in it, L residues of a protein, C features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ..alphabet import CLS, EOS, MASK
from ..heartbeat import beat
from ..masking import plain_pack
from ..model import Pack, PackedModel
from ..packing import SPECIAL_TOKENS, HostPack
from .windows import Window, windows

TOKENS_PER_PACK = {"cpu": 2048, "cuda": 65_536}
"""On a CPU a pack's activations stay in the cache (docs/inference.md has the figures); on a GPU the matrix
products of the smallest model want that many rows."""

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Answer:
    """What is wanted of the model."""

    compute: Callable[[Any, Pack], Tensor]
    """fp32 (T, C), or for ``protein`` (S, C)."""
    each: Literal["protein", "mean", "residue"]
    """A row of ``compute`` a protein, its mean over the protein's residues, or a row a residue."""


EMBEDDING = Answer(lambda model, pack: model.encode(pack), "mean")
"""Hidden states behind the last layer norm, averaged over the residues (not CLS and EOS)."""
RESIDUE_EMBEDDINGS = Answer(lambda model, pack: model.encode(pack), "residue")
PROTEIN_LOGITS = Answer(lambda model, pack: model(pack), "protein")
RESIDUE_LOGITS = Answer(lambda model, pack: model(pack), "residue")
MASKED_LOGITS = Answer(lambda model, pack: model.logits(pack, masked_rows(pack)), "protein")
"""Of a masked language model, (33,), for proteins of which one residue is ``MASK``."""


def masked_rows(pack: Pack) -> Tensor:
    """(K,) places of the pack's masks, in order."""
    return torch.nonzero(pack.tokens == MASK)[:, 0]


@dataclass(frozen=True)
class _Piece:
    """A protein, or a window of it."""

    protein: int
    window: Window

    @property
    def num_tokens(self) -> int:
        return self.window.stop - self.window.start + SPECIAL_TOKENS


class Engine:
    """A model on one device.

    Args:
        model: as ``load_model`` gives it; it is moved, and its layers' matrices become ``dtype``.
        device: where it computes.
        dtype: type of the matrix products. The residual stream, layer norms and answers are fp32.
        tokens_per_pack: tokens read at once; 0 is the default of the device.
        max_residues: longer proteins are read in windows of this many residues.
    """

    def __init__(
        self,
        model: PackedModel,
        *,
        device: torch.device,
        dtype: torch.dtype,
        tokens_per_pack: int = 0,
        max_residues: int = 1022,
    ) -> None:
        self.model = model.to(device)  # type: ignore[arg-type]  # transformers wraps it
        for module in model.esm.encoder.layer.modules():
            if isinstance(module, nn.Linear):
                module.to(dtype)  # once, and not for every pack
        self.device, self.dtype, self.max_residues = device, dtype, max_residues
        self._tokens_per_pack = tokens_per_pack or TOKENS_PER_PACK[device.type]

    @torch.no_grad()
    def run(self, proteins: Sequence[npt.NDArray[np.uint8]], answer: Answer) -> list[Array]:
        """The answer for every protein, (C,) or (L, C).

        A protein that was read in windows gets the residues' rows of the windows that answer for them, or
        the windows' mean, weighted by the residues that each answers for.

        Args:
            proteins: token ids without CLS and EOS; at least one residue each.
            answer: what is wanted.
        """
        pieces = [
            _Piece(index, window)
            for index, protein in enumerate(proteins)
            for window in windows(len(protein), self.max_residues)
        ]
        parts: list[list[tuple[Window, Array]]] = [[] for _ in proteins]
        for pack in self._packs(pieces):
            for piece, part in zip(pack, self._answers(proteins, pack, answer), strict=True):
                parts[piece.protein].append((piece.window, part))
            beat("computing")
        return [_joined(found, answer) for found in parts]

    def _packs(self, pieces: list[_Piece]) -> Iterator[list[_Piece]]:
        """Longest first: what does not fit into memory is known at once."""
        pack: list[_Piece] = []
        used = 0
        for piece in sorted(pieces, key=lambda piece: piece.num_tokens, reverse=True):
            if pack and used + piece.num_tokens > self._tokens_per_pack:
                yield pack
                pack, used = [], 0
            pack.append(piece)
            used += piece.num_tokens
        if pack:
            yield pack

    def _answers(
        self, proteins: Sequence[npt.NDArray[np.uint8]], pieces: list[_Piece], answer: Answer
    ) -> list[Array]:
        lengths = np.array([piece.num_tokens for piece in pieces])
        starts = np.concatenate([[0], np.cumsum(lengths)])
        tokens = np.empty(starts[-1], dtype=np.uint8)
        for piece, start, stop in zip(pieces, starts[:-1], starts[1:], strict=True):
            tokens[start], tokens[stop - 1] = CLS, EOS
            tokens[start + 1 : stop - 1] = proteins[piece.protein][piece.window.start : piece.window.stop]
        unused = np.zeros(len(pieces), dtype=np.int64)
        host = HostPack(tokens, starts.astype(np.int32), unused, unused)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            pack = plain_pack(host, int(lengths.max()), self.device)
            rows = answer.compute(self.model, pack)
        if answer.each == "protein":
            return list(rows.cpu().numpy())
        # CLS comes first; the rows that a window answers for begin behind it.
        bounds = [
            (int(start) + 1 + window.first - window.start, window.num_answered)
            for start, window in zip(starts[:-1], (piece.window for piece in pieces), strict=True)
        ]
        if answer.each == "mean":
            means = [rows[first : first + count].mean(dim=0) for first, count in bounds]
            return list(torch.stack(means).cpu().numpy())
        host_rows = rows.cpu().numpy()
        return [host_rows[first : first + count] for first, count in bounds]


def _joined(parts: list[tuple[Window, Array]], answer: Answer) -> Array:
    if len(parts) == 1:
        return parts[0][1]
    parts.sort(key=lambda part: part[0].start)
    if answer.each == "residue":
        return np.concatenate([part for _, part in parts])
    weights = [window.num_answered for window, _ in parts]
    mean: Array = np.average([part for _, part in parts], axis=0, weights=weights).astype(np.float32)
    return mean
