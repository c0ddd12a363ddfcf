"""Masked packs of the step that is made, and those of the next step that are masked beside its passes."""

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .loader import StepPacks
from .staging import AnyPack


class _Masked(NamedTuple):
    pack: Any
    """Input of the model."""
    num_targets: Tensor
    """() int64."""


class PackQueue:
    """Packs of a step in the form that the model reads, each freed after its pass.

    The loss of a micro-batch is divided by the number of targets of the whole step, so all packs of a step
    are masked before its first pass. Masked in a burst, they would leave a GPU idle meanwhile. So a pack of
    the next step is masked after each pass of this one, if it is read by then, while the device computes.
    What is left is masked when the next step begins.

    Args:
        mask: function that returns the input of the model for a pack.
        count: function that returns the number of targets of an input.
    """

    def __init__(self, mask: Callable[[AnyPack], Any], count: Callable[[Any], Tensor]) -> None:
        self._mask = mask
        self._count = count
        self._step: StepPacks | None = None
        self._current: deque[_Masked] = deque()
        self._next: deque[_Masked] = deque()

    def begin(self, step: StepPacks) -> Tensor:
        """Mask the packs of a step that are not masked yet.

        Returns:
            Number of targets of all of them, () fp32 on the device on which packs are masked. It is exact up
            to 16,777,216. Trainium has no 64-bit numbers for the sum over all processes.
        """
        is_next = self._step is not None and self._step.following is step
        self._current = self._next if is_next else deque()
        self._next = deque()
        self._step = step
        for host in step.packs[len(self._current) :]:
            self._current.append(self._masked(host))
        num_targets = torch.stack([masked.num_targets for masked in self._current])
        return num_targets.sum(dtype=torch.float32)

    def take(self) -> Any:
        """Return the next pack of the step, and forget it."""
        return self._current.popleft().pack

    def mask_ahead(self, num_passes: int) -> None:
        """Mask packs of the next step, without waiting for any that is not read yet.

        Args:
            num_passes: number of passes of this step so far. At most as many packs of the next step are
                masked, so the device never holds more packs than a step has.
        """
        following = self._step.following if self._step is not None else None
        if following is None:
            return
        num_ready = min(num_passes, len(following.packs))
        for host in following.packs[len(self._next) : num_ready]:
            self._next.append(self._masked(host))

    def clear(self) -> None:
        """Free all packs."""
        self._step = None
        self._current.clear()
        self._next.clear()

    def _masked(self, host: AnyPack) -> _Masked:
        pack = self._mask(host)
        return _Masked(pack, self._count(pack))
