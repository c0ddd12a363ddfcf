"""Times of tunings of the attention kernels on a GPU, from which those of ``kernels/tiles.py`` were chosen.

``python -m benchmarks.tunings 8M 35M 150M 650M --data PREPARED``

Each kernel runs alone on random operands, on a pack of the data. A line of JSON per size has the median times
in milliseconds, from launch to launch on the device, over rounds in which the tunings take turns.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from benchmarks.ours import MAX_RESIDUES, SEED
from seqlm.proteins.families.esm2.facts import ESM2
from seqlm.proteins.model.kernels.tiles import Tuning, tile_list
from seqlm.training.packing import SPECIAL_TOKENS
from seqlm.training.records import RecordSplit

TOKENS_PER_PACK = {"8M": 65536, "35M": 65536, "150M": 32768, "650M": 16384}
TUNINGS: Mapping[str, Sequence[Tuning]] = {
    "forward": (
        Tuning(64, 64, 4, 1),
        Tuning(64, 64, 4, 2),
        Tuning(64, 64, 4, 3),
        Tuning(64, 32, 4, 3),
        Tuning(64, 128, 4, 2),
        Tuning(128, 64, 4, 2),
        Tuning(128, 64, 8, 2),
        Tuning(128, 64, 8, 3),
        Tuning(128, 128, 8, 2),
    ),
    "of_queries": (
        Tuning(64, 64, 4, 1),
        Tuning(64, 64, 4, 2),
        Tuning(64, 64, 4, 3),
        Tuning(64, 32, 4, 3),
        Tuning(64, 128, 4, 2),
        Tuning(128, 32, 4, 2),
        Tuning(128, 64, 4, 2),
        Tuning(128, 64, 8, 2),
    ),
    "of_keys": (
        Tuning(64, 64, 4, 1),
        Tuning(64, 64, 4, 2),
        Tuning(64, 64, 4, 3),
        Tuning(32, 64, 4, 1),
        Tuning(32, 64, 4, 2),
        Tuning(32, 128, 4, 2),
        Tuning(32, 128, 8, 2),
        Tuning(64, 128, 8, 1),
        Tuning(64, 128, 8, 2),
        Tuning(128, 64, 4, 1),
        Tuning(128, 64, 8, 2),
    ),
}
"""Tunings that are tried, by the fields of ``Tilings``, in the order in which the kernels need each other.

The numbers are the queries and keys of a tile, the warps, and the stages.
"""
ROUNDS = 3
LAUNCHES = 15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("sizes", nargs="+", choices=TOKENS_PER_PACK, help="sizes of ESM-2")
    parser.add_argument(
        "--data", type=Path, default=Path("data/sample"), help="folder of prepared proteins"
    )
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no GPU was found; the kernels need one")
    for size in options.sizes:
        print(json.dumps(measured(size, options.data)), flush=True)


def measured(size: str, data: Path) -> dict[str, Any]:
    """Return the times of all tunings of a size, and the errors of those that the GPU cannot run."""
    operands = _Operands(size, data)
    times: dict[str, dict[str, float]] = {}
    errors: dict[str, str] = {}
    for kernel, tunings in TUNINGS.items():
        launches: dict[str, Callable[[], object]] = {}
        for tuning in tunings:
            launch = operands.launch(kernel, tuning)
            try:
                _ms(launch, 2)
            except Exception as error:  # of the compiler, or for lack of shared memory
                errors[f"{kernel} {named(tuning)}"] = f"{type(error).__name__}: {error}"
            else:
                launches[named(tuning)] = launch
        times[kernel] = _compared(launches)
    return {
        "size": size,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "ms": times,
        "rotation_ms": round(_ms(operands.rotate, LAUNCHES), 4),
        "torch_ms": operands.torchs_times(),
        "errors": errors,
    }


def named(tuning: Tuning) -> str:
    """Return the queries and keys of a tile, the warps and the stages as text."""
    return " ".join(map(str, astuple(tuning)))


def _compared(launches: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median times by tuning, the fastest first. Every second round has the reverse order."""
    found: dict[str, list[float]] = {name: [] for name in launches}
    for number in range(ROUNDS):
        order = list(launches) if number % 2 == 0 else list(launches)[::-1]
        for name in order:
            found[name].append(_ms(launches[name], LAUNCHES))
    medians = {name: round(statistics.median(times), 4) for name, times in found.items()}
    return {name: medians[name] for name in sorted(medians, key=medians.__getitem__)}


def _ms(launch: Callable[[], object], number: int) -> float:
    """Return the median time of a number of launches on the device."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(number + 1)]
    events[0].record()
    for event in events[1:]:
        launch()
        event.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in pairwise(events))


class _Operands:
    """Random operands of a layer's attention for one pack, and launches of the kernels on them.

    Args:
        size: published size of ESM-2.
        data: folder of prepared proteins, from which the pack has its lengths.
    """

    def __init__(self, size: str, data: Path) -> None:
        shape = ESM2.sizes[size]
        self._heads = shape.heads
        self._head_size = shape.hidden // shape.heads
        self._num_tokens = TOKENS_PER_PACK[size]
        generator = torch.Generator("cuda").manual_seed(SEED)

        def drawn(*sizes: int) -> Tensor:
            return torch.randn(sizes, generator=generator, device="cuda")

        self._qkv = drawn(self._num_tokens, 3 * shape.hidden).bfloat16()
        self._grad = drawn(self._num_tokens, shape.hidden).bfloat16()
        angles = drawn(self._num_tokens, 1, self._head_size // 2)
        self._cos = angles.cos()
        self._sin = angles.sin()
        self._context = torch.empty_like(self._grad)
        self._sums = torch.empty(self._heads, self._num_tokens, device="cuda")
        self._sums_and_deltas = torch.empty(self._heads, self._num_tokens, 2, device="cuda")
        self._dqkv = torch.empty_like(self._qkv)
        self._bounds = _bounds(data, self._num_tokens)

    def launch(self, kernel: str, tuning: Tuning) -> Callable[[], object]:
        """Return a function that launches one kernel."""
        from seqlm.proteins.model.kernels import attention_kernels  # needs Triton
        from seqlm.proteins.model.kernels.attention_launch import LOG2_E, padded

        rows = tuning.keys if kernel == "of_keys" else tuning.queries
        tiles = tile_list(self._bounds, self._num_tokens, rows)
        num_tiles = tiles.shape[1]
        columns = torch.empty(num_tiles, self._qkv.shape[1], device="cuda")
        scale = self._head_size**-0.5
        of_tiles = (tiles, num_tiles, self._num_tokens, scale * LOG2_E)
        angles = (self._cos, self._sin)
        first = (self._qkv, self._context, self._grad, self._sums, self._sums_and_deltas)
        arguments = {
            "forward": (self._qkv, self._context, self._sums, *of_tiles),
            "of_queries": (*first, self._dqkv, columns, *angles, *of_tiles, scale),
            "of_keys": (
                self._qkv,
                self._grad,
                self._sums_and_deltas,
                self._dqkv,
                columns,
                *angles,
                *of_tiles,
                scale,
            ),
        }[kernel]
        keeps = {"KEEPS": True} if kernel == "forward" else {"ADDS_COLUMNS": True}
        grid = (num_tiles * self._heads,)
        launched = getattr(attention_kernels, kernel)[grid]
        return lambda: launched(
            *arguments,
            HEADS=self._heads,
            SIZE=self._head_size,
            PADDED=padded(self._head_size),
            QUERIES=tuning.queries,
            KEYS=tuning.keys,
            num_warps=tuning.warps,
            num_stages=tuning.stages,
            **keeps,
        )

    def rotate(self) -> None:
        """Launch the rotation of queries and keys."""
        from seqlm.proteins.model.kernels.attention_launch import rotate_in_place

        rotate_in_place(self._qkv, self._cos, self._sin, self._head_size)

    def torchs_times(self) -> dict[str, float]:
        """Return the times of torch's attention, without rotation: the forward pass, and both passes."""
        parts = self._qkv.clone().unflatten(-1, (3, self._heads, self._head_size)).unbind(1)
        q, k, v = (part.contiguous().requires_grad_() for part in parts)
        upstream = self._grad.unflatten(-1, (self._heads, self._head_size))

        def forward() -> Tensor:
            longest = MAX_RESIDUES + SPECIAL_TOKENS
            found = varlen_attn(q, k, v, self._bounds, self._bounds, longest, longest)
            assert isinstance(found, Tensor)  # without further results
            return found

        def both() -> None:
            torch.autograd.grad(forward(), (q, k, v), upstream)

        both()
        return {
            "forward": round(_ms(forward, LAUNCHES), 4),
            "both": round(_ms(both, LAUNCHES), 4),
        }


def _bounds(data: Path, num_tokens: int) -> Tensor:
    """Return the bounds (S + 1,) of proteins that fill a pack, of which the last one is cut."""
    split = RecordSplit(data, "train")
    _, lengths = split.draw(0, split.num_units, seed=SEED, epoch=0)
    ends = np.cumsum(np.minimum(lengths, MAX_RESIDUES) + SPECIAL_TOKENS)
    inner = ends[ends < num_tokens]
    return torch.tensor([0, *inner.tolist(), num_tokens], dtype=torch.int32, device="cuda")


if __name__ == "__main__":
    main()
