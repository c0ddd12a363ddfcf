"""Lists of tiles, without Triton."""

from __future__ import annotations

import pytest
import torch

from seqlm.proteins.model.kernels.tiles import TILINGS, attention_tiles
from seqlm.training.layered_model import Segments


@pytest.mark.parametrize("lengths", [(1,), (0, 64, 128, 0, 0, 129, 1, 0), (300, 0), (0, 0, 7)])
@pytest.mark.parametrize("head_size", TILINGS)
def test_tiles_cover_every_token_once(head_size: int, lengths: tuple[int, ...]) -> None:
    cumulative = torch.tensor([0, *lengths]).cumsum(0).int()
    found = attention_tiles(Segments(cumulative, max(lengths)), sum(lengths), head_size)
    tilings = TILINGS[head_size]
    for tiles, rows in (
        (found.forward, tilings.forward_rows),
        (found.backward, tilings.backward_rows),
    ):
        assert tiles.dtype == torch.int32
        covered: list[int] = []
        is_spare = False
        for start, length, first in tiles.T.tolist():
            assert not (is_spare and length), "spare tiles are behind the others"
            is_spare = length == 0
            covered += range(start + first, start + min(first + rows, length))
        assert covered == list(range(sum(lengths)))


def test_the_number_of_tiles_depends_on_shapes_alone() -> None:
    packs = [(100, 20, 0), (40, 40, 40)]
    shapes = {
        attention_tiles(
            Segments(torch.tensor([0, *lengths]).cumsum(0).int(), 100), 120, 16
        ).forward.shape
        for lengths in packs
    }
    assert len(shapes) == 1
