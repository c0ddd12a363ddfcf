"""Set up ~/.ssh of the user who runs it: user_ssh.py HOME, with the cluster file's keys on standard input.

``users_ssh.py`` does the same for all users. Root must not run it, because users may put links into their
homes. The keys are a JSON list of lines. The script prints one line per change. Many nodes run it at the same
moment, so every file appears whole or not at all. It follows no link and reads only regular files of a
limited size.
"""

import errno
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

BEGIN = "# BEGIN keys of the cluster file: lines up to END are replaced; add your own below"
END = "# END keys of the cluster file"
KEY_NAME = "id_ed25519"
MOST_BYTES = 1 << 20
"""Largest file that is read, enough for thousands of keys."""
WRITABLE_BY_OTHERS = 0o022
"""Mode bits that let the group or all users write."""


def main() -> int:
    return set_up(Path(sys.argv[1]), json.loads(sys.stdin.read()))


def set_up(home: Path, keys: list[str]) -> int:
    """Set up the folder, and return 0, or 1 if the user has no usable key."""
    os.umask(0o077)
    folder = home / ".ssh"
    folder.mkdir(mode=0o700, exist_ok=True)
    os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW))
    # sshd ignores keys in a folder that others can write to.
    if folder.stat().st_mode & WRITABLE_BY_OTHERS:
        folder.chmod(0o700)
        print(f"{folder}: mode 0700")
    try:
        own = _own_key(folder, f"{os.environ.get('USER', 'user')}@cluster")
    except (OSError, subprocess.CalledProcessError) as error:
        # For example, the user's own key has a passphrase and lacks its public half.
        said = getattr(error, "stderr", None) or str(error)
        print(f"{folder / KEY_NAME}: {said.strip()}", file=sys.stderr)
        own = ""
    _authorize(folder / "authorized_keys", [*keys, own] if own else keys)
    return 0 if own else 1


def _own_key(folder: Path, comment: str) -> str:
    """Return the public half of the user's key for logins between nodes; create the key if it is missing."""
    private = folder / KEY_NAME
    public = folder / f"{KEY_NAME}.pub"
    if not os.path.lexists(private):
        with tempfile.TemporaryDirectory(dir=folder, prefix=f".{socket.gethostname()}.") as name:
            made = Path(name) / KEY_NAME
            _keygen("-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(made))
            try:
                # A link fails if another node was first. A rename would replace the first key.
                os.link(made, private)
            except FileExistsError:
                pass
            else:
                print(f"{private}: made")
    if not os.path.lexists(public):
        _read(private)  # ssh-keygen would wait for a pipe
        _replace(public, _keygen("-y", "-P", "", "-f", str(private)))
    return _read(public).strip()


def _keygen(*arguments: str) -> str:
    return subprocess.run(
        ["ssh-keygen", *arguments], check=True, capture_output=True, text=True
    ).stdout


def _read(path: Path) -> str:
    """Return the text of a regular file.

    Raises:
        OSError: if it cannot be read, is a link, a pipe or a device, or is too large.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        data = file.read(MOST_BYTES + 1)
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode) or len(data) > MOST_BYTES:
            raise OSError(errno.EINVAL, f"expected a file of at most {MOST_BYTES} bytes", str(path))
    return data.decode(errors="surrogateescape")


def _authorize(path: Path, keys: list[str]) -> None:
    # A link is replaced, and its target stays unchanged.
    is_kept = os.path.lexists(path) and not path.is_symlink()
    text = _read(path) if is_kept else ""
    wanted = with_block(text, keys)
    if wanted != text:
        _replace(path, wanted)
        print(f"{path}: keys of the cluster file")
    elif path.stat().st_mode & WRITABLE_BY_OTHERS:
        path.chmod(0o600)
        print(f"{path}: mode 0600")


def with_block(text: str, keys: list[str]) -> str:
    """Return the file's text with only these keys between the marks at its top, and all other lines."""
    # sshd splits at newlines only, because other separators can be part of a key's comment.
    lines = []
    if text:
        lines = [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")]
    if BEGIN in lines and END in lines[lines.index(BEGIN) :]:
        begin = lines.index(BEGIN)
        del lines[begin : lines.index(END, begin) + 1]
    # Half a block is not removed, because its keys may be the user's own.
    others = [line for line in lines if line not in (BEGIN, END)]
    return "\n".join([BEGIN, *keys, END, *others]) + "\n"


def _replace(path: Path, text: str) -> None:
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode(errors="surrogateescape"))
        os.replace(partial, path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OSError as error:
        sys.exit(str(error))
