"""Frozen matrices in 4 bits (QLoRA, Dettmers et al. 2023), parameters like any other to DDP and FSDP2.

bitsandbytes' own parameters keep their scales beside the tensor, and FSDP2, which makes parameters anew,
drops them (bitsandbytes issue 1945). Here numbers and scales are one parameter, read as bitsandbytes'
structures in each pass. Its type is that of the arithmetic, so that FSDP2 casts nothing of it.

Shapes: I inputs, O outputs, N = I O numbers of a matrix.
"""

import functools
import itertools
from typing import Any

import torch
from torch import Tensor, nn

from seqlm.training.layered_model import LayeredModel

BLOCK = 64
"""Numbers with a common scale, and below scales with one of theirs: as bitsandbytes has them by default."""
BLOCK_OF_SCALES = 256
_ALIGNED = 16
"""Bytes; kernels read as many at once."""


class FourBitLinear(nn.Module):
    """A linear map whose matrix is made of 4-bit numbers; only its input gets a gradient.

    Args:
        in_features: I.
        out_features: O.
        bias: of the map that this takes the place of.
        dtype: of the arithmetic.
    """

    def __init__(self, in_features: int, out_features: int, bias: nn.Parameter | None, dtype: torch.dtype):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        size = _places(in_features * out_features)[-1] // dtype.itemsize
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype, device="meta"), requires_grad=False)
        self.register_parameter("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., I) -> (..., O), in the type of the arithmetic.

        So is what autocast multiplies. In fp32, as layer norms answer, queries, keys and values would be too
        wide for flash attention.
        """
        dtype = self.weight.dtype
        bias = None if self.bias is None else self.bias.to(dtype)
        return _product(x.to(dtype), self.weight, bias, self.out_features)


# Each is one operator to torch.compile, which would otherwise look into bitsandbytes, make its tables
# of codes anew in every pass, and cut the layer's graph there.
@torch.library.custom_op("esm2::four_bit_product", mutates_args=())
def _product(x: Tensor, row: Tensor, bias: Tensor | None, num_outputs: int) -> Tensor:
    from bitsandbytes import matmul_4bit

    numbers, state = _opened(row, torch.Size((num_outputs, x.shape[-1])))
    return matmul_4bit(x, numbers, quant_state=state, bias=bias)


@torch.library.custom_op("esm2::four_bit_gradient", mutates_args=())
def _gradient(grad: Tensor, row: Tensor, num_inputs: int) -> Tensor:
    """Return the gradient of the product's input."""
    from bitsandbytes.functional import dequantize_4bit

    numbers, state = _opened(row, torch.Size((grad.shape[-1], num_inputs)))
    return grad @ dequantize_4bit(numbers, state)


@_product.register_fake
def _(x: Tensor, row: Tensor, bias: Tensor | None, num_outputs: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], num_outputs))


@_gradient.register_fake
def _(grad: Tensor, row: Tensor, num_inputs: int) -> Tensor:
    return grad.new_empty((*grad.shape[:-1], num_inputs))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, row, _, _ = inputs
    ctx.save_for_backward(row)
    ctx.num_inputs = x.shape[-1]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (row,) = ctx.saved_tensors
    return _gradient(grad, row, ctx.num_inputs), None, None, None


_product.register_autograd(_backward, setup_context=_keep)


def quantize_layers(
    model: LayeredModel, weights: dict[str, Tensor], dtype: torch.dtype, device: torch.device
) -> None:
    """Put 4-bit matrices in the places of the frozen ones of a model's layers.

    Args:
        model: on the meta device, without weights; changed.
        weights: what it is to get; changed. May be empty on processes that get theirs from another.
        dtype: of the arithmetic.
        device: where weights are rounded; kernels of devices may differ in the last bit.
    """
    layers = {id(module) for module in model.layers.modules()}
    for name, module in list(model.named_modules()):
        if id(module) not in layers or type(module) is not nn.Linear or module.weight.requires_grad:
            continue
        parent, _, attribute = name.rpartition(".")
        matrix = FourBitLinear(module.in_features, module.out_features, module.bias, dtype)
        setattr(model.get_submodule(parent), attribute, matrix)
        key = f"{name}.weight"
        if key in weights:
            weights[key] = rounded(weights[key].to(device), dtype).cpu()


def rounded(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """(O, I) -> bytes in the order of ``_places``, as one row of ``dtype``."""
    numbers, state = _quantized(matrix)
    parts = (numbers, state.state2.absmax, state.offset.reshape(1), state.absmax)
    places = _places(matrix.numel())
    result = torch.zeros(places[-1], dtype=torch.uint8, device=matrix.device)
    for place, part in zip(places, parts, strict=False):
        data = part.flatten().view(torch.uint8)
        result[place : place + len(data)] = data
    return result.view(dtype)


def as_rounded(matrix: Tensor) -> Tensor:
    """(O, I) -> what the row of ``rounded`` stands for, in the matrix's own type."""
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(*_quantized(matrix))


def _quantized(matrix: Tensor) -> tuple[Tensor, Any]:
    from bitsandbytes.functional import quantize_4bit

    return quantize_4bit(matrix, blocksize=BLOCK, quant_type="nf4", compress_statistics=True)


def _opened(row: Tensor, shape: torch.Size) -> tuple[Tensor, Any]:
    """Numbers (N / 2, 1) uint8 and bitsandbytes' state, both views of the row."""
    from bitsandbytes.functional import QuantState

    num_blocks, num_scales = _num_blocks(shape.numel())
    data = row.view(torch.uint8)
    first, scales, offset, blocks, _ = _places(shape.numel())
    of_numbers, of_scales = _codes(row.device)
    state = QuantState(
        absmax=data[blocks : blocks + num_blocks],
        shape=shape,
        code=of_numbers,
        blocksize=BLOCK,
        quant_type="nf4",
        dtype=row.dtype,
        offset=data[offset : offset + 4].view(torch.float32)[0],
        state2=QuantState(
            absmax=data[scales : scales + 4 * num_scales].view(torch.float32),
            code=of_scales,
            blocksize=BLOCK_OF_SCALES,
            dtype=torch.float32,
        ),
    )
    return data[first : first + -(-shape.numel() // 2), None], state


@functools.cache
def _codes(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the values of the 4-bit numbers and of the 8-bit scales of blocks."""
    from bitsandbytes.functional import create_dynamic_map, get_4bit_type

    return get_4bit_type("nf4", device), create_dynamic_map().to(device)


def _num_blocks(num_numbers: int) -> tuple[int, int]:
    blocks = -(-num_numbers // BLOCK)
    return blocks, -(-blocks // BLOCK_OF_SCALES)


def _places(num_numbers: int) -> tuple[int, ...]:
    """First bytes of the numbers, of the scales' scales and offset, and of the scales; and the end."""
    blocks, scales = _num_blocks(num_numbers)
    sizes = (-(-num_numbers // 2), 4 * scales, 4, blocks)
    aligned = (-(-size // _ALIGNED) * _ALIGNED for size in sizes)
    return tuple(itertools.accumulate(aligned, initial=0))
