"""Rows of a workbook (xlsx), which openpyxl reads."""

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .compressions import MAX_EXPANDED_BYTES, MAX_EXPANSION
from .limits import MIB
from .source_file import note_once, reading


def workbook_rows(path: Path) -> Iterator[list[Any]]:
    """Iterate over the rows of the first sheet of a workbook, from its first row that has a value.

    Raises:
        ValueError: if the workbook is damaged or too large, or openpyxl is missing.
    """
    try:
        import openpyxl
    except ModuleNotFoundError:
        raise ValueError(
            f"{path} is a workbook (xlsx), and openpyxl is not installed; install it with "
            "pip install 'seqlm[xlsx]', or save the table as CSV"
        ) from None
    _check_size(path)
    try:
        with reading(path):
            # As a stream, because openpyxl looks at the names of files.
            book = openpyxl.load_workbook(path.open("rb"), read_only=True, data_only=True)
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as a workbook ({error}); save it again") from None
    names = book.sheetnames
    if len(names) > 1:
        note_once(f"{path} has {len(names)} sheets; the first one, {names[0]}, is read")
    try:
        has_begun = False
        for row in book.worksheets[0].iter_rows(values_only=True):
            cells = list(row)
            has_begun = has_begun or any(cell is not None for cell in cells)
            if has_begun:
                yield cells
    finally:
        book.close()


def _check_size(path: Path) -> None:
    """Refuse a workbook that expands too much, because its strings are held in memory."""
    try:
        with zipfile.ZipFile(path) as archive:
            expanded = sum(member.file_size for member in archive.infolist())
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path} cannot be read as a workbook ({error}); save it again") from None
    packed = path.stat().st_size
    if expanded > min(MAX_EXPANDED_BYTES, MAX_EXPANSION * packed + MIB):
        raise ValueError(
            f"{path} is a workbook that expands from {packed:,} to {expanded:,} bytes; allowed are "
            f"{MAX_EXPANDED_BYTES // MIB} MiB and {MAX_EXPANSION} times the file. Save the table as CSV"
        )
