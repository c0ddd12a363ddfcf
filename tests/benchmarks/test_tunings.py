"""Tunings of the attention kernels that are tried on a GPU, and those that a run uses."""

import json
from pathlib import Path

from benchmarks.ours import family_with
from benchmarks.tunings import TOKENS_PER_PACK, TUNINGS, named
from seqlm.proteins.families.table import MODEL_FAMILIES
from seqlm.proteins.model.kernels.tiles import TILINGS

MEASURED = Path("benchmarks/results/tunings_h200.json")
AS_FAST = 1.05
"""Largest ratio of the time of a used tuning to that of the fastest one. Rounds differ by as much."""


def test_every_tuning_in_use_was_tried_and_is_as_fast_as_any() -> None:
    sizes = json.loads(MEASURED.read_text())["sizes"]
    assert {one["size"] for one in sizes} == set(TOKENS_PER_PACK)
    for one in sizes:
        shape = MODEL_FAMILIES[family_with(one["size"])].sizes[one["size"]]
        tilings = TILINGS[shape.hidden // shape.heads]
        assert set(one["ms"]) == set(TUNINGS) == set(vars(tilings))
        for kernel, times in one["ms"].items():
            used = getattr(tilings, kernel)
            assert used in TUNINGS[kernel]
            assert times[named(used)] <= AS_FAST * min(times.values()), (one["size"], kernel)
