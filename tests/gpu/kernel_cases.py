"""Kernels of this project against exact arithmetic, torch's kernels and themselves.

On a GPU the tests call these functions directly. In a rehearsal a process calls them in which Triton's
interpreter runs the kernels, so arguments and results are numbers and records.

Shapes: T tokens, C channels, H heads, D head size.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.utils import counters
from torch.optim import SGD

from seqlm.proteins.alphabet import MASK
from seqlm.proteins.inference.engine import (
    EMBEDDING,
    MASKED_LOGITS,
    RESIDUE_EMBEDDINGS,
    Answer,
    Engine,
)
from seqlm.proteins.model.attention import packed_attention
from seqlm.proteins.model.kernels.attention import attend, project_and_attend
from seqlm.proteins.model.kernels.gelu import gelu, product_gelu
from seqlm.proteins.model.kernels.products import CastMap, product
from seqlm.proteins.model.kernels.tiles import attention_tiles
from seqlm.proteins.model.packed_model import Pack
from seqlm.training.kernels import ACTIVATION, ATTENTION, PRODUCTS
from seqlm.training.layered_model import Segments
from seqlm.training.step.gradients import FlatGradients
from tests.gpu.dense_attention import dense, drawn_segments, segment_errors, turned
from tests.gpu.drawn import (
    DrawnSplit,
    Scale,
    difference,
    drawn_config,
    empty_pack,
    gradients,
    masked_packs,
    packed_model,
    proteins_of,
    two_layers,
    under_autocast,
    worst_difference,
    worst_protein,
)

OPERANDS = ("queries", "keys", "values")
OF_A_MODEL = frozenset({ATTENTION, PRODUCTS, ACTIVATION})
"""Kernels within a model. A CUDA graph is the trainer's (``test_gpu_steps.py``)."""
NONE: frozenset[str] = frozenset()
NUM_PASSES = 4
"""Micro-batches whose gradients are added up."""
SPREAD = 3.0
"""Standard deviation of the inputs of GELUs, so that both tails have some."""
ANSWERS: Mapping[str, Answer] = {
    "embeddings": EMBEDDING,
    "residues": RESIDUE_EMBEDDINGS,
    "logits": MASKED_LOGITS,
}


@dataclass(frozen=True)
class Compared:
    """Errors of the same figure by the kernels and by torch's, both against fp32."""

    ours: float
    torchs: float


class _Drawn:
    """Random operands of attention in bf16 and all that the operators take beside them.

    Args:
        head_size: D.
        segments: boundaries of the proteins.
        heads: H.
    """

    def __init__(self, head_size: int, segments: Segments, heads: int) -> None:
        self.head_size = head_size
        self.heads = heads
        self.segments = segments
        self.device = segments.cumulative.device
        self.bounds: list[int] = segments.cumulative.tolist()
        self.num_tokens = self.bounds[-1]
        self.generator = torch.Generator(self.device).manual_seed(0)
        self.angles = (
            2
            * torch.pi
            * torch.rand(
                (self.num_tokens, 1, head_size // 2), generator=self.generator, device=self.device
            )
        )
        self.cos = self.angles.cos()
        self.sin = self.angles.sin()
        self.upstream = self.normal(self.num_tokens, heads * head_size)
        self.operands = [self.normal(self.num_tokens, heads * head_size) for _ in OPERANDS]

    def normal(self, *sizes: int) -> Tensor:
        """Return bf16 numbers of a standard normal distribution."""
        drawn = torch.randn(sizes, generator=self.generator, device=self.device)
        return drawn.bfloat16()

    def ours(self, operands: Sequence[Tensor], segments: Segments | None = None) -> Tensor:
        """Return the attention (T, C) of operands (T, C) by the kernels."""
        tiles = attention_tiles(segments or self.segments, self.num_tokens, self.head_size)
        return attend(*operands, self.cos, self.sin, tiles, self.head_size)

    def projected(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the attention (T, C) of the queries, keys and values of ``x`` by the kernels."""
        tiles = attention_tiles(self.segments, self.num_tokens, self.head_size)
        return project_and_attend(x, weight, bias, self.cos, self.sin, tiles, self.head_size)

    def torchs(self, operands: Sequence[Tensor]) -> Tensor:
        """Return the same by torch's kernel."""
        parts = [one.unflatten(-1, (-1, self.head_size)) for one in operands]
        return packed_attention(*parts, self.cos, self.sin, self.segments).flatten(1)

    def exact(self, operands: Sequence[Tensor]) -> Tensor:
        """Return the same as one dense product in the type of the operands."""
        q, k, v = (one.unflatten(-1, (-1, self.head_size)) for one in operands)
        q = turned(q, self.angles)
        k = turned(k, self.angles)
        return dense(q, k, v, self.segments.cumulative).flatten(1)

    def worst(self, found: Tensor, expected: Tensor) -> float:
        """Return the largest error of a protein."""
        assert torch.isfinite(found).all()
        return segment_errors(found.detach(), expected.detach(), self.bounds)


def _leaves(tensors: Sequence[Tensor], dtype: torch.dtype | None = None) -> list[Tensor]:
    """Return copies of tensors, in another type if one is given, that get gradients."""
    return [one.detach().to(dtype or one.dtype, copy=True).requires_grad_() for one in tensors]


def attention_errors(head_size: int, scale: Scale, device: torch.device) -> dict[str, float]:
    """Return the largest error of a protein against dense attention in fp32, for output and gradients."""
    drawn = _Drawn(head_size, drawn_segments(scale, device), scale.heads)
    operands = _leaves(drawn.operands)
    exact = _leaves(drawn.operands, torch.float32)
    found = drawn.ours(operands)
    expected = drawn.exact(exact)
    found.backward(drawn.upstream)
    expected.backward(drawn.upstream.float())
    errors = {"output": drawn.worst(found, expected)}
    for name, a, b in zip(OPERANDS, operands, exact, strict=True):
        assert a.grad is not None and b.grad is not None
        errors[f"gradient of {name}"] = drawn.worst(a.grad, b.grad)
    return errors


def differences_from_torch(head_size: int, scale: Scale, device: torch.device) -> dict[str, float]:
    """Return the relative differences from torch's kernel on a pack of proteins."""
    (pack,) = masked_packs(scale, device, 1)
    drawn = _Drawn(head_size, pack.segments, scale.heads)
    operands = _leaves(drawn.operands)
    others = _leaves(drawn.operands)
    found = drawn.ours(operands)
    expected = drawn.torchs(others)
    found.backward(drawn.upstream)
    expected.backward(drawn.upstream)
    differences = {"output": difference(found.detach(), expected.detach())}
    for name, a, b in zip(OPERANDS, operands, others, strict=True):
        assert a.grad is not None and b.grad is not None
        differences[f"gradient of {name}"] = difference(a.grad, b.grad)
    return differences


def _projection(drawn: _Drawn) -> list[Tensor]:
    """Return the input (T, C), and weights and biases of the product to queries, keys and values."""
    width = drawn.heads * drawn.head_size
    weight = drawn.normal(3 * width, width) * width**-0.5
    bias = 0.1 * drawn.normal(3 * width).float()
    return [drawn.normal(drawn.num_tokens, width), weight, bias]


def projection_errors(head_size: int, scale: Scale, device: torch.device) -> dict[str, float]:
    """Return the errors of the product, the rotation and the attention as one operator.

    The biases' gradient is compared as a whole: the exact one of the keys is almost 0.
    """
    drawn = _Drawn(head_size, drawn_segments(scale, device), scale.heads)
    given = _projection(drawn)
    operands = _leaves(given)
    exact = _leaves(given, torch.float32)
    found = drawn.projected(*operands)
    expected = drawn.exact(F.linear(*exact).chunk(3, dim=-1))
    found.backward(drawn.upstream)
    expected.backward(drawn.upstream.float())
    (x, weight, bias), (exact_x, exact_weight, exact_bias) = (
        [one.grad for one in leaves] for leaves in (operands, exact)
    )
    assert x is not None and weight is not None and bias is not None
    assert exact_x is not None and exact_weight is not None and exact_bias is not None
    errors = {
        "output": drawn.worst(found, expected),
        "gradient of the input": difference(x, exact_x),
        "gradient of the biases": difference(bias, exact_bias),
    }
    for name, a, b in zip(OPERANDS, weight.chunk(3), exact_weight.chunk(3), strict=True):
        errors[f"gradient of the weights of {name}"] = difference(a, b)
    return errors


def changed_numbers(head_size: int, scale: Scale, device: torch.device) -> dict[str, int]:
    """Return how many numbers two equal passes over a pack differ in."""
    (pack,) = masked_packs(scale, device, 1)
    drawn = _Drawn(head_size, pack.segments, scale.heads)
    projection = _projection(drawn)

    def results() -> dict[str, Tensor]:
        operands = _leaves(drawn.operands)
        x, weight, bias = _leaves(projection)
        output = drawn.ours(operands)
        output.backward(drawn.upstream)
        drawn.projected(x, weight, bias).backward(drawn.upstream)
        found = {"output": output.detach()}
        for name, one in zip((*OPERANDS, "biases"), (*operands, bias), strict=True):
            assert one.grad is not None
            found[f"gradient of {name}"] = one.grad
        return found

    first = results()
    second = results()
    return {name: int((second[name] != first[name]).sum()) for name in first}


def changed_by_empty_segments(
    head_size: int, scale: Scale, device: torch.device
) -> dict[str, float]:
    """Return the relative changes by empty segments between the others and behind them."""
    plain = drawn_segments(scale, device)
    drawn = _Drawn(head_size, plain, scale.heads)
    bounds = plain.cumulative
    more = Segments(torch.cat([bounds[:1], bounds[:4], bounds[3:], bounds[-1:]]), plain.max_length)
    fewer = Segments(bounds[:-2], plain.max_length)
    assert (more.cumulative.diff() == 0).sum() == 5
    assert (fewer.cumulative.diff() > 0).all()
    found: list[dict[str, Tensor]] = []
    for segments in (more, fewer):
        operands = _leaves(drawn.operands)
        output = drawn.ours(operands, segments)
        output.backward(drawn.upstream)
        tensors = {"output": output.detach()}
        for name, one in zip(OPERANDS, operands, strict=True):
            assert one.grad is not None
            tensors[f"gradient of {name}"] = one.grad
        found.append(tensors)
    with_empty, without = found
    return {name: difference(with_empty[name], without[name]) for name in without}


def product_errors(scale: Scale, device: torch.device, *, has_gelu: bool) -> dict[str, float]:
    """Return the errors of a product with cast weights against fp32, added up over micro-batches."""
    config = drawn_config(scale)
    num_inputs = config.hidden_size
    num_outputs = config.intermediate_size
    generator = torch.Generator(device).manual_seed(0)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator, device=device).bfloat16()

    weight = normal(num_outputs, num_inputs) * num_inputs**-0.5
    bias = normal(num_outputs)
    of_weight = torch.zeros_like(weight, dtype=torch.float32)
    of_bias = torch.zeros_like(bias, dtype=torch.float32)
    cast = CastMap(weight, bias, of_weight, of_bias)
    exact_weight, exact_bias = _leaves([weight, bias], torch.float32)
    ours: Callable[[Tensor, CastMap], Tensor] = product_gelu if has_gelu else product
    errors: dict[str, float] = {}
    for _ in range(NUM_PASSES):
        drawn = normal(scale.tokens, num_inputs)
        upstream = normal(scale.tokens, num_outputs)
        (x,) = _leaves([drawn])
        (exact_x,) = _leaves([drawn], torch.float32)
        found = ours(x, cast)
        found.backward(upstream)
        expected = F.linear(exact_x, exact_weight, exact_bias)
        if has_gelu:
            expected = F.gelu(expected)
        expected.backward(upstream.float())
        assert x.grad is not None and exact_x.grad is not None
        errors["output"] = difference(found.detach(), expected.detach())
        errors["gradient of the input"] = difference(x.grad, exact_x.grad)
    assert exact_weight.grad is not None and exact_bias.grad is not None
    errors["gradient of the weights"] = difference(of_weight, exact_weight.grad)
    errors["gradient of the biases"] = difference(of_bias, exact_bias.grad)
    return errors


def gelu_errors(num_rows: int, num_columns: int, device: torch.device) -> dict[str, float]:
    """Return the relative errors of the GELU and its gradient against fp64."""
    generator = torch.Generator(device).manual_seed(0)
    drawn, upstream = (
        torch.randn((num_rows, num_columns), generator=generator, device=device).bfloat16()
        for _ in range(2)
    )
    (x,) = _leaves([SPREAD * drawn])
    (exact_x,) = _leaves([SPREAD * drawn], torch.float64)
    found = gelu(x)
    expected = F.gelu(exact_x)
    found.backward(upstream)
    expected.backward(upstream.double())
    assert x.grad is not None and exact_x.grad is not None
    return {
        "output": difference(found.detach(), expected.detach()),
        "gradient": difference(x.grad, exact_x.grad),
    }


class _Passes:
    """Model of a scale with kernels, whose gradients keep their places.

    Args:
        scale: sizes of the tests.
        device: device of the model.
        kernels: names of the kernels.
        is_compiled: whether layers are compiled.
    """

    def __init__(
        self,
        scale: Scale,
        device: torch.device,
        kernels: frozenset[str],
        *,
        is_compiled: bool = False,
    ) -> None:
        self.model = packed_model(drawn_config(scale), device)
        self._device = device
        self.model.select_kernels(kernels, torch.bfloat16)
        optimizer = SGD(self.model.parameters(), lr=0.1)
        self._places = FlatGradients([optimizer], 1, self.model.adjacent_parameters())
        if is_compiled:
            for layer in self.model.layers:
                layer.compile(dynamic=False)

    def __call__(
        self, packs: Sequence[Pack], *, is_bf16: bool = True
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Return the logits of each protein, and the gradients of a step of these packs."""
        self._places.begin()
        self.model.weights_changed()
        logits: list[Tensor] = []
        for pack in packs:
            with under_autocast(self._device, enabled=is_bf16):
                with torch.no_grad():
                    all_logits = self.model.logits(pack)
                loss = self.model(pack).loss_sum
            loss.backward()
            logits += [all_logits[place] for place in proteins_of(pack)]
        found = {name: one.clone() for name, one in gradients(self.model).items()}
        return logits, found


def model_errors(
    scale: Scale, device: torch.device, *, is_compiled: bool
) -> tuple[dict[str, Compared], int]:
    """Return the errors of a step of micro-batches, and the number of graphs compiled after the first step.

    The model with kernels is compiled or not. The one without kernels is not.
    """
    counters.clear()
    packs = masked_packs(scale, device, 3)
    step = packs[:2]
    exact_logits, exact = _Passes(scale, device, NONE)(step, is_bf16=False)
    passes = _Passes(scale, device, OF_A_MODEL, is_compiled=is_compiled)
    by_ours = passes(step)
    by_torch = _Passes(scale, device, NONE)(step)
    errors: dict[str, list[float]] = {"logits": [], "gradients": []}
    for logits, found in (by_ours, by_torch):
        errors["logits"].append(worst_protein(logits, exact_logits))
        errors["gradients"].append(worst_difference(found, exact))
    graphs = counters["stats"]["unique_graphs"]
    assert (graphs > 0) == is_compiled
    with torch.no_grad():
        for parameter in passes.model.parameters():
            parameter *= 1.01
    passes([packs[2], empty_pack(scale, device)])
    compared = {name: Compared(*both) for name, both in errors.items()}
    return compared, counters["stats"]["unique_graphs"] - graphs


def largest_gradient_of_padding(scale: Scale, device: torch.device) -> float:
    """Return the largest number among the gradients of a pack of padding alone."""
    _, found = _Passes(scale, device, OF_A_MODEL)([empty_pack(scale, device)])
    assert found
    return max(float(one.abs().max()) for one in found.values())


def start_check(scale: Scale, device: torch.device) -> tuple[dict[str, str], float]:
    """Return the problems that a run's start finds in any kernel, and the seconds of a second such check."""
    model = packed_model(drawn_config(scale), device)
    (pack,) = masked_packs(replace(scale, tokens=scale.tokens_of_a_run), device, 1)
    assert model.kernels == OF_A_MODEL
    first = model.kernel_problems(OF_A_MODEL, pack)
    began = time.perf_counter()
    second = model.kernel_problems(OF_A_MODEL, pack)  # it ends with a copy to the host
    return {**first, **second}, time.perf_counter() - began


def inference_errors(
    head_size: int, scale: Scale, device: torch.device
) -> tuple[dict[str, Compared], frozenset[str]]:
    """Return the errors of an engine's answers, and the kernels that the engine has kept after its check."""
    split = DrawnSplit(12, longest=scale.max_residues)
    proteins = [split.token_ids((0, index)) for index in range(split.num_units)]
    masked = [protein.copy() for protein in proteins]
    for protein in masked:
        protein[len(protein) // 2] = MASK

    def engine(dtype: torch.dtype, kernels: frozenset[str]) -> Engine:
        config = two_layers(head_size, scale.heads)
        return Engine(
            packed_model(config, device).requires_grad_(False),
            device=device,
            dtype=dtype,
            tokens_per_pack=scale.tokens,
            max_residues=scale.max_residues,
            kernels=kernels,
        )

    engines: list[Any] = [
        engine(torch.float32, NONE),
        engine(torch.bfloat16, frozenset({ATTENTION})),
        engine(torch.bfloat16, NONE),
    ]
    errors: dict[str, Compared] = {}
    for name, answer in ANSWERS.items():
        given = masked if answer is MASKED_LOGITS else proteins
        exact, ours, torchs = (
            [torch.from_numpy(one) for one in each.run(given, answer)] for each in engines
        )
        errors[name] = Compared(worst_protein(ours, exact), worst_protein(torchs, exact))
    return errors, engines[1].kernels
