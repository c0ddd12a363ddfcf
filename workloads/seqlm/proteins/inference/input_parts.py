"""Parsed input of a command, in one file per part.

The first process reads the input and writes these files. Each process then takes the parts that it computes,
so the input is parsed once, whatever the number of processes, and compressed files need no seeking.
"""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqlm.proteins.reading.chains import ChainSpan
from seqlm.proteins.reading.policies import Kind
from seqlm.proteins.reading.rejects import Reject
from seqlm.training.whole_file import naming

from .records import Part, Planned, Protein

FOLDER = ".input"
"""Name of the folder with these files, in the folder of the results of parts."""
_CHAIN = pa.struct([("name", pa.string()), ("start", pa.int64()), ("stop", pa.int64())])
_PROTEINS = pa.schema(
    [
        ("id", pa.string()),
        ("tokens", pa.large_binary()),
        ("file", pa.dictionary(pa.int32(), pa.string())),
        ("chains", pa.list_(_CHAIN)),
    ]
)
_REJECTS = pa.schema([("where", pa.string()), ("kind", pa.string()), ("reason", pa.string())])


class InputParts:
    """Files with the parsed parts of the input.

    Args:
        results: folder of the results of parts.
    """

    def __init__(self, results: Path) -> None:
        self._results = results
        self._folder = results / FOLDER
        self.complete = self._folder / "complete"
        """File that exists once the whole input is read."""

    def clear(self) -> None:
        """Delete all files, and the folder of the results if it has none."""
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._results.exists() and not any(self._results.iterdir()):
            self._results.rmdir()

    def write(self, part: Part) -> None:
        """Write a part."""
        columns = [
            pa.array([protein.id for protein in part.proteins], pa.string()),
            pa.array([protein.tokens.tobytes() for protein in part.proteins], pa.large_binary()),
            pa.array([protein.file for protein in part.proteins], pa.string()).dictionary_encode(),
            pa.array([_of_spans(protein.chains) for protein in part.proteins], pa.list_(_CHAIN)),
        ]
        self._folder.mkdir(parents=True, exist_ok=True)
        self._write(part.planned, "proteins", pa.record_batch(columns, schema=_PROTEINS))
        if part.rejects:
            cells = [reject.cells for reject in part.rejects]
            of_rejects = [pa.array(column, pa.string()) for column in zip(*cells, strict=True)]
            self._write(part.planned, "rejects", pa.record_batch(of_rejects, schema=_REJECTS))

    def read(self, number: int, planned: Planned) -> Part:
        """Return a part.

        Args:
            number: position among the parts, from 0.
            planned: description of the part.
        """
        batch = self._read(planned, "proteins")
        proteins = [
            Protein(name, tokens, file, _spans(chains))
            for name, tokens, file, chains in zip(
                batch.column("id").to_pylist(),
                _tokens(batch.column("tokens")),
                batch.column("file").to_pylist(),
                batch.column("chains").to_pylist(),
                strict=True,
            )
        ]
        rejects: list[Reject] = []
        if planned.num_rejects:
            of_rejects = self._read(planned, "rejects")
            rejects = [
                Reject(Kind(row["kind"]), row["where"], row["reason"])
                for row in of_rejects.to_pylist()
            ]
        return Part(number, proteins, rejects, planned)

    def drop(self, planned: Planned) -> None:
        """Delete the files of a part."""
        for kind in ("proteins", "rejects"):
            self._path(planned, kind).unlink(missing_ok=True)

    def write_numbers(self, planned: Planned, numbers: npt.NDArray[np.int32]) -> None:
        """Write the numbers of a part's records among those with their id."""
        batch = pa.record_batch([pa.array(numbers, pa.int32())], names=["number"])
        self._write(planned, "numbers", batch)

    def numbers(self, planned: Planned) -> npt.NDArray[np.int32]:
        """Return the numbers that ``write_numbers`` has written."""
        found: npt.NDArray[np.int32] = self._read(planned, "numbers").column("number").to_numpy()
        return found

    def mark_complete(self) -> None:
        """Let the other processes continue."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self.complete.touch()

    def _path(self, planned: Planned, kind: str) -> Path:
        return self._folder / f"{planned.file}.{kind}"

    def _write(self, planned: Planned, kind: str, batch: pa.RecordBatch) -> None:
        path = self._path(planned, kind)
        with (
            naming(path),
            pa.OSFile(str(path), "wb") as stream,
            pa.ipc.new_stream(stream, batch.schema) as writer,
        ):
            writer.write_batch(batch)

    def _read(self, planned: Planned, kind: str) -> pa.RecordBatch:
        with pa.OSFile(str(self._path(planned, kind))) as stream:
            return pa.ipc.open_stream(stream).read_next_batch()


def _of_spans(spans: Sequence[ChainSpan]) -> list[dict[str, object]]:
    return [{"name": span.name, "start": span.start, "stop": span.stop} for span in spans]


def _spans(chains: list[dict[str, object]]) -> tuple[ChainSpan, ...]:
    return tuple(ChainSpan(**chain) for chain in chains)  # type: ignore[arg-type]


def _tokens(column: pa.LargeBinaryArray) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the token ids of each protein, as views of the column."""
    _, bounds, values = column.buffers()
    offsets = np.frombuffer(bounds, np.int64, len(column) + 1)
    # A part of empty proteins has no buffer.
    tokens = np.frombuffer(values or b"", np.uint8)
    for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        yield tokens[start:stop]
