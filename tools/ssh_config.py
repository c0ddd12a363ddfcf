"""Host blocks in an ssh configuration file, each between two marks so that it can be replaced."""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Sequence
from pathlib import Path


def host_block(*, host: str, user: str, instance_id: str, start_session: Sequence[str]) -> str:
    """A block for a node behind Session Manager; ``start_session`` is the command without a document."""
    proxy = [*start_session, "--document-name", "AWS-StartSSHSession", "--parameters", "portNumber=%p"]
    return "\n".join(
        [
            f"Host {host}",
            f"    User {user}",
            f"    ProxyCommand {shlex.join(proxy)}",
            # A replaced node has the same name and another key.
            f"    HostKeyAlias {instance_id}",
            "    StrictHostKeyChecking accept-new",
            "    ServerAliveInterval 60",
        ]
    )


def with_block(text: str, *, host: str, block: str) -> str:
    """The file's text with the host's block in its old place, or first; all else as it was.

    First, because ssh takes the first value it finds, which below a ``Host *`` is that one's.
    """
    start, end = f"# >>> hyperpod {host}", f"# <<< hyperpod {host}"
    marked = f"{start}\n{block}\n{end}\n"
    pattern = re.compile(rf"^{re.escape(start)}\n.*?^{re.escape(end)}\n", re.MULTILINE | re.DOTALL)
    if pattern.search(text):
        return pattern.sub(lambda _: marked, text, count=1)
    return f"{marked}\n{text}" if text else marked


def write_block(path: Path, *, host: str, block: str) -> bool:
    """Put the block into the file; False if it was there already.

    The former file is kept as ``<name>.bak``; the new one appears at once and whole, with the former's mode.
    """
    path = path.resolve()  # through a link, so that a configuration kept in another place stays there
    before = path.read_text() if path.exists() else ""
    after = with_block(before, host=host, block=block)
    if after == before:
        return False
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = 0o600
    if path.exists():
        mode = stat.S_IMODE(path.stat().st_mode)
        _write_private(path.with_name(path.name + ".bak"), before)
    partial = path.with_name(path.name + ".partial")
    _write_private(partial, after)
    partial.chmod(mode)
    partial.replace(path)
    return True


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
