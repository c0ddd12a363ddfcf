"""Proteins through a model in packs of similar lengths; answers in the order of the proteins.

On CUDA the host is one pack ahead of the device: while a pack is computed, the host assembles the next one
and reads the answers of the one before. From some number of residues on, packs have one of a few constant
shapes and the layers are compiled.

Shapes: T tokens of a pack, S proteins (or windows of one) in it, L residues of a protein, C features.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from workloads.esm2.alphabet import CLS, EOS, MASK, PAD, encode
from workloads.esm2.masking import plain_pack, to_device
from workloads.esm2.model import Pack, PackedModel
from workloads.training.config import TrainConfig
from workloads.training.hardware import compiles
from workloads.training.heartbeat import beat
from workloads.training.packing import SPECIAL_TOKENS, HostPack, PackShape

TOKENS_PER_PACK = {"cpu": 2048, "cuda": 65_536}
"""On a CPU a pack's activations stay in the cache (docs/inference.md has the figures); on a GPU the matrix
products of the smallest model want that many rows."""
COMPILE_FROM_RESIDUES = 20_000_000
"""Residues from which compiling pays. Estimated, not measured: a shape's graphs take 10 to 20 s, and compiled
layers save about 0.3 of the time (1.4 times the rate of eager layers at 15B, in the README of BioNeMo's
esm2_native_te recipe). At the 300,000 residues/s that 650M may reach on one H100, 20 million residues take a
minute, and 0.3 of it is one such compilation. Smaller models gain less per residue, larger ones more."""
SHAPE_RATIO, SMALLEST_SHAPE = 4, 1024
"""Constant shapes are ``tokens_per_pack`` and quarters of it, down to this many tokens: four on a GPU. Each
costs a compilation; the last pack of a call, or a request to the server, is padded to at most four times."""
TOKENS_PER_PROTEIN = 64
"""Of a constant shape, for the number of its segments. Packs of still shorter proteins are not full; more
segments would cost more, because the attention kernel is launched for each at the largest length."""

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
    """(S,) places of the pack's masks, in order; 0 behind the last of them."""
    return torch.nonzero_static(pack.tokens == MASK, size=len(pack.rows), fill_value=0)[:, 0]


@dataclass(frozen=True)
class Window:
    """What the model reads of a protein, and what it answers for."""

    start: int
    """First residue that is read."""
    stop: int
    first: int
    """First residue that it answers for."""
    last: int
    """The one behind the last of them."""

    @property
    def num_answered(self) -> int:
        return self.last - self.first


def windows(num_residues: int, max_residues: int) -> list[Window]:
    """Windows of ``max_residues``, evenly spread and overlapping by half or more; one for a short protein.

    Two neighbours meet in the middle of their overlap, so that a residue is answered for with as much of
    the protein on either side of it as there is.
    """
    if num_residues <= max_residues:
        return [Window(0, num_residues, 0, num_residues)]
    step = max(1, max_residues // 2)
    count = -(-(num_residues - max_residues) // step) + 1
    starts = np.linspace(0, num_residues - max_residues, count).round().astype(int).tolist()
    middles = [(here + max_residues + following) // 2 for here, following in itertools.pairwise(starts)]
    edges = [0, *middles, num_residues]
    return [
        Window(start, start + max_residues, first, last)
        for start, first, last in zip(starts, edges[:-1], edges[1:], strict=True)
    ]


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
        compile_from: residues from which layers are compiled and packs have constant shapes; None is never
            (``compile_from`` in this module gives what suits a device).
    """

    def __init__(
        self,
        model: PackedModel,
        *,
        device: torch.device,
        dtype: torch.dtype,
        tokens_per_pack: int = 0,
        max_residues: int = 1022,
        compile_from: int | None = None,
    ) -> None:
        self.model = model.to(device)  # type: ignore[arg-type]  # transformers wraps it
        for module in model.layers.modules():
            if isinstance(module, nn.Linear):
                module.to(dtype)  # once, and not for every pack
        self.device, self.dtype, self.max_residues = device, dtype, max_residues
        self.tokens_per_pack = tokens_per_pack or TOKENS_PER_PACK[device.type]
        # In fp32 CUDA has no packed attention: it goes protein by protein, which is no constant shape.
        is_loop = device.type == "cuda" and dtype == torch.float32
        self._compile_from = None if is_loop else compile_from
        self.on_residues: Callable[[int], object] = lambda number: None
        """Called with the number of residues after each pack."""
        self._num_residues = 0
        self._shapes: list[PackShape] = []
        self._compiled: set[tuple[PackShape, Answer]] = set()

    def run(self, proteins: Sequence[npt.NDArray[np.uint8]], answer: Answer) -> list[Array]:
        """The answer for every protein, (C,) or (L, C).

        A protein that was read in windows gets the residues' rows of the windows that answer for them, or
        the windows' mean, weighted by the residues that each answers for.

        Args:
            proteins: token ids without CLS and EOS; at least one residue each.
            answer: what is wanted.
        """
        self._num_residues += sum(map(len, proteins))
        if self._compile_from is not None and self._num_residues >= self._compile_from:
            self._compile()
        pieces = [
            _Piece(index, window)
            for index, protein in enumerate(proteins)
            for window in windows(len(protein), self.max_residues)
        ]
        parts: list[list[tuple[Window, Array]]] = [[] for _ in proteins]
        packs = self._packs(pieces)
        running = (self._start(proteins, pack, self._shape_of(pack), answer) for pack in packs)
        # A pair is there when its second pack has been started, and then the first is read.
        for before, _ in itertools.pairwise(itertools.chain(running, [None])):
            assert before is not None
            for piece, part in zip(before.pieces, before.answers(), strict=True):
                parts[piece.protein].append((piece.window, part))
            self.on_residues(sum(piece.window.num_answered for piece in before.pieces))
        return [_joined(found, answer) for found in parts]

    def warm_up(self, answer: Answer) -> list[Array]:
        """Run every constant shape once, so that no later call compiles; the answers of a short protein.

        Without constant shapes it runs once: the first products of a process are slow.
        """
        if self._compile_from == 0:
            self._compile()
        protein = encode("A" * min(30, self.max_residues))
        piece = _Piece(0, windows(len(protein), self.max_residues)[0])
        shapes: Sequence[PackShape | None] = self._shapes or [None]
        return [self._start([protein], [piece], shape, answer).answers()[0] for shape in shapes]

    def _compile(self) -> None:
        if self._shapes:
            return
        longest = self.max_residues + SPECIAL_TOKENS
        tokens = max(self.tokens_per_pack, longest)
        while tokens >= SMALLEST_SHAPE or not self._shapes:
            num_segments = max(1, tokens // TOKENS_PER_PROTEIN) + -(-tokens // longest)
            self._shapes.insert(0, PackShape(tokens, self.max_residues, num_segments))
            tokens //= SHAPE_RATIO
        # A shape has two graphs, since the last layer may compute some rows alone.
        limit = torch._dynamo.config.recompile_limit
        torch._dynamo.config.recompile_limit = max(limit, 2 * len(self._shapes) + 2)
        for layer in self.model.layers:
            layer.compile(dynamic=False)

    def _packs(self, pieces: list[_Piece]) -> Iterator[list[_Piece]]:
        """Longest first: what does not fit into memory is known at once."""
        tokens = self.tokens_per_pack
        largest = self._shapes[-1] if self._shapes else PackShape(tokens, self.max_residues, tokens)
        pack: list[_Piece] = []
        used = 0
        for piece in sorted(pieces, key=lambda piece: piece.num_tokens, reverse=True):
            if pack and not _fits(largest, len(pack) + 1, used + piece.num_tokens):
                yield pack
                pack, used = [], 0
            pack.append(piece)
            used += piece.num_tokens
        if pack:
            yield pack

    def _shape_of(self, pack: list[_Piece]) -> PackShape | None:
        """The smallest constant shape that holds a pack; None where shapes are not constant."""
        num_tokens = sum(piece.num_tokens for piece in pack)
        return next((shape for shape in self._shapes if _fits(shape, len(pack), num_tokens)), None)

    @torch.no_grad()
    def _start(
        self,
        proteins: Sequence[npt.NDArray[np.uint8]],
        pieces: list[_Piece],
        shape: PackShape | None,
        answer: Answer,
    ) -> _Running:
        """Hand a pack to the device; on CUDA nothing here waits for it.

        Copies there and back are of pinned memory that torch's allocator gives out, and gives out again only
        after the event that it records behind each copy.
        """
        beat("computing", slow=shape is not None and (shape, answer) not in self._compiled)
        host, answered = _assembled(proteins, pieces, shape)
        max_length = shape.max_length if shape else int(np.diff(host.cumulative).max())
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            rows = answer.compute(self.model, plain_pack(host, max_length, self.device))
        if answer.each == "mean":
            bounds = to_device(torch.from_numpy(answered), self.device)
            # Every other segment lies between two windows. The sum of one is of its own rows in their order,
            # so it is the same in any pack, which the sums of atomic additions would not be.
            sums = torch.segment_reduce(rows, "sum", offsets=bounds.flatten(), axis=0, unsafe=True)[::2]
            rows = sums / bounds.diff(dim=1).clamp(min=1)
        rows = rows.to("cpu", non_blocking=True)
        done = None
        if self.device.type == "cuda":
            done = torch.cuda.Event()
            done.record(torch.cuda.current_stream(self.device))
        if shape:
            self._compiled.add((shape, answer))
        return _Running(pieces, answered if answer.each == "residue" else None, rows, done)


@dataclass(frozen=True)
class _Running:
    """A pack that the device computes."""

    pieces: list[_Piece]
    answered: npt.NDArray[np.int64] | None
    """(S, 2) bounds of each piece's rows; None where it has one row, in the order of the pieces."""
    rows: Tensor
    """On the host; there when ``done`` is."""
    done: torch.cuda.Event | None

    def answers(self) -> list[Array]:
        """One for each piece; waits for the device."""
        if self.done is not None:
            self.done.synchronize()
        count = len(self.pieces)
        # Copied, since pinned memory is scarce, and to keep no rows of other proteins.
        if self.answered is None:
            return list(self.rows[:count].numpy().copy())
        return [self.rows[first:stop].numpy().copy() for first, stop in self.answered[:count].tolist()]


def compile_from(train: TrainConfig, device: torch.device) -> int | None:
    """Residues from which an engine compiles: none with ``train.compile=on``, None where it never pays."""
    if not compiles(train, device):
        return None
    return 0 if train.compile == "on" else COMPILE_FROM_RESIDUES


def _fits(shape: PackShape, num_pieces: int, num_tokens: int) -> bool:
    """Whether there is room, also for the padding, none of whose segments may be longer than a protein."""
    spare = -(-(shape.num_tokens - num_tokens) // shape.max_length)
    return num_tokens <= shape.num_tokens and num_pieces + spare <= shape.max_segments


def _assembled(
    proteins: Sequence[npt.NDArray[np.uint8]], pieces: list[_Piece], shape: PackShape | None
) -> tuple[HostPack, npt.NDArray[np.int64]]:
    """A pack, padded to ``shape``, and (S, 2) bounds of the rows that each piece answers for."""
    starts = np.concatenate([[0], np.cumsum([piece.num_tokens for piece in pieces])])
    used = int(starts[-1])
    num_tokens, num_segments = (shape.num_tokens, shape.max_segments) if shape else (used, len(pieces))
    tokens = np.full(num_tokens, PAD, dtype=np.uint8)
    answered = np.full((num_segments, 2), num_tokens, dtype=np.int64)
    for index, (piece, start) in enumerate(zip(pieces, starts.tolist(), strict=False)):
        window = piece.window
        tokens[start], tokens[start + piece.num_tokens - 1] = CLS, EOS
        residues = proteins[piece.protein][window.start : window.stop]
        tokens[start + 1 : start + 1 + len(residues)] = residues
        first = start + 1 + window.first - window.start  # behind CLS
        answered[index] = first, first + window.num_answered
    # All spare segments share the padding: attention costs the square of a segment's length.
    spare = num_segments - len(pieces)
    padding = used + (num_tokens - used) * np.arange(1, spare + 1) // max(spare, 1)
    cumulative = np.concatenate([starts, padding]).astype(np.int32)
    unused = np.zeros(num_segments, dtype=np.int64)
    return HostPack(tokens, cumulative, unused, unused), answered


def _joined(parts: list[tuple[Window, Array]], answer: Answer) -> Array:
    if len(parts) == 1:
        return parts[0][1]
    parts.sort(key=lambda part: part[0].start)
    if answer.each == "residue":
        return np.concatenate([part for _, part in parts])
    weights = [window.num_answered for window, _ in parts]
    mean: Array = np.average([part for _, part in parts], axis=0, weights=weights).astype(np.float32)
    return mean
