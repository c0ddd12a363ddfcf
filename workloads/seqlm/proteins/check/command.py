"""Check of files before they are used: ``seqlm check FILE...``. It computes nothing and needs no torch."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from seqlm.proteins.data.sources import SOURCES
from seqlm.training.command_line import escaped, one_line_errors
from seqlm.training.data.transfer import fetch

from .file_check import (
    ID_OPTION,
    LABEL_OPTION,
    MUTATION_OPTION,
    SEQUENCE_OPTION,
    NamedByUser,
    check_file,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what would be read of files; exit with 2 if nothing of one of them can be used."""
    parser = argparse.ArgumentParser(
        prog="seqlm check",
        description="Print what would be read of files with proteins, mutations or labels: form, columns, "
        "records and oddities. The exit status is 2 if nothing of a file can be used.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="file, or folder of files")
    parser.add_argument(ID_OPTION, help="column with the ids; by default found by its name")
    parser.add_argument(
        SEQUENCE_OPTION, help="column with the sequences; by default found by its name"
    )
    parser.add_argument(MUTATION_OPTION, help="column with mutations; by default found by its name")
    parser.add_argument(
        LABEL_OPTION,
        action="append",
        default=[],
        help="column with labels, may be given several times; by default found by its name",
    )
    options = parser.parse_args(arguments)
    columns = NamedByUser(
        options.id_column, options.sequence_column, options.mutation_column, options.label_column
    )
    with one_line_errors():
        unusable = _check_all(options.files, columns)
        if unusable:
            raise ValueError(f"nothing can be used of {', '.join(unusable)}")


def _check_all(locations: Sequence[str], columns: NamedByUser) -> list[str]:
    """Print the findings of all files; return the names of those of which nothing can be used."""
    unusable: list[str] = []
    for location in locations:
        for path in _files(location):
            check = check_file(path, columns)
            for line in check.lines():
                print(escaped(line))
            sys.stdout.flush()
            if check.unusable:
                unusable.append(str(path))
    return unusable


def _files(location: str) -> list[Path]:
    """Return the files of a folder; a file, or a name that does not exist, as it is."""
    path = Path(location).expanduser()
    return fetch(location, path, SOURCES) if path.is_dir() else [path]
