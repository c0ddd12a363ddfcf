"""Stage 4: attention and whole layers, ours and their alternatives, on a pack of the data.

* ``attention``: product to queries, keys and values, rotation and attention, compiled with torch's varlen
  attention, and as our own operator. Random operands of the size that they have behind a layer norm.
* ``layer``: forward and backward pass of a layer of the trainer's model for one pack, with more and more
  kernels. It is the difference of steps of models with six and two layers, divided by four layers and by the
  packs of a step. Embedding, head and loss cancel out. An eighth of a layer's optimizer step remains.

Times are medians from idle device to idle device, in milliseconds.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.case import Case, Line, Settings
from benchmarks.contestant import synchronize
from benchmarks.figures import ceiling_of
from benchmarks.ours import model_of, new_trainer, offered_kernels, run_config
from seqlm.proteins.families.esm2.facts import ESM2
from seqlm.proteins.model.attention import packed_attention
from seqlm.proteins.model.kernels.attention import project_and_attend
from seqlm.proteins.model.kernels.tiles import attention_tiles
from seqlm.training.config import TrainConfig
from seqlm.training.kernels import KERNELS, listed
from seqlm.training.layered_model import Segments
from seqlm.training.processes import Processes, processes
from seqlm.training.trainer import Trainer

TOKENS_PER_PACK = {"8M": 65536, "650M": 16384, "35M": 65536, "150M": 32768}
REHEARSED_TOKENS = 2048
REHEARSED_WIDTH = 32
REHEARSED_HEAD_SIZE = 16
FEW_LAYERS = 2
"""The first and the last layer differ from the others, so both models have them."""
MANY_LAYERS = 6
PACKS_PER_STEP = 8
PASSES = 20
STEPS = 5
WARMUPS = 3
SECONDS = 30
"""Expected wall time, an estimate: up to ten models of few layers."""
WARM_SECONDS = 60
SEED = 0
TORCH = "torch"
OURS = "ours"


def cases(settings: Settings) -> list[Case]:
    if not settings.as_on_gpu:
        return []  # no kernel runs on a CPU
    return [
        Case(
            "attention",
            size,
            "all",
            f"tokens_per_pack={tokens}",
            seconds=SECONDS,
            warm_seconds=WARM_SECONDS,
            gigabytes=12,
        )
        for size, tokens in TOKENS_PER_PACK.items()
    ]


def run(case: Case, settings: Settings) -> dict[str, Any]:
    """Measure the operators, then the layers."""
    tokens = REHEARSED_TOKENS if settings.rehearsal else int(case.values["tokens_per_pack"])
    figures: dict[str, Any] = {"attention": {}, "layer": {}}
    with TemporaryDirectory() as folder, processes() as here:
        layers = _Layers(case, settings, tokens, Path(folder), here)
        pack = layers.pack()
        for name, operator in operators(case, settings, pack.segments, tokens).items():
            figures["attention"][name] = operator
            print(f"attention, {name}: {operator}", flush=True)
            settings.record(figures)
        for kernels in layers.kernel_sets():
            name = listed(kernels)
            milliseconds = layers.ms(kernels)
            if milliseconds is None:
                print(
                    f"layer, kernels {name}: left out, because not all of them are used", flush=True
                )
                continue
            figures["layer"][name] = milliseconds
            print(f"layer, kernels {name}: {milliseconds:.3f} ms", flush=True)
            settings.record(figures)
    return {**figures, "verdict": "measured"}


def operators(
    case: Case, settings: Settings, segments: Segments, num_tokens: int
) -> dict[str, dict[str, float]]:
    """Return the times of attention with its product, by contestant: the forward pass, and both passes."""
    device = settings.device
    width = REHEARSED_WIDTH if settings.rehearsal else ESM2.sizes[case.size].hidden
    head_size = REHEARSED_HEAD_SIZE
    if not settings.rehearsal:
        head_size = width // ESM2.sizes[case.size].heads
    generator = torch.Generator(device).manual_seed(SEED)

    def drawn(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator, device=device)

    x = drawn(num_tokens, width).bfloat16().requires_grad_()
    weight = (drawn(3 * width, width) * width**-0.5).bfloat16().requires_grad_()
    bias = drawn(3 * width).requires_grad_()
    upstream = drawn(num_tokens, width).bfloat16()
    angles = drawn(num_tokens, 1, head_size // 2)
    cos = angles.cos()
    sin = angles.sin()

    def by_torch() -> Tensor:
        joined = F.linear(x, weight, bias.to(x.dtype))
        parts = [part.unflatten(-1, (-1, head_size)) for part in joined.chunk(3, dim=-1)]
        return packed_attention(parts[0], parts[1], parts[2], cos, sin, segments).flatten(1)

    contestants: dict[str, Callable[[], Tensor]] = {TORCH: by_torch}
    if device.type == "cuda":
        contestants[TORCH] = torch.compile(by_torch, dynamic=False)
        tiles = attention_tiles(segments, num_tokens, head_size)
        contestants[OURS] = lambda: project_and_attend(x, weight, bias, cos, sin, tiles, head_size)
    else:
        print("attention, ours: left out, because Triton needs a GPU", flush=True)

    def both_passes(forward: Callable[[], Tensor]) -> None:
        torch.autograd.grad(forward(), (x, weight, bias), upstream)

    times: dict[str, dict[str, float]] = {}
    for name, forward in contestants.items():
        times[name] = {
            "forward_ms": _ms(partial(_without_gradient, forward), PASSES, settings),
            "both_ms": _ms(partial(both_passes, forward), PASSES, settings),
        }
    return times


def _without_gradient(forward: Callable[[], Tensor]) -> None:
    with torch.no_grad():
        forward()


class _Layers:
    """Models of few and of many layers, and a pack for their passes."""

    def __init__(
        self, case: Case, settings: Settings, tokens: int, folder: Path, here: Processes
    ) -> None:
        self._settings = settings
        self._here = here
        train = TrainConfig(
            tokens_per_pack=tokens,
            tokens_per_step=tokens * PACKS_PER_STEP,
            precision=ceiling_of(settings.device).precision,
        )
        self._configs = {
            number: run_config(
                model_of(case.size, settings, folder / str(number), layers=number),
                settings.data,
                train,
            )
            for number in (FEW_LAYERS, MANY_LAYERS)
        }

    def pack(self) -> Any:
        """Return the first pack of the data on the device."""
        trainer = self._trainer(FEW_LAYERS, frozenset())
        host = next(trainer.steps()).packs[0]
        pack = trainer.objective.pack(host, trainer.shape, trainer.runtime.packs_on)
        trainer.release()
        return pack

    def kernel_sets(self) -> list[frozenset[str]]:
        """Return no kernel, the first that the model offers, the first two, and so on."""
        trainer = self._trainer(FEW_LAYERS, frozenset())
        offered = [name for name in KERNELS if name in offered_kernels(trainer)]
        trainer.release()
        return [frozenset(offered[:number]) for number in range(len(offered) + 1)]

    def ms(self, kernels: frozenset[str]) -> float | None:
        """Return the time of a layer's forward and backward pass; None if the kernels cannot be used."""
        times: dict[int, float] = {}
        for number in (FEW_LAYERS, MANY_LAYERS):
            trainer = self._trainer(number, kernels)
            if trainer.kernels != kernels:
                trainer.release()
                return None
            step = next(trainer.steps())
            times[number] = _ms(partial(trainer.step, step), STEPS, self._settings)
            trainer.release()
        layers = MANY_LAYERS - FEW_LAYERS
        return (times[MANY_LAYERS] - times[FEW_LAYERS]) / layers / PACKS_PER_STEP

    def _trainer(self, number: int, kernels: frozenset[str]) -> Trainer:
        return new_trainer(self._configs[number], self._here, kernels)


def _ms(function: Callable[[], object], number: int, settings: Settings) -> float:
    """Return the median time of a number of calls in milliseconds."""
    times: list[float] = []
    for _ in range(1 if settings.is_short else WARMUPS):
        function()
    for _ in range(1 if settings.is_short else number):
        synchronize(settings.device)
        started = time.perf_counter()
        function()
        synchronize(settings.device)
        times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times)


def rows(lines: list[Line]) -> list[dict[str, str]]:
    """Return one row per contestant of each size."""
    found: list[dict[str, str]] = []
    for line in lines:
        for name, times in line["figures"]["attention"].items():
            found.append(
                {
                    "model": line["size"],
                    "part": f"attention, {name}",
                    "forward, ms": f"{times['forward_ms']:.3f}",
                    "forward and backward, ms": f"{times['both_ms']:.3f}",
                }
            )
        for kernels, milliseconds in line["figures"]["layer"].items():
            found.append(
                {
                    "model": line["size"],
                    "part": f"layer, kernels {kernels}",
                    "forward and backward, ms": f"{milliseconds:.3f}",
                }
            )
    return found
