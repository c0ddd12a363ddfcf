"""The six published sizes of ESM-2, for those who need no tensors, too."""

from __future__ import annotations

SHAPES = {
    # size: (layers, hidden size, heads); Lin et al. 2023, table S1. The feed-forward size is 4 * hidden.
    "8M": (6, 320, 20),
    "35M": (12, 480, 20),
    "150M": (30, 640, 20),
    "650M": (33, 1280, 20),
    "3B": (36, 2560, 40),
    "15B": (48, 5120, 40),
}
