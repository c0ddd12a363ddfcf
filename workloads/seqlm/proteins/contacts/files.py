"""Files with the matrices and pictures of ``seqlm contacts``, in a folder beside the table.

The first proteins have files of their own: the matrix as .npz and as .tsv, and a picture. The matrices of the
others are in one .npz per part of the result, with an array per protein. A picture takes longer than the
contacts themselves, and a folder of millions of files is slow on any file system.
"""

import hashlib
import re
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from seqlm.proteins.inference.records import Protein
from seqlm.proteins.reading.chains import ChainSpan
from seqlm.training.whole_file import writing_whole

from .head import Chain, Matrix
from .picture import comparison_figure, prediction_figure
from .truth import described, precisions

OWN_FILES = 20
"""Number of the first proteins with files of their own, unless ``inference.all_pictures`` asks for all."""
ARCHIVES = "matrices.[0-9]*.npz"
"""Pattern of the files with the matrices of the other proteins. Names of proteins have no dots."""
MATRIX = "contacts"
"""Name of the matrix in the file of a protein."""
MAX_NAME_CHARACTERS = 80
"""Largest number of characters of an id in the name of a file."""
HASH_BYTES = 3
"""Bytes of the hash of a sequence in the name of a file."""
_ARRAY_END = ".npy"
"""Suffix of an array in a .npz file."""


def file_name(protein: Protein) -> str:
    """Return the id as a file name, with a hash, because several records may have one id."""
    digest = hashlib.blake2b(protein.tokens.tobytes(), digest_size=HASH_BYTES).hexdigest()
    safe = re.sub(r"[^A-Za-z0-9_-]+", "-", protein.id)[:MAX_NAME_CHARACTERS]
    return f"{safe}-{digest}"


def arrays_of(name: str, probabilities: Matrix, chains: Sequence[ChainSpan]) -> dict[str, Any]:
    """Return the arrays of a protein by their names.

    Args:
        name: name of the matrix.
        probabilities: probability of each pair, (L, L).
        chains: chains of the protein; empty for one. Their names and lengths are two more arrays.
    """
    arrays: dict[str, Any] = {name: probabilities}
    if chains:
        prefix = "" if name == MATRIX else f"{name}."
        arrays[f"{prefix}chains"] = np.array([span.name for span in chains])
        arrays[f"{prefix}lengths"] = np.array([len(span) for span in chains])
    return arrays


def write_contacts(
    path: Path,
    title: str,
    probabilities: Matrix,
    truth: Chain | None = None,
    chains: Sequence[ChainSpan] = (),
) -> None:
    """Write ``path`` with the ends .npz, .tsv and .png; each file appears whole or not at all.

    Args:
        path: path of the files, without their ends.
        title: title of the picture.
        probabilities: probability of each pair, (L, L).
        truth: chain with its contacts, with which the picture compares; None if they are not known.
        chains: chains of the protein; empty for one. Their names and lengths are in the .npz, too.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing_whole(path.with_name(f"{path.name}.npz")) as file:
        np.savez_compressed(file, **arrays_of(MATRIX, probabilities, chains))
    with writing_whole(path.with_name(f"{path.name}.tsv")) as file:
        np.savetxt(file, probabilities, fmt="%.4f", delimiter="\t")
    with writing_whole(path.with_name(f"{path.name}.png")) as file:
        if truth is None:
            figure = prediction_figure(title, probabilities, chains)
        else:
            lines = described(precisions(truth, probabilities)).split("; ")
            figure = comparison_figure(title, probabilities, truth, lines)
        figure.savefig(file, dpi=150)


class MatrixArchive:
    """Writer of the matrices of a part, which holds one of them in memory at a time.

    The file appears when the block ends without an error, and only if it has a matrix.

    Args:
        folder: folder of the matrices.
        part: number of the part.
    """

    def __init__(self, folder: Path, part: int) -> None:
        self._path = folder / f"matrices.{part:06d}.npz"
        self._open_files = ExitStack()
        self._archive: zipfile.ZipFile | None = None
        self._names: set[str] = set()

    def __enter__(self) -> Self:
        self._open_files.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open_files.__exit__(kind, error, traceback)
        if self._archive is None:
            # An earlier result may have had more proteins in this part.
            self._path.unlink(missing_ok=True)

    def add(self, name: str, probabilities: Matrix, chains: Sequence[ChainSpan]) -> None:
        """Add the matrix of a protein. A record that repeats another in id and sequence has the same."""
        if name in self._names:
            return
        self._names.add(name)
        archive = self._archive or self._opened()
        for array_name, array in arrays_of(name, probabilities, chains).items():
            with archive.open(array_name + _ARRAY_END, "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.ascontiguousarray(array), allow_pickle=False)

    def _opened(self) -> zipfile.ZipFile:
        """Return the file, which is created."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._open_files.enter_context(writing_whole(self._path))
        archive = zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED)
        self._archive = self._open_files.enter_context(archive)
        return archive


class Matrices:
    """Reader of the matrices in a folder.

    Args:
        folder: folder of the matrices.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._archive_of: dict[str, Path] | None = None
        """Archive of each matrix, by the name of its protein; None until a matrix is looked up there."""

    def read(self, protein: Protein, *, has_own_file: bool) -> Matrix:
        """Return the matrix of a protein.

        Args:
            protein: protein of the result.
            has_own_file: whether it has files of its own. Files of an earlier result may lie beside them.

        Raises:
            ValueError: if its file is missing or damaged.
        """
        name = file_name(protein)
        file = self._folder / f"{name}.npz"
        array = MATRIX
        if not has_own_file:
            if self._archive_of is None:
                self._archive_of = dict(self._archived())
            file = self._archive_of.get(name, file)
            array = name
        try:
            with np.load(file) as saved:
                return np.asarray(saved[array], dtype=np.float32)
        except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
            raise _unreadable(file, error) from None

    def _archived(self) -> Iterator[tuple[str, Path]]:
        """Yield the name of each array in the archives, with its file, those of the first part last."""
        for file in sorted(self._folder.glob(ARCHIVES), reverse=True):
            try:
                with zipfile.ZipFile(file) as archive:
                    names = archive.namelist()
            except (OSError, zipfile.BadZipFile) as error:
                raise _unreadable(file, error) from None
            for name in names:
                yield name.removesuffix(_ARRAY_END), file


def _unreadable(file: Path, error: Exception) -> ValueError:
    """Return the error for a file that cannot be read."""
    return ValueError(
        f"{file} cannot be read ({error}); delete the table beside its folder, and run the command again"
    )
