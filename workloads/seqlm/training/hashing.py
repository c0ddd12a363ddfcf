"""Integer hashes in place of random-number generators.

A hash depends only on the numbers that identify the value. It is the same on every machine and device, at
every world size and after every resume. The output of torch's CUDA generator depends on the GPU model.

The mixing function is the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), in numpy for the host
(uint64) and in torch for the device (int64, same bits).
"""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # the preparation of data needs no torch
    import torch

UInt64 = npt.NDArray[np.uint64]

GOLDEN = 0x9E3779B97F4A7C15
"""Increment of SplitMix64: 2**64 divided by the golden ratio, an odd number."""
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_WORD = 0xFFFFFFFFFFFFFFFF
"""Largest number of 64 bits."""


def mix64(x: UInt64) -> UInt64:
    """Map uint64 numbers one to one, so that each input bit changes about half of the output bits."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(_FIRST)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(_SECOND)
    return x ^ (x >> np.uint64(31))


def hash64(*parts: int | npt.NDArray[np.integer]) -> UInt64:
    """Return the hash of a tuple of whole numbers; arrays broadcast against each other."""
    num_leading = next(
        (at for at, part in enumerate(parts) if not isinstance(part, int)), len(parts)
    )
    number = 0
    # Python computes with single numbers ten times faster than numpy.
    for part in parts[:num_leading]:
        number = _mix_number(((number ^ (int(part) & _WORD)) + GOLDEN) & _WORD)
    state: UInt64 = np.full(1, number, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for part in parts[num_leading:]:
            masked = part & _WORD if isinstance(part, int) else part
            word = np.asarray(masked).astype(np.uint64)
            state = mix64((state ^ word) + np.uint64(GOLDEN))
    return state


def _mix_number(x: int) -> int:
    """Apply ``mix64`` to one number."""
    x = ((x ^ (x >> 30)) * _FIRST) & _WORD
    x = ((x ^ (x >> 27)) * _SECOND) & _WORD
    return x ^ (x >> 31)


def below(hashes: UInt64, bounds: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Return a whole number in [0, bound) for each hash, with a bias below bound / 2**32."""
    high = hashes >> np.uint64(32)
    return ((high * bounds.astype(np.uint64)) >> np.uint64(32)).astype(np.int64)


def mix64_on_device(x: "torch.Tensor") -> "torch.Tensor":
    """Apply ``mix64`` to an int64 tensor that holds the bits of uint64 numbers."""
    x = (x ^ _shift_right(x, 30)) * _signed(_FIRST)
    x = (x ^ _shift_right(x, 27)) * _signed(_SECOND)
    return x ^ _shift_right(x, 31)


def _shift_right(x: "torch.Tensor", bits: int) -> "torch.Tensor":
    """Shift in zeros from the left; torch's operator shifts in copies of the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    """Return the int64 number with the bits of a uint64 number."""
    return word - (1 << 64) if word >= 1 << 63 else word
