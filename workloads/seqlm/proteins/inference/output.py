"""Output of a command: the parts, and the table into which they are joined."""

import glob
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from seqlm.launch.progress import parts_folder
from seqlm.proteins.reading.policies import Kind, Reader
from seqlm.proteins.reading.rejects import Reject, join_rejects, write_rejects
from seqlm.runs.inference_commands import PARQUET, inference_command
from seqlm.runs.run_file import RunFile
from seqlm.training.heartbeat import beat
from seqlm.training.strict_yaml import read_mapping
from seqlm.training.whole_file import move_into_place, write_whole

from .output_file import output_file
from .records import READERS, input_key, with_policies

_REJECTS = b"rejects"
"""Key of the rejects in the metadata of a part's table, where earlier versions wrote them."""
_LONGEST_TEXT = 2**31 - 1
"""Largest number of bytes of a text in the metadata of a part. Arrow's default is smaller than the rejects of
earlier versions."""
_ROW_GROUP_ROWS = 4096


class Output:
    """Table, its ``<name>.json``, ``<name>.rejects.csv`` if there are rejects, and heat maps of variants."""

    def __init__(self, config: RunFile, command: str) -> None:
        path = output_file(config, command)
        self.path = path
        """File of the table."""
        self.folder = parts_folder(path)
        """Folder of the parts."""
        self.rejects = path.with_name(path.name + ".rejects.csv")
        self.summary = path.with_name(path.name + ".json")
        """File of the settings and totals."""
        self._reader = READERS[command]
        self._config = with_policies(config, self._reader)
        self._has_pictures = inference_command(command).draws
        self._companions = inference_command(command).companions

    def is_finished(self, key: str) -> bool:
        """Return whether the file holds the complete result with this key."""
        return self.path.exists() and self._has_key(key)

    def check_free(self, key: str | None = None) -> None:
        """Refuse to replace files that the command with this key did not write.

        Without a key, refuse a result of other proteins or settings, as far as its summary shows them.

        Raises:
            ValueError: naming an existing file, and the option that replaces it.
        """
        if self._config.inference.overwrite:
            return
        taken = [path for path in [*self._files(), self.summary] if path.exists()]
        if not taken:
            return
        is_ours = self._has_input() if key is None else self._has_key(key)
        if not is_ours:
            raise ValueError(
                f"{taken[0]} exists and is not from the same proteins, model and settings; name another "
                "inference.output, or set inference.overwrite=true to replace it"
            )

    def _has_input(self) -> bool:
        """Return whether the summary names the proteins and settings of the run file."""
        inference = self._config.inference
        known = {
            "model": inference.model or str(self._config.run_dir / "model"),
            "max_residues": self._config.model.max_residues,
            "long_proteins": inference.long_proteins,
        }
        written = read_mapping(self.summary)
        if any(written.get(name) != value for name, value in known.items()):
            return False
        # Earlier versions wrote no key of the input.
        if "input_key" not in written:
            return True
        # Earlier versions listed long proteins in the key as commands do that may shorten them.
        readers = dict.fromkeys([self._reader, Reader.INFERENCE])
        return any(written["input_key"] == input_key(self._config, one) for one in readers)

    def _has_key(self, key: str) -> bool:
        """Return whether the summary has this key."""
        try:
            return bool(json.loads(self.summary.read_text())["key"] == key)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def _files(self) -> list[Path]:
        """Return the files of the result besides the summary, whether they exist or not."""
        beside = [self.path.with_suffix(end) for end in self._companions]
        files = [self.path, self.rejects, *beside]
        if self._has_pictures:
            files += self.path.parent.glob(f"{glob.escape(self.path.stem)}.[0-9][0-9]-*.png")
        return files

    def write_part(self, name: str, table: pa.Table, rejects: Sequence[Reject]) -> None:
        """Write the file of a part, whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if rejects:
            # First, because the table marks the part as complete.
            write_rejects(self._rejects_of(name), rejects, has_header=False)
        partial = self.folder / f".{name}-{os.getpid()}"
        pq.write_table(table, partial, row_group_size=_ROW_GROUP_ROWS)
        move_into_place(partial, self.folder / name)

    def _rejects_of(self, name: str) -> Path:
        """Return the file with the rejects of a part."""
        return self.folder / f"{name}.rejects.csv"

    def _write_earlier_rejects(self, name: str, metadata: Mapping[bytes, bytes]) -> None:
        """Write the rejects that an earlier version has stored in the metadata of a part's table."""
        if _REJECTS in metadata:
            rejects = [
                Reject(Kind(kind), where, reason)
                for where, kind, reason in json.loads(metadata[_REJECTS])
            ]
            if rejects:
                write_rejects(self._rejects_of(name), rejects, has_header=False)

    def join(self, names: Iterable[str], summary: dict[str, Any]) -> None:
        """Write the parts in their order as one file, and the summary and the rejects.

        Each file appears whole or not at all. If the command is killed here, the next one joins the parts
        again. For this, the summary is written first, because its key identifies the other files, and the
        parts are deleted last.
        """
        partial = self.path.with_name(f".{self.path.name}-{os.getpid()}")
        rejects: list[Path] = []
        writer: pq.ParquetWriter | _CsvWriter | None = None
        for name in names:
            beat("joining the parts")
            part_file = self.folder / name
            with pq.ParquetFile(part_file, thrift_string_size_limit=_LONGEST_TEXT) as part:
                schema = part.schema_arrow
                self._write_earlier_rejects(name, schema.metadata or {})
                if self._rejects_of(name).exists():
                    rejects.append(self._rejects_of(name))
                if writer is None:
                    writer = self._writer(partial, schema, summary)
                for batch in part.iter_batches(_ROW_GROUP_ROWS):
                    writer.write_batch(batch.replace_schema_metadata(writer.schema.metadata))
        assert writer is not None  # a plan has at least one part
        writer.close()
        for old in self._files():
            old.unlink(missing_ok=True)
        write_whole(self.summary, json.dumps(summary, indent=2) + "\n")
        if rejects:
            join_rejects(self.rejects, rejects)
        move_into_place(partial, self.path)
        shutil.rmtree(self.folder)

    def _writer(
        self, path: Path, schema: pa.Schema, summary: dict[str, Any]
    ) -> "pq.ParquetWriter | _CsvWriter":
        if self.path.suffix == PARQUET:
            return pq.ParquetWriter(
                path, schema.with_metadata({b"esm2": json.dumps(summary).encode()})
            )
        return _CsvWriter(path, schema)


class _CsvWriter:
    """CSV writer; lists, with one entry per residue, become text with blanks between the entries."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        fields = []
        for column in schema:
            is_list = pa.types.is_list(column.type)
            fields.append(pa.field(column.name, pa.string()) if is_list else column)
        self.schema = pa.schema(fields)
        self._writer = pa.csv.CSVWriter(path, self.schema)

    def write_batch(self, batch: pa.RecordBatch) -> None:
        columns = [
            _as_text(column) if pa.types.is_list(column.type) else column
            for column in batch.columns
        ]
        self._writer.write_batch(pa.record_batch(columns, schema=self.schema))

    def close(self) -> None:
        self._writer.close()


def _as_text(column: pa.Array) -> pa.Array:
    """Return lists of numbers as text."""
    return pa.array([" ".join(f"{number:.4f}" for number in row) for row in column.to_pylist()])
