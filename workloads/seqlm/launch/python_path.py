"""Python's path of child processes: they import the same ``seqlm`` as this process, from any folder."""

import os
from pathlib import Path

VARIABLE = "PYTHONPATH"
SOURCE_ROOT = Path(os.path.abspath(__file__)).parents[2]
"""Folder that has the package."""
SITE_FOLDERS = frozenset({"site-packages", "dist-packages"})
"""Folders of installed packages. Python finds them without ``PYTHONPATH``, after its own modules."""


def hand_on_python_path() -> None:
    """Make the folders in ``PYTHONPATH`` absolute, and add that of a package that is not installed.

    A child process may work in another folder, where ``PYTHONPATH=workloads`` would lead nowhere.
    """
    inherited = os.environ.get(VARIABLE, "")
    folders = (
        [os.path.abspath(folder) for folder in inherited.split(os.pathsep)] if inherited else []
    )
    if SOURCE_ROOT.name not in SITE_FOLDERS and str(SOURCE_ROOT) not in folders:
        folders.append(str(SOURCE_ROOT))
    if folders:
        os.environ[VARIABLE] = os.pathsep.join(folders)
