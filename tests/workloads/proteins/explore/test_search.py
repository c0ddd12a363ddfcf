"""Search for nearest vectors in cells, and reading of vectors in batches."""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqlm.proteins.explore import projection, search, vectors
from seqlm.proteins.explore.projection import transfer
from seqlm.proteins.explore.search import AllPairs, CellSearch, expected_pairs, search_among
from seqlm.proteins.explore.vectors import VectorFile

NUM_FEATURES = 16


def families(number: int) -> np.ndarray:
    """Return vectors of length 1 in families of about ten."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(number // 10, NUM_FEATURES))
    found = centres[rng.integers(0, len(centres), number)]
    found = (found + 0.3 * rng.normal(size=found.shape)).astype(np.float32)
    return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True))


@pytest.fixture
def num_pairs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the pairs that are compared at once, with small cells."""
    monkeypatch.setattr(search, "CELL_VECTORS", 16)
    monkeypatch.setattr(search, "KMEANS_PASSES", 2)
    monkeypatch.setattr(search, "LOOKED_AT_GROUPS", 4)
    monkeypatch.setattr(search, "LOOKED_AT_CELLS", 8)
    found: list[int] = []
    products = search._products

    def counting(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        found.append(len(a) * len(b))
        return products(a, b)

    monkeypatch.setattr(search, "_products", counting)
    return found


def test_compared_pairs_grow_little_faster_than_the_vectors(num_pairs: list[int]) -> None:
    totals = []
    for number in (2_000, 16_000):
        known = families(number)
        num_pairs.clear()
        found = CellSearch(known.copy()).nearest(known, 2)
        totals.append(sum(num_pairs))
        assert (found.rows[:, 0] == np.arange(number)).mean() > 0.99, "vectors find themselves"
        assert (np.diff(found.distances, axis=1) >= 0).all()
    assert math.log(totals[1] / totals[0], 8) < 1.3
    assert totals[1] < 16_000**2 / 20


def test_the_expected_pairs_grow_little_faster_than_the_vectors() -> None:
    numbers = (1_000_000, 10_000_000, 100_000_000)
    pairs = [expected_pairs(number // 2, number) for number in numbers]
    assert math.log10(pairs[1] / pairs[0]) < 1.1
    assert math.log10(pairs[2] / pairs[1]) < 1.2


@pytest.mark.usefixtures("num_pairs")
def test_most_nearest_vectors_are_found() -> None:
    known = families(4_000)
    asked = families(4_300)[4_000:]
    exact = AllPairs(known).nearest(asked, 3)
    found = CellSearch(known.copy()).nearest(asked, 3)
    assert (found.rows[:, 0] == exact.rows[:, 0]).mean() > 0.9
    same = found.rows == exact.rows
    np.testing.assert_allclose(found.distances[same], exact.distances[same], atol=1e-6)


def test_equal_vectors_are_not_all_compared(
    num_pairs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They cannot be divided into cells."""
    monkeypatch.setattr(search, "MOST_PER_CELL", 64)
    known = np.repeat(families(20)[:2], 2_000, axis=0)
    found = CellSearch(known.copy()).nearest(known, 2)
    assert found.distances.max() < 1e-6
    assert (found.rows < 2_000).tolist() == [[row < 2_000] * 2 for row in range(4_000)]
    assert sum(num_pairs) < 4_000**2 / 10


def test_few_vectors_are_compared_with_all(monkeypatch: pytest.MonkeyPatch) -> None:
    known = families(30)
    assert isinstance(search_among(known, 100), AllPairs)
    assert expected_pairs(30, 100) == 3_000
    monkeypatch.setattr(search, "MOST_PAIRS", 2_999)
    assert isinstance(search_among(known, 100), CellSearch)
    assert search_among(known.copy(), 100).nearest(known, 2).rows[:, 0].tolist() == list(range(30))


@pytest.mark.usefixtures("num_pairs")
def test_a_transfer_has_the_known_vectors_in_memory_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MOST_PAIRS", 1)
    monkeypatch.setattr(search, "KMEANS_SAMPLE", 8)
    monkeypatch.setattr(search, "CHUNK_NUMBERS", 1 << 14)
    monkeypatch.setattr(search, "COPIED_FEATURES", 8)
    num_vectors = 3_000
    found = np.tile(families(num_vectors), 32)
    parts = np.split(found, 30)
    is_reference = np.arange(num_vectors) < num_vectors - len(parts[0])
    transfer(lambda: parts[:2], is_reference[:200])  # imports what it needs
    tracemalloc.start()
    transfer(lambda: parts, is_reference)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.5 * found.nbytes


def test_labels_do_not_depend_on_the_batches() -> None:
    found = families(300)
    is_reference = np.arange(300) % 3 == 0
    whole = transfer(lambda: [found], is_reference)
    split = transfer(lambda: np.split(found, [1, 90, 200]), is_reference)
    np.testing.assert_array_equal(whole.nearest, split.nearest)
    np.testing.assert_allclose(whole.distances, split.distances, atol=1e-6)


def test_the_time_of_a_long_transfer_is_printed_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(projection, "TIMED_PAIRS", 1)
    monkeypatch.setattr(projection, "ANNOUNCED_SECONDS", 0.0)
    monkeypatch.setattr(search, "MOST_PAIRS", 1)
    found = families(300)
    transfer(lambda: [found], np.arange(300) % 2 == 0)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("transferring labels from 150 to 300 proteins takes about 0:0")
    assert second.startswith("the nearest proteins are searched approximately: ")
    assert second.endswith(" of 200 that were checked have the nearest one")


@pytest.mark.parametrize("num_rows", [2_000, 40_000])
def test_reading_a_part_of_the_vectors_takes_memory_for_these_alone(
    num_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors, "BATCH_BYTES", 1 << 16)
    monkeypatch.setattr(vectors, "READ_ROWS", 512)
    numbers = np.arange(num_rows * NUM_FEATURES, dtype=np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(numbers), NUM_FEATURES)
    table = pa.table({"id": [str(row) for row in range(num_rows)], "embedding": column})
    pq.write_table(table, tmp_path / "e.parquet", row_group_size=512)
    rows = np.arange(0, num_rows, num_rows // 1_000)
    tracemalloc.start()
    file = VectorFile(tmp_path / "e.parquet", None)
    found = file.checked_rows(rows)
    ids = file.ids_of(rows)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_array_equal(found, numbers.reshape(-1, NUM_FEATURES)[rows])
    assert ids == [str(row) for row in rows]
    assert peak < found.nbytes + 600_000
