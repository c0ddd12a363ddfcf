"""A user's home on the shared file system, which many nodes create at the same moment.

Root works only in the folder of all homes, in which users cannot create anything. Work inside a home runs as
its user, because users could put symbolic links to any place there.
"""

import os
import pwd
import shutil
import stat
import tempfile
from pathlib import Path

from node_setup.failure import SetupError
from node_setup.host import Host
from node_setup.root_folder import root_folder

HOME_MODE = 0o700
"""Mode of a new home; the owner may open it for others."""
SKELETON = "/etc/skel"
"""Folder of the files that a new home begins with."""


def is_home_of(path: Path, uid: int) -> bool:
    """Return whether this folder of the folder of all homes is the user's."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == uid


def make_home(host: Host, path: str, uid: int, gid: int) -> bool:
    """Create the user's home with the skeleton's files, and return whether this call created it.

    Raises:
        SetupError: if it belongs to another user, is not a folder, or cannot be given to the user.
    """
    with root_folder(host, os.path.dirname(path)) as homes:
        home = homes / os.path.basename(path)
        if not os.path.lexists(home):
            try:
                return _make(host, home, uid, gid)
            except OSError as error:
                raise SetupError(
                    f"{path} cannot be created: {error.strerror}",
                    "the file system is full or read-only, or does not let root of the nodes be root "
                    "(no_root_squash)",
                ) from None
        found = home.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid:
        raise SetupError(
            f"{path} must be a folder of uid {uid}: it is {stat.filemode(found.st_mode)} of "
            f"{_owner(found.st_uid)}",
            "give the user another name or that uid in the cluster file, or move the existing folder away",
        )
    return False


def _make(host: Host, home: Path, uid: int, gid: int) -> bool:
    """Create the whole home beside its place, and move it there unless another node was first."""
    partial = Path(tempfile.mkdtemp(prefix=f".{home.name}.", dir=home.parent))
    try:
        skeleton = host.path(SKELETON)
        if skeleton.is_dir():
            shutil.copytree(skeleton, partial, symlinks=True, dirs_exist_ok=True)
        for folder, _, files in os.walk(partial, topdown=False):
            for name in (*files, "."):
                os.chown(Path(folder) / name, uid, gid, follow_symlinks=False)
        partial.chmod(HOME_MODE)
        try:
            partial.rename(home)
        except OSError:
            # Another node's home is as good. A folder never replaces one that holds files.
            if not home.is_dir():
                raise
            return False
        return True
    finally:
        if partial.exists():
            shutil.rmtree(partial)


def _owner(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"
