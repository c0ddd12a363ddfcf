"""Comparison of products and of the GELU with torch's, on random operands of a run's shapes.

Shapes: T tokens, C inputs and N outputs of a product.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .comparison import DTYPE, SEED, relative_difference
from .gelu import product_gelu
from .products import CastMap, product

PASSES = 2
"""Number of passes whose gradients are added up."""


def products_differences(
    products: Mapping[str, Sequence[nn.Linear]], num_tokens: int
) -> dict[str, float]:
    """Return the differences of the results and gradients of products with cast weights.

    Args:
        products: linear maps of a layer by the name of their product.
        num_tokens: number of tokens of a pack.
    """
    return {
        f"{name} of {maps}": difference
        for maps, group in products.items()
        for name, difference in _differences(group, num_tokens, product, lambda x: x).items()
    }


def gelu_differences(before_gelu: nn.Linear, num_tokens: int) -> dict[str, float]:
    """Return the differences of a product with GELU.

    Args:
        before_gelu: linear map before the GELU.
        num_tokens: number of tokens of a pack.
    """
    return _differences([before_gelu], num_tokens, product_gelu, F.gelu)


def _differences(
    group: Sequence[nn.Linear],
    num_tokens: int,
    ours: Callable[[Tensor, CastMap], Tensor],
    activation: Callable[[Tensor], Tensor],
) -> dict[str, float]:
    """Compare a product and what follows it, over several passes.

    Args:
        group: linear maps with the same input.
        num_tokens: number of tokens.
        ours: function of the input and of the cast maps.
        activation: torch's function that follows the product.
    """
    like = group[0].weight
    width = like.shape[1]
    num_outputs = sum(len(one.weight) for one in group)
    # The generator of the run stays as it is.
    generator = torch.Generator(like.device).manual_seed(SEED)

    def drawn(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator, device=like.device)

    weight = (drawn(num_outputs, width) * width**-0.5).to(DTYPE).requires_grad_()
    bias = None
    if group[0].bias is not None:
        bias = drawn(num_outputs).to(DTYPE).requires_grad_()
    cast = CastMap(
        weight.detach(),
        None if bias is None else bias.detach(),
        torch.zeros_like(weight, dtype=torch.float32),
        None if bias is None else torch.zeros_like(bias, dtype=torch.float32),
    )
    expected_weight = torch.zeros_like(weight, dtype=torch.float32)
    expected_bias = torch.zeros(num_outputs, device=like.device)
    found: dict[str, Tensor] = {}
    expected: dict[str, Tensor] = {}
    for _ in range(PASSES):
        x = drawn(num_tokens, width).to(DTYPE).requires_grad_()
        upstream = drawn(num_tokens, num_outputs).to(DTYPE)
        found["result"] = ours(x, cast)
        (found["gradient of the input"],) = torch.autograd.grad(found["result"], x, upstream)
        expected["result"] = activation(F.linear(x, weight, bias))
        leaves = [x, weight] if bias is None else [x, weight, bias]
        gradients = torch.autograd.grad(expected["result"], leaves, upstream)
        expected["gradient of the input"] = gradients[0]
        expected_weight += gradients[1]
        if bias is not None:
            expected_bias += gradients[2]
    assert cast.weight_gradient is not None
    found["gradient of the weights"] = cast.weight_gradient
    expected["gradient of the weights"] = expected_weight
    if cast.bias_gradient is not None:
        found["gradient of the biases"] = cast.bias_gradient
        expected["gradient of the biases"] = expected_bias
    # One copy to the host for all of them.
    together = torch.stack([relative_difference(found[name], expected[name]) for name in expected])
    return dict(zip(expected, together.tolist(), strict=True))
