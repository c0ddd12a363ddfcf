"""Interface between the trainer and a model of any architecture."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Segments:
    """Positions of the records in a pack.

    ``cumulative`` is int32 of shape (S + 1,), starting with 0 and ending with T; trailing segments may be
    empty. ``max_length`` bounds every segment and is constant over a run (it is a compile-time constant).
    """

    cumulative: Tensor
    max_length: int
    of_token: Tensor | None = None
    """(T,) int64 number of each token's segment; only XLA devices read it."""


@dataclass(frozen=True)
class Prediction:
    """Answer of a language model to a pack."""

    loss_sum: Tensor
    """() fp32 sum of the cross-entropies in nats over the predicted tokens."""
    num_correct: Tensor
    """() int64 number of the predicted tokens whose most likely id is the right one."""


class LayeredModel(nn.Module, ABC):
    """Transformer with layers that can be reached, sharded, compiled and recomputed one by one.

    A model class that lacks an abstract part cannot be instantiated.
    """

    activation_checkpointing: bool = False
    """Whether layers are computed again in the backward pass."""
    is_sharded: bool = False
    """Whether a layer's weights exist only during its own pass (FSDP)."""
    uncounted: ClassVar[tuple[str, ...]] = ()
    """Parts of the names of parameters that no token is multiplied by."""

    on_rows: tuple[str, ...] = ()
    """Parts of the names of modules that run on the predicted tokens alone."""
    queries_on_rows: tuple[str, ...] = ()
    """Parts of the names of modules that run on the predicted tokens alone on CPUs, where the last layer has
    queries of no other tokens."""
    on_vocabulary: tuple[str, ...] = ()
    """Parts of the names of modules that run once for each token of the vocabulary."""

    if TYPE_CHECKING:  # transformers' models have it

        def tie_weights(self, *arguments: Any, **keywords: Any) -> Any: ...

    @property
    @abstractmethod
    def layers(self) -> nn.ModuleList:
        """Layers in the order of the forward pass."""

    @property
    @abstractmethod
    def flops_per_pair(self) -> float:
        """FLOPs of forward and backward pass per pair of positions of one sequence."""

    @property
    def kernels(self) -> frozenset[str]:
        """Names of the kernels (``training/kernels.py``) that the model can compute with."""
        return frozenset()

    def kernel_problems(self, names: frozenset[str], pack: Any) -> dict[str, str]:
        """Compare kernels with torch's on a pack, and return the problem of each that must not be used.

        Args:
            names: kernels to compare, all of them in ``kernels``.
            pack: input of the model on its device.
        """
        return {}

    def select_kernels(self, names: frozenset[str], dtype: torch.dtype = torch.bfloat16) -> None:
        """Compute with these kernels and no others. Call this before layers are compiled.

        Args:
            names: names of kernels, all of them in ``kernels``.
            dtype: type of matrix products.
        """
        # transformers' models have a property ``use_kernels``, so this is not called that.
        return

    def adjacent_parameters(self) -> list[list[nn.Parameter]]:
        """Return groups of parameters whose gradients have to lie side by side in memory, in this order."""
        return []

    def weights_changed(self) -> None:
        """Compute again what kernels derive from the weights.

        Call this before the first pass with new weights or with new places of the gradients.
        """
        return

    def recompute_layers(self) -> None:
        """Keep no layer's activations for the backward pass."""
        self.activation_checkpointing = True

    def make_buffers(self, device: torch.device) -> None:
        """Fill the buffers that no checkpoint holds, once the parameters have left the meta device."""
