"""Gradients of an optimizer step: where they live between micro-batches, and their mean over processes."""

from collections import defaultdict
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

ALIGNMENT_BYTES = 256
"""Alignment of each gradient in a flat buffer. Products and fused optimizers read 16 bytes at a time."""


class Gradients:
    """Gradients that the backward pass creates in each step, and that are freed at its end.

    With several processes, DDP or FSDP2 averages them during the last backward pass of a step.

    Args:
        optimizers: optimizers of all trained parameters.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = optimizers

    def begin(self) -> None:
        """Prepare the gradients for the first backward pass of a step."""

    def reduce(self) -> None:
        """Average the gradients over all processes after the last backward pass of a step."""

    def end(self) -> None:
        """Free the gradients, or set them to 0, once the optimizers have read them."""
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)

    def detach(self) -> None:
        """Leave the parameters without gradients until the next step begins."""
        self.end()

    def release(self) -> None:
        """Free all memory of the gradients."""
        self.detach()


class FlatGradients(Gradients):
    """Gradients that keep their places in memory over a run, and are averaged in one call per type.

    Each gradient is a view of a flat buffer, so the buffer is reduced without a copy. The buffers have the
    size of the trained parameters, as the buckets of DDP have. Kernels may add to the gradients themselves,
    and a captured CUDA graph finds them where they were.

    A trained parameter without a gradient in a step has a gradient of 0 here, so momentum and weight decay
    still change it. DDP refuses such parameters. Sparse gradients are added to the dense ones.

    Args:
        optimizers: optimizers of all trained parameters.
        world_size: number of processes.
        adjacent: groups of parameters of one type whose gradients lie side by side, without a gap.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        world_size: int,
        adjacent: Sequence[Sequence[nn.Parameter]] = (),
    ) -> None:
        super().__init__(optimizers)
        self._world_size = world_size
        self._buffers: list[Tensor] = []
        self._places: list[tuple[nn.Parameter, Tensor]] = []
        """Each trained parameter and its gradient."""
        alike: dict[torch.dtype, list[nn.Parameter]] = defaultdict(list)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    alike[parameter.dtype].append(parameter)
        group_of = {id(parameter): group for group in adjacent for parameter in group}
        for parameters in alike.values():
            # A group is in the place of its first parameter.
            groups = {
                id(group[0]): group
                for group in (group_of.get(id(one), [one]) for one in parameters)
            }
            self._allocate(list(groups.values()))

    def _allocate(self, groups: Sequence[Sequence[nn.Parameter]]) -> None:
        """Create the buffer of all parameters of one type, with each group in one piece.

        The order is that of the optimizers, which is the same on all processes.
        """
        first = groups[0][0]
        alignment = ALIGNMENT_BYTES // first.element_size()
        numbers = [[parameter.numel() for parameter in group] for group in groups]
        rooms = [-(-sum(each) // alignment) * alignment for each in numbers]
        buffer = torch.zeros(sum(rooms), dtype=first.dtype, device=first.device)
        for group, each, room in zip(groups, numbers, buffer.split(rooms), strict=True):
            for parameter, flat in zip(group, room[: sum(each)].split(each), strict=True):
                self._places.append((parameter, flat.view(parameter.shape)))
        self._buffers.append(buffer)

    def begin(self) -> None:
        # They are set here because a checkpoint is restored before: torch then creates the optimizers' state
        # only if there are no gradients, and removes those that it creates for it.
        for parameter, gradient in self._places:
            if parameter.grad is not gradient:
                parameter.grad = gradient
        for buffer in self._buffers:
            buffer.zero_()

    def reduce(self) -> None:
        if self._world_size == 1:
            return
        for buffer in self._buffers:
            # In the order of DDP: each process divides, then all add up.
            buffer.div_(self._world_size)
            dist.all_reduce(buffer)

    def end(self) -> None:
        """Leave the gradients as they are until the next step begins."""

    def detach(self) -> None:
        super().end()

    def release(self) -> None:
        self.detach()
        self._places.clear()
        self._buffers.clear()
