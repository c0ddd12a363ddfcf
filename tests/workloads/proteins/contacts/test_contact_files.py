"""Number of files that contacts have, and the matrices in them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from seqlm.proteins.alphabet import encode
from seqlm.proteins.contacts import command, files, head
from seqlm.proteins.contacts.command import contacts
from seqlm.proteins.contacts.files import Matrices, MatrixArchive, file_name, write_contacts
from seqlm.proteins.contacts.head import ContactHead
from seqlm.proteins.inference.records import Protein
from seqlm.proteins.model.pretrained import load_model
from seqlm.proteins.reading.chains import ChainSpan
from seqlm.runs.run_file import RunFile
from seqlm.training.processes import Processes
from tests.workloads.proteins.inference.conftest import configured, here  # noqa: F401


def protein(name: str, sequence: str) -> Protein:
    return Protein(name, np.frombuffer(encode(sequence), np.uint8), "x.fasta")


def matrix(number: int) -> np.ndarray:
    return np.random.default_rng(number).random((number + 2, number + 2), dtype=np.float32)


def test_matrices_of_a_part_are_in_one_file(tmp_path: Path) -> None:
    proteins = [protein(f"P.{number}", "MAGV" * (number + 1)) for number in range(5)]
    chains = [ChainSpan("H", 0, 1), ChainSpan("L", 1, 2)]
    with MatrixArchive(tmp_path / "contacts", 3) as archive:
        for number, one in enumerate(proteins):
            archive.add(file_name(one), matrix(number), chains if number == 0 else ())
        archive.add(file_name(proteins[0]), matrix(0), ())
    [written] = (tmp_path / "contacts").iterdir()
    assert written.name == "matrices.000003.npz"
    matrices = Matrices(tmp_path / "contacts")
    for number, one in enumerate(proteins):
        found = matrices.read(one, has_own_file=False)
        np.testing.assert_array_equal(found, matrix(number))
    with np.load(written) as saved:
        assert saved[f"{file_name(proteins[0])}.lengths"].tolist() == [1, 1]
        assert len(saved.files) == 7
    with pytest.raises(ValueError, match="cannot be read"):
        matrices.read(protein("other", "MAGV"), has_own_file=False)


def test_a_failed_part_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(KeyError), MatrixArchive(tmp_path, 0) as archive:
        archive.add("a", matrix(1), ())
        raise KeyError("a")
    assert list(tmp_path.iterdir()) == []


def test_files_of_an_earlier_result_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pictures and archives may remain in the folder."""
    monkeypatch.setattr(files, "prediction_figure", lambda *_: Figure())
    one = protein("a", "MAGV")
    write_contacts(tmp_path / file_name(one), "a", matrix(1))
    for part in (0, 7):
        with MatrixArchive(tmp_path, part) as archive:
            archive.add(file_name(one), matrix(2 + part), ())
    matrices = Matrices(tmp_path)
    np.testing.assert_array_equal(matrices.read(one, has_own_file=False), matrix(2))
    np.testing.assert_array_equal(matrices.read(one, has_own_file=True), matrix(1))
    with MatrixArchive(tmp_path, 0):
        pass
    assert not (tmp_path / "matrices.000000.npz").exists()


class Figure:
    """Picture that takes no time."""

    def savefig(self, file: Path, **_: object) -> None:
        file.write_bytes(b"picture")


@pytest.mark.parametrize(
    ("all_pictures", "num_pictures", "num_files"), [(False, 2, 8), (True, 5, 15)]
)
def test_the_number_of_pictures_is_bounded(
    all_pictures: bool,
    num_pictures: int,
    num_files: int,
    configured: Callable[..., RunFile],  # noqa: F811
    here: Processes,  # noqa: F811
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "OWN_FILES", 2)
    drawn: list[str] = []

    def draw(title: str, *_: object) -> Figure:
        drawn.append(title)
        return Figure()

    monkeypatch.setattr(files, "prediction_figure", draw)
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    weights = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    head.save(load_model(str(model)), str(model), ContactHead(weights, -0.5))
    fasta = tmp_path / "p.fasta"
    fasta.write_text("".join(f">P{number}\nMAGVLSERTIDPKQ\n" for number in range(5)))
    output = tmp_path / "contacts.csv"
    # A part ends after three proteins.
    fields = {"input": [str(fasta)], "output": str(output), "part_residues": 40}
    contacts(configured(model=str(model), all_pictures=all_pictures, **fields), here)
    assert drawn == [f"P{number}" for number in range(num_pictures)]
    written = list((tmp_path / "contacts").iterdir())
    assert len(written) == num_files
    matrices = Matrices(tmp_path / "contacts")
    for number in range(5):
        one = protein(f"P{number}", "MAGVLSERTIDPKQ")
        found = matrices.read(one, has_own_file=number < num_pictures)
        assert found.shape == (14, 14)
