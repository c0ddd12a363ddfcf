"""Run proteins through a model in packs of similar lengths; the answers keep the order of the proteins.

On CUDA the host is one pack ahead of the device. While the device computes a pack, the host assembles the
next one and reads the answers of the previous one. For large inputs, the layers are compiled and the packs
have one of a few constant shapes.

Shapes: T tokens of a pack, S proteins or windows in it, L residues of a protein, C features.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from seqlm.proteins.alphabet import CLS, EOS, MASK, PAD, encode
from seqlm.proteins.model.masking import plain_pack
from seqlm.proteins.model.packed_model import Pack, PackedModel
from seqlm.training.config import TrainConfig
from seqlm.training.device_runtime import to_device
from seqlm.training.hardware import compiles
from seqlm.training.heartbeat import beat
from seqlm.training.packing import SPECIAL_TOKENS, HostPack, PackShape

from .poolings import POOLINGS, PackedRows, Pooling, Statistic

TOKENS_PER_PACK = {"cpu": 2048, "cuda": 65_536}
"""Default number of tokens per pack. On a CPU the activations of such a pack stay in the cache
(docs/inference.md has the figures). On a GPU the matrix products of the smallest model need that many
rows."""
COMPILE_FROM_RESIDUES = 20_000_000
"""Number of residues from which compilation pays. It is estimated, not measured: the graphs of a shape take
10 to 20 s, and compiled layers save about 0.3 of the time (1.4 times the rate of eager layers at 15B, in the
README of BioNeMo's esm2_native_te recipe). At the 300,000 residues/s that 650M may reach on one H100, 20
million residues take a minute, and 0.3 of that is one such compilation. Smaller models gain less per residue,
larger ones more."""
SHAPE_RATIO, SMALLEST_SHAPE = 4, 1024
"""Constant shapes are ``tokens_per_pack`` and quarters of it, down to ``SMALLEST_SHAPE`` tokens: four on a
GPU. Each shape costs a compilation. The last pack of a call, or a request to the server, is padded to at most
four times its size."""
TOKENS_PER_PROTEIN = 64
"""Tokens per segment of a constant shape. Packs of shorter proteins are not full. More segments would cost
more, because the attention kernel is launched for each one at the largest length."""

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Answer:
    """Kind of answer that the model computes."""

    compute: Callable[[Any, Pack], Tensor]
    """Returns fp32 rows of shape (T, C), or (S, C) for ``protein``."""
    each: Literal["protein", "pooled", "residue"]
    """One row of ``compute`` per protein, its rows pooled, or one row per residue."""
    poolings: tuple[Pooling, ...] = (POOLINGS["mean"],)
    """Poolings of ``pooled`` rows, side by side in the answer."""

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """Return the statistics that the poolings need of each window, each of them once."""
        return tuple(dict.fromkeys(one for pooling in self.poolings for one in pooling.statistics))


EMBEDDING = Answer(lambda model, pack: model.encode(pack), "pooled")
"""Hidden states after the last layer norm, averaged over the residues without CLS and EOS."""
RESIDUE_EMBEDDINGS = Answer(lambda model, pack: model.encode(pack), "residue")
PROTEIN_LOGITS = Answer(lambda model, pack: model(pack), "protein")
RESIDUE_LOGITS = Answer(lambda model, pack: model(pack), "residue")
MASKED_LOGITS = Answer(lambda model, pack: model.logits(pack, masked_rows(pack)), "protein")
"""Logits of a masked language model, (33,), for proteins in which one residue is ``MASK``."""


def masked_rows(pack: Pack) -> Tensor:
    """Return the places of the pack's masks in order, (S,), filled with 0."""
    return torch.nonzero_static(pack.tokens == MASK, size=len(pack.rows), fill_value=0)[:, 0]


@dataclass(frozen=True)
class Window:
    """Residues of a protein that the model reads, and those that it answers for."""

    start: int
    """First residue that the model reads."""
    stop: int
    first: int
    """First residue that it answers for."""
    last: int
    """Residue after the last one that it answers for."""
    protein: int = 0
    """Place of the protein among those of a call."""

    @property
    def num_tokens(self) -> int:
        return self.stop - self.start + SPECIAL_TOKENS

    @property
    def num_answered(self) -> int:
        return self.last - self.first


def windows(num_residues: int, max_residues: int, protein: int = 0) -> list[Window]:
    """Return evenly spread windows of ``max_residues`` that overlap by at least half; one if all fits.

    Each of two neighbours answers up to the middle of their overlap, so that every residue has as much
    context as possible on either side.
    """
    if num_residues <= max_residues:
        return [Window(0, num_residues, 0, num_residues, protein)]
    step = max(1, max_residues // 2)
    count = -(-(num_residues - max_residues) // step) + 1
    starts = np.linspace(0, num_residues - max_residues, count).round().astype(int).tolist()
    middles = [(here + max_residues + following) // 2 for here, following in itertools.pairwise(starts)]
    edges = [0, *middles, num_residues]
    return [
        Window(start, start + max_residues, first, last, protein)
        for start, first, last in zip(starts, edges[:-1], edges[1:], strict=True)
    ]


class Engine:
    """Model on one device.

    Args:
        model: model from ``load_model``. It is moved, and the matrices of its layers become ``dtype``.
        device: device of the computation.
        dtype: type of the matrix products. The residual stream, layer norms and answers are fp32.
        tokens_per_pack: tokens per pack; 0 means the default of the device.
        max_residues: longer proteins are read in windows of this many residues.
        compile_from: number of residues from which layers are compiled and packs have constant shapes; None
            means never. ``compile_from`` in this module returns a suitable value.
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
        self.model = model.to(device)
        for module in model.layers.modules():
            if isinstance(module, nn.Linear):
                module.to(dtype)  # once, instead of for every pack
        self.device, self.dtype, self.max_residues = device, dtype, max_residues
        self.tokens_per_pack = tokens_per_pack or TOKENS_PER_PACK[device.type]
        # In fp32, CUDA has no packed attention. The loop over the proteins has no constant shape.
        is_loop = device.type == "cuda" and dtype == torch.float32
        self._compile_from = None if is_loop else compile_from
        self.on_residues: Callable[[int], object] = lambda number: None
        """Called with the number of residues after each pack."""
        self._num_residues = 0
        self._shapes: list[PackShape] = []
        self._compiled: set[tuple[PackShape, Answer]] = set()

    def run(self, proteins: Sequence[npt.NDArray[np.uint8]], answer: Answer) -> list[Array]:
        """Return the answer for every protein, (C,) or (L, C).

        For a protein that is read in windows, each residue's row comes from the window that answers for it.
        Poolings are those of these rows, and the row of CLS is that of the first window.

        Args:
            proteins: token ids without CLS and EOS, at least one residue each.
            answer: kind of answer.
        """
        self._num_residues += sum(map(len, proteins))
        if self._compile_from is not None and self._num_residues >= self._compile_from:
            self._compile()
        pieces = [
            window
            for index, protein in enumerate(proteins)
            for window in windows(len(protein), self.max_residues, index)
        ]
        parts: list[list[tuple[Window, Array]]] = [[] for _ in proteins]
        running = (self._start(proteins, pack, self._shape_of(pack), answer) for pack in self._packs(pieces))
        # The second pack of a pair is started before the first one is read.
        for before, _ in itertools.pairwise(itertools.chain(running, [None])):
            assert before is not None
            for piece, part in zip(before.pieces, before.answers(), strict=True):
                parts[piece.protein].append((piece, part))
            self.on_residues(sum(piece.num_answered for piece in before.pieces))
        return [_joined(found, answer) for found in parts]

    @torch.no_grad()
    def encode(self, protein: npt.NDArray[np.uint8]) -> Tensor:
        """Return the hidden states of a protein that is read whole, with CLS and EOS, (L + 2, C)."""
        length = len(protein)
        host, _ = _assembled([protein], [Window(0, length, 0, length)], None)
        with self._autocast():
            return self.model.encode(plain_pack(host, length + SPECIAL_TOKENS, self.device))

    def warm_up(self, answer: Answer) -> list[Array]:
        """Run every constant shape once, so that no later call compiles; return a short protein's answers.

        Without constant shapes, one pack runs, because the first products of a process are slow.
        """
        if self._compile_from == 0:
            self._compile()
        protein = encode("A" * min(30, self.max_residues))
        (piece,) = windows(len(protein), self.max_residues)
        shapes: Sequence[PackShape | None] = self._shapes or [None]
        return [self._start([protein], [piece], shape, answer).answers()[0] for shape in shapes]

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.dtype == torch.bfloat16)

    def _compile(self) -> None:
        if self._shapes:
            return
        longest = self.max_residues + SPECIAL_TOKENS
        tokens = max(self.tokens_per_pack, longest)
        while tokens >= SMALLEST_SHAPE or not self._shapes:
            num_segments = max(1, tokens // TOKENS_PER_PROTEIN) + -(-tokens // longest)
            self._shapes.insert(0, PackShape(tokens, self.max_residues, num_segments))
            tokens //= SHAPE_RATIO
        # A shape has two graphs, because the last layer may compute only some rows.
        limit = torch._dynamo.config.recompile_limit
        torch._dynamo.config.recompile_limit = max(limit, 2 * len(self._shapes) + 2)
        for layer in self.model.layers:
            layer.compile(dynamic=False)

    def _packs(self, pieces: list[Window]) -> Iterator[list[Window]]:
        """Yield packs, longest proteins first, so that a lack of memory shows at once."""
        tokens = self.tokens_per_pack
        largest = self._shapes[-1] if self._shapes else PackShape(tokens, self.max_residues, tokens)
        pack: list[Window] = []
        used = 0
        for piece in sorted(pieces, key=lambda piece: piece.num_tokens, reverse=True):
            if pack and not _fits(largest, len(pack) + 1, used + piece.num_tokens):
                yield pack
                pack, used = [], 0
            pack.append(piece)
            used += piece.num_tokens
        if pack:
            yield pack

    def _shape_of(self, pack: list[Window]) -> PackShape | None:
        """Return the smallest constant shape that holds a pack; None if shapes are not constant."""
        num_tokens = sum(piece.num_tokens for piece in pack)
        return next((shape for shape in self._shapes if _fits(shape, len(pack), num_tokens)), None)

    @torch.no_grad()
    def _start(
        self,
        proteins: Sequence[npt.NDArray[np.uint8]],
        pieces: list[Window],
        shape: PackShape | None,
        answer: Answer,
    ) -> "_Running":
        """Hand a pack to the device, on CUDA without waiting for it.

        Copies in both directions use pinned memory of torch's allocator, which reuses it only after the event
        that it records after each copy.
        """
        beat("computing", slow=shape is not None and (shape, answer) not in self._compiled)
        host, answered = _assembled(proteins, pieces, shape)
        max_length = shape.max_length if shape else int(np.diff(host.cumulative).max())
        with self._autocast():
            rows = answer.compute(self.model, plain_pack(host, max_length, self.device))
        if answer.each == "pooled":
            bounds = to_device(torch.from_numpy(answered), self.device)
            firsts = to_device(torch.from_numpy(host.cumulative[:-1]), self.device)
            packed = PackedRows(rows, bounds, firsts)
            rows = torch.cat([statistic.of_windows(packed) for statistic in answer.statistics], dim=-1)
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
    """Pack that the device computes."""

    pieces: list[Window]
    answered: npt.NDArray[np.int64] | None
    """Bounds of each piece's rows, (S, 2); None if every piece has one row, in the order of the pieces."""
    rows: Tensor
    """Rows on the host, complete when ``done`` is."""
    done: torch.cuda.Event | None

    def answers(self) -> list[Array]:
        """Wait for the device, and return the answer of each piece."""
        if self.done is not None:
            self.done.synchronize()
        count = len(self.pieces)
        # Copied, since pinned memory is scarce, and to keep no rows of other proteins.
        if self.answered is None:
            return list(self.rows[:count].numpy().copy())
        return [self.rows[first:stop].numpy().copy() for first, stop in self.answered[:count].tolist()]


def compile_from(train: TrainConfig, device: torch.device) -> int | None:
    """Return the residues from which an engine compiles: 0 with ``train.compile=on``, None for never."""
    if not compiles(train, device):
        return None
    return 0 if train.compile == "on" else COMPILE_FROM_RESIDUES


def _fits(shape: PackShape, num_pieces: int, num_tokens: int) -> bool:
    """Return whether a pack fits with its padding, whose segments may not exceed the longest protein."""
    spare = -(-(shape.num_tokens - num_tokens) // shape.max_length)
    return num_tokens <= shape.num_tokens and num_pieces + spare <= shape.max_segments


def _assembled(
    proteins: Sequence[npt.NDArray[np.uint8]], pieces: list[Window], shape: PackShape | None
) -> tuple[HostPack, npt.NDArray[np.int64]]:
    """Return a pack, padded to ``shape``, and the bounds (S, 2) of the rows that each piece answers for."""
    starts = np.concatenate([[0], np.cumsum([piece.num_tokens for piece in pieces])])
    used = int(starts[-1])
    num_tokens, num_segments = (shape.num_tokens, shape.max_segments) if shape else (used, len(pieces))
    tokens = np.full(num_tokens, PAD, dtype=np.uint8)
    answered = np.full((num_segments, 2), num_tokens, dtype=np.int64)
    for index, (piece, start) in enumerate(zip(pieces, starts.tolist(), strict=False)):
        tokens[start], tokens[start + piece.num_tokens - 1] = CLS, EOS
        residues = proteins[piece.protein][piece.start : piece.stop]
        tokens[start + 1 : start + 1 + len(residues)] = residues
        first = start + 1 + piece.first - piece.start  # after CLS
        answered[index] = first, first + piece.num_answered
    # All spare segments share the padding, because attention costs the square of a segment's length.
    spare = num_segments - len(pieces)
    padding = used + (num_tokens - used) * np.arange(1, spare + 1) // max(spare, 1)
    cumulative = np.concatenate([starts, padding]).astype(np.int32)
    unused = np.zeros(num_segments, dtype=np.int64)
    return HostPack(tokens, cumulative, unused, unused), answered


def _joined(parts: list[tuple[Window, Array]], answer: Answer) -> Array:
    """Return a protein's answer from the rows of its windows."""
    if len(parts) == 1 and all(pooling.result is None for pooling in answer.poolings):
        return parts[0][1]
    parts.sort(key=lambda part: part[0].start)
    if answer.each == "residue":
        return np.concatenate([part for _, part in parts])
    weights = np.array([window.num_answered for window, _ in parts])
    of_windows = np.split(np.stack([part for _, part in parts]), len(answer.statistics), axis=1)
    joined = {
        statistic: statistic.joined(values, weights)
        for statistic, values in zip(answer.statistics, of_windows, strict=True)
    }
    vectors = []
    for pooling in answer.poolings:
        found = [joined[statistic] for statistic in pooling.statistics]
        vectors.append(pooling.result(*found) if pooling.result else found[0])
    return np.concatenate(vectors).astype(np.float32)
