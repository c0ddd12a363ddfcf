"""The folder that all processes of one pytest session share."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

VARIABLE = "TESTS_SHARED_FOLDER"


def shared_folder() -> Path:
    """The folder, which the first process to ask makes. It removes it in the end."""
    if VARIABLE not in os.environ:
        os.environ[VARIABLE] = tempfile.mkdtemp(prefix="tests-")
        atexit.register(_remove, os.environ[VARIABLE], os.getpid())
    return Path(os.environ[VARIABLE])


def _remove(folder: str, owner: int) -> None:
    # Forked processes inherit what is registered.
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
