"""Turn one entry of ``data.source`` into files on this machine.

An entry is ``sample`` (the proteins in this repository), ``uniref50``, ``uniref90`` or
``idmapping`` (UniProt's current release), a file, a folder, or an https:// or s3:// address.
A file called like one of the words is given as ``./sample``.
"""

from __future__ import annotations

from pathlib import Path

from .remotes import FetchError, HttpRemote, s3_remotes
from .transfer import download

SAMPLE = Path(__file__).parent / "sample" / "proteins.fasta.gz"
_CURRENT_RELEASE = "https://ftp.uniprot.org/pub/databases/uniprot/current_release"
NAMED_ADDRESSES = {
    "uniref50": f"{_CURRENT_RELEASE}/uniref/uniref50/uniref50.fasta.gz",
    "uniref90": f"{_CURRENT_RELEASE}/uniref/uniref90/uniref90.fasta.gz",
    "idmapping": f"{_CURRENT_RELEASE}/knowledgebase/idmapping/idmapping_selected.tab.gz",
}
FASTA_SUFFIXES = (".fasta", ".fasta.gz", ".fa", ".fa.gz", ".faa", ".faa.gz")
"""What counts as FASTA in a folder. A file that is named itself may have any suffix: its reader checks it."""


def fetch(location: str, downloads: Path, *, progress: bool = True) -> list[Path]:
    """Local files of ``location``, downloaded into ``downloads`` where they are not on this machine.

    Raises:
        FetchError: (a ValueError) naming the location, what is wrong with it and what to do.
    """
    if location == "sample":
        if not SAMPLE.is_file():
            raise FetchError(f"sample: {SAMPLE} is missing; restore it with: git checkout -- {SAMPLE}")
        return [SAMPLE]
    address = NAMED_ADDRESSES.get(location, location)
    scheme, separator, _ = address.partition("://")
    if not separator:
        return _local_files(address)
    match scheme.lower():
        case "https" | "http":
            return [download(HttpRemote(address), downloads, progress=progress)]
        case "s3":
            return _s3_files(address, downloads, progress=progress)
        case _:
            raise FetchError(
                f"{scheme}://... cannot be read; allowed are https:// and s3:// addresses, paths of files "
                f"and folders, sample, {', '.join(NAMED_ADDRESSES)}"
            )


def _local_files(location: str) -> list[Path]:
    path = Path(location).expanduser()
    if path.is_dir():
        found = sorted(file for file in path.iterdir() if is_fasta_name(file.name) and file.is_file())
        if not found:
            raise FetchError(
                f"{path}: no FASTA file in this folder; their names end in {', '.join(FASTA_SUFFIXES)} "
                "(folders inside it are not searched)"
            )
        return found
    if path.is_file():
        return [path]
    raise FetchError(
        f"{location}: no such file or folder, or it is a pipe or a link to nothing (looked in {Path.cwd()}); "
        f"give a path, an https:// or s3:// address, sample, {', '.join(NAMED_ADDRESSES)}"
    )


def _s3_files(address: str, downloads: Path, *, progress: bool) -> list[Path]:
    remotes = s3_remotes(address)
    if address.endswith("/"):
        remotes = [remote for remote in remotes if is_fasta_name(remote.name)]
    if not remotes:
        raise FetchError(
            f"{address}: no FASTA object under this prefix; their names end in {', '.join(FASTA_SUFFIXES)}"
        )
    return [download(remote, downloads, progress=progress) for remote in remotes]


def is_fasta_name(name: str) -> bool:
    """Whether a folder's file counts as FASTA. Hidden ones do not: macOS leaves ``._x.fasta`` behind."""
    return name.lower().endswith(FASTA_SUFFIXES) and not name.startswith(".")
