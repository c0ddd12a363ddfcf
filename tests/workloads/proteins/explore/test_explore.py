"""Maps of embeddings: neighbors, transferred labels, the page and the exports."""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.spatial.distance import cdist

from seqlm.proteins.explore.command import explore
from seqlm.proteins.explore.projection import neighbors, projections, transfer
from seqlm.runs.run_file import load_config

SIZE = 6
WILD_ID = 'x</script><b>&"'


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    """40 proteins in 4 groups. Two of them are equal."""
    rng = np.random.default_rng(0)
    found = (np.eye(4, SIZE)[np.arange(40) % 4] * 5 + rng.normal(size=(40, SIZE))).astype(
        np.float32
    )
    found[8] = found[4]
    return found


@pytest.fixture
def ids() -> list[str]:
    return [WILD_ID, *(f"P{number}" for number in range(1, 40))]


@pytest.fixture
def embeddings(vectors: np.ndarray, ids: list[str], tmp_path: Path) -> Path:
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), SIZE)
    pq.write_table(pa.table({"id": ids, "embedding": column}), tmp_path / "e.parquet")
    return tmp_path / "e.parquet"


@pytest.fixture
def table(ids: list[str], tmp_path: Path) -> Path:
    """Labels of all but the last group's second half, and a split."""
    labels = [None if n % 4 == 3 and n > 20 else f"group {n % 4}" for n in range(40)]
    split = ["test" if n % 5 == 0 else "train" for n in range(40)]
    columns = {
        "acc": ids,
        "sequence": "MK",
        "group": labels,
        "split": split,
        "mass": np.arange(40) / 7,
    }
    pd.DataFrame(columns).to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


@pytest.fixture
def run(embeddings: Path) -> Callable[..., Path]:
    def start(*overrides: str) -> Path:
        explore(load_config("esm2_8m_sample", [f"explore.embeddings={embeddings}", *overrides]))
        return embeddings.with_suffix(".html")

    return start


def named(table: Path) -> list[str]:
    return [f"explore.table=[{table}]", "inference.id_column=acc"]


def decoded(text: str, kind: Any) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype=kind)


def data_of(page: Path) -> dict[str, Any]:
    [text] = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL
    )
    found: dict[str, Any] = json.loads(text)
    return found


def test_neighbors_are_those_of_all_pairs(vectors: np.ndarray) -> None:
    expected = cdist(vectors, vectors, "cosine")
    np.fill_diagonal(expected, np.inf)
    rows, distances = neighbors(vectors, 10)
    assert rows.shape == distances.shape == (40, 10)
    np.testing.assert_allclose(distances, np.sort(expected)[:, :10], atol=1e-6)
    np.testing.assert_allclose(
        np.take_along_axis(expected, rows.astype(int), 1), distances, atol=1e-6
    )
    assert (rows != np.arange(40)[:, None]).all() and rows[4, 0] == 8 and rows[8, 0] == 4
    same = np.ones((30, SIZE), dtype=np.float32)
    assert (neighbors(same)[0] != np.arange(30)[:, None]).all()
    assert neighbors(vectors[:3])[0].shape == (3, 2)


def test_labels_come_from_the_nearest_of_the_reference(vectors: np.ndarray) -> None:
    is_reference = np.arange(40) % 3 == 0
    expected = cdist(vectors, vectors, "cosine")
    np.fill_diagonal(expected, np.inf)
    expected[:, ~is_reference] = np.inf
    found = transfer(lambda: [vectors], is_reference)
    np.testing.assert_array_equal(found.nearest, expected.argmin(axis=1))
    np.testing.assert_allclose(found.distances, expected.min(axis=1), atol=1e-6)
    one = np.arange(40) == 7
    assert transfer(lambda: [vectors], one).nearest.tolist() == [
        -1 if n == 7 else 7 for n in range(40)
    ]


def test_the_page_has_the_map_and_no_vectors(
    run: Callable[..., Path], table: Path, ids: list[str]
) -> None:
    page = run(f"explore.table=[{table}]", "inference.id_column=acc", "explore.label=group")
    text = page.read_text()
    data = data_of(page)
    assert "default-src 'none'" in text and text.count("</script>") == 2 and "<b>" not in text
    assert data["ids"] == ids and [one["name"] for one in data["columns"]] == [
        "group",
        "split",
        "mass",
    ]
    group, split, mass = data["columns"]
    assert group["names"] == [f"group {n}" for n in range(4)] and data["first"] == 0
    assert decoded(group["codes"], np.uint16).tolist()[:5] == [0, 1, 2, 3, 0]
    assert decoded(group["codes"], np.uint16)[23] == 65_535 and split["names"] == ["test", "train"]
    assert (mass["low"], mass["high"]) == (0, pytest.approx(39 / 7))
    assert decoded(data["neighbors"], np.uint32).shape == (400,)
    xy = decoded(data["maps"][0]["xy"], np.uint16).reshape(40, 2)
    assert xy.min() == 0 and xy.max() == 65_535 and "% of the variance" in data["maps"][0]["axes"]
    numbers = [
        key for key in data if key not in ("ids", "columns", "maps", "title", "about", "first")
    ]
    assert sorted(numbers) == ["distances", "neighbors", "transfer"]


def test_labels_of_the_reference_are_transferred(
    run: Callable[..., Path], table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = [f"explore.table=[{table}]", "inference.id_column=acc", "explore.label=group"]
    run(*named, "explore.split=split")
    found = pd.read_csv(tmp_path / "e.transfer.csv")
    assert len(found) == 8 and found["id"][0] == WILD_ID and found["transferred"][0] == "group 0"
    assert set(found["transferred"]) <= {f"group {n}" for n in range(4)}
    assert re.search(
        r"labels that are right: [01]\.\d{3} of 7; by distance: near", capsys.readouterr().out
    )
    with pytest.raises(
        ValueError,
        match=r"explore.label: no protein has a value of group and one of valid in split",
    ):
        run(*named, "explore.split=split", "explore.reference=[valid]")


def test_folds_are_whole_numbers_although_the_table_lacks_proteins(
    run: Callable[..., Path], ids: list[str], tmp_path: Path
) -> None:
    columns = {
        "id": ids[:30],
        "fold": [n % 5 for n in range(30)],
        "group": [f"g{n % 4}" for n in range(30)],
    }
    pd.DataFrame(columns).to_csv(tmp_path / "folds.csv", index=False)
    named = [
        f"explore.table=[{tmp_path / 'folds.csv'}]",
        "explore.label=group",
        "explore.split=fold",
    ]
    page = run(*named, "explore.reference=[0,1,2,3]")
    found = pd.read_csv(tmp_path / "e.transfer.csv")
    assert list(found["id"]) == [ids[n] for n in range(40) if n >= 30 or n % 5 == 4]
    fold, group = data_of(page)["columns"]
    assert (
        fold["names"] == ["0", "1", "2", "3", "4"]
        and decoded(fold["codes"], np.uint16)[35] == 65_535
    )
    assert found["label"].isna().sum() == 10 and group["names"] == ["g0", "g1", "g2", "g3"]


def test_tables_of_spreadsheets_are_read_as_they_are(
    run: Callable[..., Path], vectors: np.ndarray, tmp_path: Path
) -> None:
    """Ids may look like numbers, and labels like missing values. Another column may be called id."""
    names = [f"{number:03}" for number in range(40)]
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), SIZE)
    pq.write_table(pa.table({"id": names, "embedding": column}), tmp_path / "numbers.parquet")
    labels = ["NA", "None", "", "K"] * 10
    rows = [
        f"{name},{n},{label},{n}" for n, (name, label) in enumerate(zip(names, labels, strict=True))
    ]
    (tmp_path / "sheet.csv").write_text("\n".join([" acc,id,label, cluster", *rows]) + "\n")
    shared = [
        f"explore.embeddings={tmp_path / 'numbers.parquet'}",
        f"explore.table=[{tmp_path / 'sheet.csv'}]",
    ]
    run(*shared, "inference.id_column=acc", "explore.label=label", "explore.export=[jsonl]")
    data = data_of(tmp_path / "numbers.html")
    assert data["ids"] == names and [one["name"] for one in data["columns"]] == ["label", "cluster"]
    assert data["columns"][0]["names"] == ["NA", "None", "K"]
    lines = (tmp_path / "numbers.vectors.jsonl").read_text().splitlines()
    assert json.loads(lines[7])["metadata"] == {"label": "K", "cluster": 7}
    run(*shared, "inference.id_column=acc", "explore.label=cluster")
    data = data_of(tmp_path / "numbers.html")
    assert len(data["columns"][1]["names"]) == 40 and set(data["transfer"]["labels"]) < {
        *map(str, range(40))
    }


def test_the_table_of_a_task_may_have_other_proteins(
    embeddings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    explore(load_config("membrane_sample", [f"explore.embeddings={embeddings}"]))
    assert "note: explore.table: none of its ids" in capsys.readouterr().out
    assert not data_of(embeddings.with_suffix(".html"))["columns"]
    explore(
        load_config(
            "membrane_sample", [f"explore.embeddings={embeddings}", "task.table=[s3://b/x.csv]"]
        )
    )


def test_exports_have_the_vectors(
    run: Callable[..., Path], table: Path, vectors: np.ndarray, ids: list[str], tmp_path: Path
) -> None:
    named = [f"explore.table=[{table}]", "inference.id_column=acc", "explore.columns=[group]"]
    run(*named, "explore.export=[npy,parquet,jsonl]")
    array = np.load(tmp_path / "e.vectors.npy")
    assert (
        array.dtype == np.float32
        and (tmp_path / "e.vectors.ids.txt").read_text().splitlines() == ids
    )
    np.testing.assert_array_equal(array, vectors)
    stored = pq.read_table(tmp_path / "e.vectors.parquet")
    assert stored.schema.field("vector").type == pa.list_(pa.float32(), SIZE)
    np.testing.assert_array_equal(np.array(stored["vector"].to_pylist(), dtype=np.float32), vectors)
    lines = [json.loads(line) for line in (tmp_path / "e.vectors.jsonl").read_text().splitlines()]
    assert lines[0] == {
        "key": WILD_ID,
        "vector": vectors[0].tolist(),
        "metadata": {"group": "group 0"},
    }
    assert lines[23]["metadata"] == {}


def test_umap_is_a_second_map(monkeypatch: pytest.MonkeyPatch, vectors: np.ndarray) -> None:
    class Umap:
        def __init__(self, **settings: Any) -> None:
            assert settings == {"metric": "cosine", "random_state": 0}

        def fit_transform(self, values: np.ndarray) -> np.ndarray:
            return values[:, :2] + 1

    module = ModuleType("umap")
    module.__dict__.update(UMAP=Umap, __spec__=True)
    monkeypatch.setitem(sys.modules, "umap", module)
    pca, umap = projections(vectors)
    assert (pca.name, umap.name) == ("PCA", "UMAP")
    np.testing.assert_allclose(umap.points, vectors[:, :2] + 1)


def test_a_part_of_many_proteins_is_on_the_map(
    run: Callable[..., Path], table: Path, vectors: np.ndarray, ids: list[str], tmp_path: Path
) -> None:
    page = run(
        "explore.max_proteins=12", "explore.export=[npy]", "explore.label=group", *named(table)
    )
    data = data_of(page)
    drawn = data["ids"]
    assert len(drawn) == 12 and drawn != ids[:12] and drawn == [one for one in ids if one in drawn]
    assert data_of(run("explore.max_proteins=12"))["ids"] == drawn
    assert (
        len(np.load(tmp_path / "e.vectors.npy"))
        == 40
        == len(pd.read_csv(tmp_path / "e.transfer.csv"))
    )
    labels = transfer(lambda: [vectors], pd.read_csv(table)["group"].notna().to_numpy())
    expected = [ids[labels.nearest[ids.index(one)]] for one in drawn]
    assert data["transfer"]["ids"] == expected and len(data["transfer"]["labels"]) == 12


def test_wrong_input_is_refused(
    run: Callable[..., Path], table: Path, vectors: np.ndarray, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.parquet"
    values = vectors.copy()
    values[0, 0] = np.nan
    column = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), SIZE)
    pq.write_table(pa.table({"id": [str(n) for n in range(40)], "a": column, "b": column}), broken)
    vector = tmp_path / "vector.csv"
    vector.write_text("id,vector\nP1,2\n")
    for overrides, reason in (
        (
            ["explore.embeddings=none.parquet"],
            "none.parquet cannot be read: .* run seqlm embed first",
        ),
        ([f"explore.embeddings={table}"], "is not a Parquet file"),
        ([f"explore.embeddings={broken}"], "explore.vectors: got None; .* has a, b"),
        ([f"explore.embeddings={broken}", "explore.vectors=a"], "1 numbers are not finite"),
        (["explore.vectors=c"], "explore.vectors: got c; .* has embedding"),
        (["explore.output=map.txt"], "must end in .html"),
        (["explore.label=group"], "explore.table: got none; name the table with the column group"),
        (
            [f"explore.table=[{table}]", "inference.id_column=key"],
            "explore.table: no column key; the columns are acc, sequence",
        ),
        (
            [f"explore.table=[{table}]", "inference.id_column=split"],
            "the id 'train' occurs more than once",
        ),
        (
            [f"explore.table=[{table}]", "inference.id_column=mass"],
            r"none of its ids, such as '0\.0'",
        ),
        ([f"explore.table=[{vector}]", "explore.export=[parquet]"], "explore.columns: got vector"),
        (
            [f"explore.table=[{table}]", "inference.id_column=acc", "explore.label=kind"],
            "no column kind",
        ),
    ):
        with pytest.raises(ValueError, match=reason):
            run(*overrides)
