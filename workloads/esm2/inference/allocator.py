"""Memory that is freed stays with the process, for work that needs the same again at once."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
_LARGE = 1 << 30


def keep_freed_memory() -> None:
    """Have glibc reuse large blocks, which it would give back to the kernel and get anew, page by page.

    A pack's activations are blocks of some MB each. What it gains is not settled: docs/inference.md.
    """
    if not sys.platform.startswith("linux"):
        return
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_M_MMAP_THRESHOLD, _LARGE)
        mallopt(_M_TRIM_THRESHOLD, _LARGE)
