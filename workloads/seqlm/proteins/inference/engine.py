"""Run proteins through a model in packs of similar lengths; the answers keep the order of the proteins.

On CUDA the host is one pack ahead of the device. While the device computes a pack, the host assembles the
next one and reads the answers of the previous one. For large inputs, the layers are compiled and the packs
have one of a few constant shapes.

Shapes: T tokens of a pack, S proteins or windows in it, L residues of a protein, C features.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from seqlm.proteins.alphabet import CLS, EOS, MASK, PAD, encode
from seqlm.proteins.model.masking import plain_pack
from seqlm.proteins.model.packed_model import Pack, PackedModel
from seqlm.training.config import KernelMode, TrainConfig
from seqlm.training.device_runtime import to_device
from seqlm.training.hardware import compiles
from seqlm.training.heartbeat import beat
from seqlm.training.kernels import agreed, selected
from seqlm.training.packing import SPECIAL_TOKENS, HostPack, PackShape
from seqlm.training.processes import Processes
from seqlm.training.scoring import NotFiniteError, check_finite

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
SHAPE_RATIO = 4
"""Ratio of two neighbouring constant shapes. The largest one is ``tokens_per_pack``; on a GPU there are four.
Each shape costs a compilation. The last pack of a call, or a request to the server, is padded to at most four
times its size."""
SMALLEST_SHAPE = 1024
"""Smallest number of tokens of a constant shape."""
GRAPHS_PER_SHAPE = 2
"""Graphs that are compiled for a shape, because the last layer may compute only some rows."""
TOKENS_PER_PROTEIN = 64
"""Tokens per segment of a constant shape. Packs of shorter proteins are not full. More segments would cost
more, because the attention kernel is launched for each one at the largest length."""
WARM_UP_RESIDUES = 30
"""Length of the protein that warms up the model."""
COMPARED_RESIDUES = (1, 30, 61, 62, 63, 125, 126, 127, 254, 510, 1022)
"""Lengths of the proteins with which kernels are compared with torch's, before CLS and EOS."""

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Answer:
    """Kind of answer that the model computes."""

    compute: Callable[[Any, Pack], Tensor]
    """Function of the model and a pack. It returns fp32 rows, (S, C) for ``protein`` and else (T, C)."""
    each: Literal["protein", "pooled", "residue"]
    """Rows of an answer: the protein's only row, its rows pooled into one, or one row per residue."""
    poolings: tuple[Pooling, ...] = (POOLINGS["mean"],)
    """Poolings of ``pooled`` rows. Their vectors are side by side in the answer."""

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """Statistics that the poolings need of each window, each of them once."""
        needed = itertools.chain.from_iterable(pooling.statistics for pooling in self.poolings)
        return tuple(dict.fromkeys(needed))


EMBEDDING = Answer(compute=lambda model, pack: model.encode(pack), each="pooled")
"""Hidden states after the last layer norm, averaged over the residues without CLS and EOS."""
RESIDUE_EMBEDDINGS = Answer(compute=lambda model, pack: model.encode(pack), each="residue")
PROTEIN_LOGITS = Answer(compute=lambda model, pack: model(pack), each="protein")
RESIDUE_LOGITS = Answer(compute=lambda model, pack: model(pack), each="residue")
MASKED_LOGITS = Answer(
    compute=lambda model, pack: model.logits(pack, masked_rows(pack)),
    each="protein",
)
"""Logits of a masked language model, (33,), for proteins in which one residue is ``MASK``."""
TOKEN_LOGITS = Answer(compute=lambda model, pack: model.logits(pack), each="residue")
"""Logits of a masked language model at each residue, (L, 33)."""


def masked_rows(pack: Pack) -> Tensor:
    """Return the places of the pack's masks in order, (S,), filled with 0."""
    return torch.nonzero_static(pack.tokens == MASK, size=len(pack.rows), fill_value=0)[:, 0]


class Span(Protocol):
    """Consecutive residues of a protein, such as a chain of several that are read as one."""

    @property
    def start(self) -> int:
        """First residue."""

    @property
    def stop(self) -> int:
        """Residue after the last one."""


class Part(NamedTuple):
    """Consecutive residues of a protein."""

    start: int
    """First residue."""
    stop: int
    """Residue after the last one."""


@dataclass(frozen=True)
class Window:
    """Residues of a protein that the model reads together, and those of them that get their answer here."""

    start: int
    """First residue that the model reads."""
    stop: int
    """Residue after the last one that the model reads."""
    first: int
    """First residue that gets its answer from this window."""
    last: int
    """Residue after the last one that gets its answer from this window."""
    protein: int = 0
    """Index of the protein among those of a call."""
    parts: tuple[Part, ...] | None = None
    """Residues from ``first`` to ``last`` that get an answer; None for all of them."""

    @property
    def num_tokens(self) -> int:
        return self.stop - self.start + SPECIAL_TOKENS

    @property
    def answered(self) -> tuple[Part, ...]:
        """Residues that get their answer here."""
        return (Part(self.first, self.last),) if self.parts is None else self.parts

    @property
    def num_answered(self) -> int:
        """Number of residues that get their answer here."""
        return sum(part.stop - part.start for part in self.answered)

    def within(self, spans: Sequence[Span]) -> "Window":
        """Return the window with answers for residues in these spans only."""
        parts = []
        for span in spans:
            start = max(span.start, self.first)
            stop = min(span.stop, self.last)
            if start < stop:
                parts.append(Part(start, stop))
        return replace(self, parts=tuple(parts))

    def by_part(self) -> "list[Window]":
        """Return a window for each of its parts."""
        if self.parts is None:
            return [self]
        return [
            replace(self, first=part.start, last=part.stop, parts=None) for part in self.answered
        ]


def windows(num_residues: int, max_residues: int, protein: int = 0) -> list[Window]:
    """Return evenly spread windows of ``max_residues`` that overlap by at least half, or a single one.

    The answers of two neighbours meet in the middle of their overlap, so that every residue has as much
    context as possible on either side.
    """
    if num_residues <= max_residues:
        return [Window(0, num_residues, 0, num_residues, protein)]
    step = max(1, max_residues // 2)
    count = math.ceil((num_residues - max_residues) / step) + 1
    starts = np.linspace(0, num_residues - max_residues, count).round().astype(int).tolist()
    middles = [
        (here + max_residues + following) // 2 for here, following in itertools.pairwise(starts)
    ]
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
        tokens_per_pack: number of tokens per pack; 0 means the default of the device.
        max_residues: number of residues in a window, in which longer proteins are read.
        compile_from: number of residues from which layers are compiled and packs have constant shapes; None
            means never. ``compile_from`` in this module returns a suitable value.
        kernels: value of ``inference.kernels``, or the names of the kernels to use.
        here: this process, if every process of a group makes an engine. All of them use the same kernels.
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
        kernels: KernelMode | frozenset[str] = "auto",
        here: Processes | None = None,
    ) -> None:
        self.model = model.to(device)
        for module in model.layers.modules():
            if isinstance(module, nn.Linear):
                module.to(dtype)  # once, instead of for every pack
        self.device = device
        self.dtype = dtype
        self.max_residues = max_residues
        self.tokens_per_pack = tokens_per_pack or TOKENS_PER_PACK[device.type]
        # In fp32, CUDA has no packed attention. The loop over the proteins has no constant shape.
        loops_over_proteins = device.type == "cuda" and dtype == torch.float32
        self._compile_from = None if loops_over_proteins else compile_from
        self.on_residues: Callable[[int], object] = lambda number: None
        """Function that is called after each pack with the number of its residues."""
        self._num_residues = 0
        self._shapes: list[PackShape] = []
        """Constant shapes, the smallest first; empty until the layers are compiled."""
        self._compiled: set[tuple[PackShape, Answer]] = set()
        self.kernels = self._usable_kernels(kernels, here)
        """Names of the kernels in use."""
        model.select_kernels(self.kernels)

    @torch.no_grad()
    def _usable_kernels(
        self, wanted: KernelMode | frozenset[str], here: Processes | None
    ) -> frozenset[str]:
        """Return the kernels to use, without those that fail the comparison with torch's."""
        if isinstance(wanted, str):
            offered = self.model.kernels
            wanted = selected(wanted, offered, self.device, self.dtype, for_inference=True)
        if not wanted:
            return wanted
        longest = min(self.max_residues, COMPARED_RESIDUES[-1])
        lengths = [length for length in COMPARED_RESIDUES if length <= longest]
        proteins = [encode("A" * length) for length in lengths]
        pieces = [Window(0, length, 0, length, index) for index, length in enumerate(lengths)]
        host = _assemble(proteins, pieces, None).pack
        pack = plain_pack(host, longest + SPECIAL_TOKENS, self.device)
        problems = agreed(self.model.kernel_problems(wanted, pack), here)
        return wanted - problems.keys()

    def run(
        self,
        proteins: Sequence[npt.NDArray[np.uint8]],
        answer: Answer,
        spans: Sequence[Sequence[Span]] | None = None,
    ) -> list[Array]:
        """Return the answer for every protein, (C,) or (L, C).

        If a protein is read in windows, each residue's row comes from the window that answers it. These
        rows are pooled. The row of CLS is that of the first window.

        Args:
            proteins: token ids without CLS and EOS, at least one residue each.
            answer: kind of answer.
            spans: residues of each protein that get an answer, such as those of its chains without the
                linkers between them, or none for all. The model reads the others, too.

        Raises:
            NotFiniteError: if a number of an answer is infinite or NaN.
        """
        self._num_residues += sum(map(len, proteins))
        if self._compile_from is not None and self._num_residues >= self._compile_from:
            self._compile()
        pieces: list[Window] = []
        for index, protein in enumerate(proteins):
            found = windows(len(protein), self.max_residues, index)
            if spans is not None and spans[index]:
                within = [window.within(spans[index]) for window in found]
                found = [window for window in within if window.parts]
            pieces += found
        answers: list[list[_WindowAnswer]] = [[] for _ in proteins]
        previous: _Running | None = None
        for pack in self._packs(pieces):
            # A pack is started before the previous one is read, so that the device always has work.
            started = self._start(proteins, pack, self._shape_of(pack), answer)
            if previous is not None:
                self._read(previous, answers)
            previous = started
        if previous is not None:
            self._read(previous, answers)
        return [_joined(found, answer) for found in answers]

    def _read(self, pack: "_Running", answers: list[list["_WindowAnswer"]]) -> None:
        """Wait for a pack, and add the answers of its windows to those of their proteins."""
        for window, rows in zip(pack.windows, pack.answers(), strict=True):
            answers[window.protein].append(_WindowAnswer(window, rows))
        self.on_residues(sum(window.num_answered for window in pack.windows))

    @torch.no_grad()
    def encode(self, protein: npt.NDArray[np.uint8]) -> Tensor:
        """Return the hidden states of a protein that is read whole, with CLS and EOS, (L + 2, C).

        Raises:
            NotFiniteError: if a number is infinite or NaN.
        """
        length = len(protein)
        whole = Window(start=0, stop=length, first=0, last=length)
        assembled = _assemble([protein], [whole], None)
        with self._autocast():
            states = self.model.encode(
                plain_pack(assembled.pack, length + SPECIAL_TOKENS, self.device)
            )
        if not states.isfinite().all():
            raise NotFiniteError
        return states

    def warm_up(self, answer: Answer) -> list[Array]:
        """Run every constant shape once, so that no later call compiles; return a short protein's answers.

        Without constant shapes, one pack runs, because the first matrix products of a process are slow.

        Raises:
            NotFiniteError: if a number of an answer is infinite or NaN.
        """
        if self._compile_from == 0:
            self._compile()
        protein = encode("A" * min(WARM_UP_RESIDUES, self.max_residues))
        [window] = windows(len(protein), self.max_residues)
        shapes: Sequence[PackShape | None] = self._shapes or [None]
        return [self._start([protein], [window], shape, answer).answers()[0] for shape in shapes]

    def _autocast(self) -> torch.autocast:
        return torch.autocast(
            self.device.type, dtype=torch.bfloat16, enabled=self.dtype == torch.bfloat16
        )

    def _compile(self) -> None:
        if self._shapes:
            return
        longest = self.max_residues + SPECIAL_TOKENS
        tokens = max(self.tokens_per_pack, longest)
        while tokens >= SMALLEST_SHAPE or not self._shapes:
            num_proteins = max(1, tokens // TOKENS_PER_PROTEIN)
            num_of_padding = math.ceil(tokens / longest)
            self._shapes.insert(
                0, PackShape(tokens, self.max_residues, num_proteins + num_of_padding)
            )
            tokens //= SHAPE_RATIO
        # By default, torch stops compiling after a few graphs of a function.
        num_graphs = GRAPHS_PER_SHAPE * (len(self._shapes) + 1)
        limit = torch._dynamo.config.recompile_limit
        torch._dynamo.config.recompile_limit = max(limit, num_graphs)
        for layer in self.model.layers:
            layer.compile(dynamic=False)

    def _packs(self, pieces: list[Window]) -> Iterator[list[Window]]:
        """Yield packs, longest windows first, so that a lack of memory shows at once."""
        if self._shapes:
            largest = self._shapes[-1]
        else:
            tokens = self.tokens_per_pack
            largest = PackShape(tokens, self.max_residues, max_segments=tokens)
        pack: list[Window] = []
        num_tokens = 0
        for piece in sorted(pieces, key=lambda piece: piece.num_tokens, reverse=True):
            if pack and not _fits(largest, len(pack) + 1, num_tokens + piece.num_tokens):
                yield pack
                pack = []
                num_tokens = 0
            pack.append(piece)
            num_tokens += piece.num_tokens
        if pack:
            yield pack

    def _shape_of(self, pack: list[Window]) -> PackShape | None:
        """Return the smallest constant shape that holds a pack; None if shapes are not constant."""
        num_tokens = sum(piece.num_tokens for piece in pack)
        for shape in self._shapes:
            if _fits(shape, len(pack), num_tokens):
                return shape
        return None

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
        host, answered, owners = _assemble(proteins, pieces, shape)
        max_length = shape.max_length if shape else int(np.diff(host.cumulative).max())
        with self._autocast():
            rows = answer.compute(self.model, plain_pack(host, max_length, self.device))
        if answer.each == "pooled":
            bounds = to_device(torch.from_numpy(answered), self.device)
            cls_places = to_device(torch.from_numpy(host.cumulative[:-1][owners]), self.device)
            packed = PackedRows(rows, bounds, cls_places)
            rows = torch.cat(
                [statistic.of_windows(packed) for statistic in answer.statistics], dim=-1
            )
        rows = rows.to("cpu", non_blocking=True)
        done = None
        if self.device.type == "cuda":
            done = torch.cuda.Event()
            done.record(torch.cuda.current_stream(self.device))
        if shape:
            self._compiled.add((shape, answer))
        of_answers = pieces
        if answer.each != "protein":
            of_answers = [window for piece in pieces for window in piece.by_part()]
        bounds_of_rows = answered if answer.each == "residue" else None
        return _Running(of_answers, bounds_of_rows, rows, done)


@dataclass(frozen=True)
class _Running:
    """Pack that the device computes."""

    windows: list[Window]
    """Windows of the answers: those of the pack, or one for each part of them, in their order."""
    answered: npt.NDArray[np.int64] | None
    """Bounds of the rows of each answer, (A, 2); None if every answer has one row."""
    rows: Tensor
    """Rows on the host, complete when ``done`` is."""
    done: torch.cuda.Event | None
    """End of the copy to the host; None on devices that copy at once."""

    def answers(self) -> list[Array]:
        """Wait for the device, and return the rows of each answer.

        Raises:
            NotFiniteError: if a number is infinite or NaN.
        """
        if self.done is not None:
            self.done.synchronize()
        count = len(self.windows)
        num_rows = count if self.answered is None else int(self.answered[count - 1, 1])
        check_finite(self.rows[:num_rows].numpy())
        # The rows are copied, because pinned memory is scarce and would hold those of other proteins, too.
        if self.answered is None:
            return list(self.rows[:count].numpy().copy())
        return [
            self.rows[first:stop].numpy().copy() for first, stop in self.answered[:count].tolist()
        ]


class _WindowAnswer(NamedTuple):
    window: Window
    rows: Array


class _Assembled(NamedTuple):
    """Windows of proteins as one pack on the host."""

    pack: HostPack
    answered: npt.NDArray[np.int64]
    """Bounds of the rows of each part of a window that get their answer from it, (A, 2)."""
    owners: npt.NDArray[np.int64]
    """Segment of each part, (A,)."""


def compile_from(train: TrainConfig, device: torch.device) -> int | None:
    """Return the residues from which an engine compiles: 0 with ``train.compile=on``, None for never."""
    if not compiles(train, device):
        return None
    return 0 if train.compile == "on" else COMPILE_FROM_RESIDUES


def _fits(shape: PackShape, num_pieces: int, num_tokens: int) -> bool:
    """Return whether a pack fits with its padding, whose segments may not exceed the longest protein."""
    num_of_padding = math.ceil((shape.num_tokens - num_tokens) / shape.max_length)
    return num_tokens <= shape.num_tokens and num_pieces + num_of_padding <= shape.max_segments


def _assemble(
    proteins: Sequence[npt.NDArray[np.uint8]], pieces: list[Window], shape: PackShape | None
) -> _Assembled:
    """Return windows of the proteins as one pack, padded to ``shape``."""
    starts = np.concatenate([[0], np.cumsum([piece.num_tokens for piece in pieces])])
    num_used = int(starts[-1])
    num_tokens = shape.num_tokens if shape else num_used
    num_segments = shape.max_segments if shape else len(pieces)
    tokens = np.full(num_tokens, PAD, dtype=np.uint8)
    answered: list[tuple[int, int]] = []
    owners: list[int] = []
    for index, (piece, start) in enumerate(zip(pieces, starts.tolist(), strict=False)):
        residues = proteins[piece.protein][piece.start : piece.stop]
        first_residue = start + 1
        tokens[start] = CLS
        tokens[first_residue : first_residue + len(residues)] = residues
        tokens[start + piece.num_tokens - 1] = EOS
        shift = first_residue - piece.start
        answered += [(part.start + shift, part.stop + shift) for part in piece.answered]
        owners += [index] * len(piece.answered)
    # All spare segments share the padding, because attention costs the square of a segment's length.
    num_spare = num_segments - len(pieces)
    answered += [(num_tokens, num_tokens)] * num_spare
    owners += range(len(pieces), num_segments)
    padding = num_used + (num_tokens - num_used) * np.arange(1, num_spare + 1) // max(num_spare, 1)
    cumulative = np.concatenate([starts, padding]).astype(np.int32)
    unused = np.zeros(num_segments, dtype=np.int64)
    pack = HostPack(tokens, cumulative, keys=unused, starts=unused)
    return _Assembled(pack, np.array(answered).reshape(-1, 2), np.array(owners))


def _joined(answers: list[_WindowAnswer], answer: Answer) -> Array:
    """Return a protein's answer from those of its windows."""
    if len(answers) == 1 and all(pooling.result is None for pooling in answer.poolings):
        return answers[0].rows
    answers.sort(key=lambda one: (one.window.start, one.window.first))
    if answer.each == "residue":
        return np.concatenate([one.rows for one in answers])
    weights = np.array([one.window.num_answered for one in answers])
    of_windows = np.split(np.stack([one.rows for one in answers]), len(answer.statistics), axis=1)
    joined = {
        statistic: statistic.joined(values, weights)
        for statistic, values in zip(answer.statistics, of_windows, strict=True)
    }
    vectors = []
    for pooling in answer.poolings:
        found = [joined[statistic] for statistic in pooling.statistics]
        vectors.append(pooling.result(*found) if pooling.result else found[0])
    return np.concatenate(vectors).astype(np.float32)
