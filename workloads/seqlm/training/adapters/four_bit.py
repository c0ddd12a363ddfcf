"""Frozen matrices in 4 bits (QLoRA, Dettmers et al. 2023), parameters like any other to DDP and FSDP2.

bitsandbytes' own parameters keep their scales beside the tensor. FSDP2 creates new parameters, which lack the
scales (bitsandbytes issue 1945). Here numbers and scales are one parameter, the *row* of a matrix. Each pass
reads it as bitsandbytes' structures. It has the type of the arithmetic, so that FSDP2 does not cast it.

Shapes: I inputs, O outputs, N = I O numbers of a matrix.
"""

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from seqlm.training.layered_model import LayeredModel

BLOCK = 64
"""Numbers with a common scale, the default of bitsandbytes."""
BLOCK_OF_SCALES = 256
"""Scales with a common scale of their own, the default of bitsandbytes."""
_ALIGNED_BYTES = 16
"""Alignment of the parts of a row: kernels read this many bytes at once."""
_OFFSET_BYTES = 4
"""Size of the fp32 offset of a matrix's scales."""
_SCALE_BYTES = 4
"""Size of an fp32 scale of scales."""


class FourBitLinear(nn.Module):
    """Linear map with a matrix of 4-bit numbers. Only its input gets a gradient.

    Args:
        in_features: number of inputs I.
        out_features: number of outputs O.
        bias: bias of the map that this one replaces.
        dtype: type of the arithmetic.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: nn.Parameter | None, dtype: torch.dtype
    ):
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        size = _layout(in_features * out_features).end // dtype.itemsize
        self.weight = nn.Parameter(
            torch.empty(size, dtype=dtype, device="meta"), requires_grad=False
        )
        self.register_parameter("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., I) -> (..., O), in the type of the arithmetic.

        Autocast would cast the input in the same way. Layer norms return fp32, in which queries, keys and
        values would be too wide for flash attention.
        """
        dtype = self.weight.dtype
        bias = None if self.bias is None else self.bias.to(dtype)
        return _product(x.to(dtype), self.weight, bias, self.out_features)


# As custom operators, the functions are opaque to torch.compile. It would otherwise trace bitsandbytes,
# create its tables of codes in every pass, and break the layer's graph there.
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
    """Replace the frozen matrices of a model's layers by 4-bit matrices.

    Args:
        model: model on the meta device, without weights; changed in place.
        weights: weights for the model, changed in place; empty on processes that get theirs from another.
        dtype: type of the arithmetic.
        device: device that rounds the weights; kernels of devices may differ in the last bit.
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
    """Return the row of a matrix (O, I), as a vector of ``dtype``."""
    numbers, state = _quantized(matrix)
    layout = _layout(matrix.numel())
    row = torch.zeros(layout.end, dtype=torch.uint8, device=matrix.device)
    for start, part in (
        (layout.numbers, numbers),
        (layout.scales_of_scales, state.state2.absmax),
        (layout.offset, state.offset.reshape(1)),
        (layout.scales, state.absmax),
    ):
        data = part.flatten().view(torch.uint8)
        row[start : start + len(data)] = data
    return row.view(dtype)


def as_rounded(matrix: Tensor) -> Tensor:
    """Return a matrix (O, I) rounded to 4 bits, in its own type."""
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(*_quantized(matrix))


def _quantized(matrix: Tensor) -> tuple[Tensor, Any]:
    """Return the numbers of a matrix, two to a byte, and bitsandbytes' state with the scales."""
    from bitsandbytes.functional import quantize_4bit

    return quantize_4bit(matrix, blocksize=BLOCK, quant_type="nf4", compress_statistics=True)


def _opened(row: Tensor, shape: torch.Size) -> tuple[Tensor, Any]:
    """Return the numbers (N / 2, 1) uint8 of a matrix and bitsandbytes' state, both views of its row."""
    from bitsandbytes.functional import QuantState

    data = row.view(torch.uint8)
    layout = _layout(shape.numel())
    number_codes, scale_codes = _codes(row.device)
    scales_of_scales_end = layout.scales_of_scales + _SCALE_BYTES * layout.num_scales_of_scales
    state = QuantState(
        absmax=data[layout.scales : layout.scales + layout.num_scales],
        shape=shape,
        code=number_codes,
        blocksize=BLOCK,
        quant_type="nf4",
        dtype=row.dtype,
        offset=data[layout.offset : layout.offset + _OFFSET_BYTES].view(torch.float32)[0],
        state2=QuantState(
            absmax=data[layout.scales_of_scales : scales_of_scales_end].view(torch.float32),
            code=scale_codes,
            blocksize=BLOCK_OF_SCALES,
            dtype=torch.float32,
        ),
    )
    return data[layout.numbers : layout.numbers + layout.number_bytes, None], state


@functools.cache
def _codes(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the values of the 4-bit numbers and of the 8-bit scales of blocks."""
    from bitsandbytes.functional import create_dynamic_map, get_4bit_type

    return get_4bit_type("nf4", device), create_dynamic_map().to(device)


class _Layout(NamedTuple):
    """Bytes at which the parts of a row begin, and their sizes."""

    numbers: int
    scales_of_scales: int
    offset: int
    scales: int
    end: int
    number_bytes: int
    num_scales: int
    """Number of 8-bit scales, one per block of numbers."""
    num_scales_of_scales: int
    """Number of fp32 scales, one per block of scales."""


def _layout(num_numbers: int) -> _Layout:
    number_bytes = -(-num_numbers // 2)
    num_scales = -(-num_numbers // BLOCK)
    num_scales_of_scales = -(-num_scales // BLOCK_OF_SCALES)
    scales_of_scales = _aligned(number_bytes)
    offset = scales_of_scales + _aligned(_SCALE_BYTES * num_scales_of_scales)
    scales = offset + _aligned(_OFFSET_BYTES)
    return _Layout(
        numbers=0,
        scales_of_scales=scales_of_scales,
        offset=offset,
        scales=scales,
        end=scales + _aligned(num_scales),
        number_bytes=number_bytes,
        num_scales=num_scales,
        num_scales_of_scales=num_scales_of_scales,
    )


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNED_BYTES) * _ALIGNED_BYTES
