"""Archives from elsewhere, unpacked into a folder and nowhere else."""

from __future__ import annotations

import tarfile
from pathlib import Path, PurePosixPath


def extract(tar: tarfile.TarFile, folder: Path) -> None:
    """Unpack files and folders.

    tarfile does it by its filter, which came with Python 3.11.4; Debian 12 has 3.11.2.

    Raises:
        tarfile.TarError: for an entry outside of the folder, a device, and without the filter a link.
    """
    if hasattr(tarfile, "data_filter"):
        tar.extractall(folder, filter="data")
        return
    for member in tar.getmembers():
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or not (member.isreg() or member.isdir()):
            raise tarfile.ExtractError(f"{member.name} is no file of the folder that it is unpacked into")
        member.mode &= 0o755
    tar.extractall(folder)
