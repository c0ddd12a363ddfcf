"""Machine that a step works on: its files, its commands, and waiting."""

import contextlib
import os
import random
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

from node_setup.failure import SetupError

Found = TypeVar("Found")
SPREAD = (0.5, 1.5)
"""Bounds of the random factor of pauses."""
SHOWN_CHARACTERS = 600
"""Length of the shown end of a failed command's output, where programs report the cause."""


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    status: int
    output: str
    """Standard output."""
    errors: str
    """Standard error."""

    @property
    def said(self) -> str:
        """End of the output on one line, for a message."""
        text = self.errors.strip() or self.output.strip()
        return " ".join(text.split())[-SHOWN_CHARACTERS:]


@dataclass(frozen=True)
class Host:
    """Machine with paths below ``root`` and waits that take ``patience`` times as long; both for tests."""

    root: Path = Path("/")
    patience: float = 1.0

    def path(self, absolute: str | Path) -> Path:
        return self.root / str(absolute).lstrip("/")

    def try_run(
        self,
        *command: str | Path,
        timeout_seconds: float = 60,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
    ) -> Finished:
        """Run a command to its end, and kill it and its children at the timeout.

        Raises:
            SetupError: if the command does not exist, or did not end in time.
        """
        words = [str(word) for word in command]
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        except FileNotFoundError:
            raise SetupError(
                f"there is no command {words[0]} on this node",
                "HyperPod's images have it: use one of them",
            ) from None
        try:
            output, errors = process.communicate(stdin, timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            # A surviving child would hold the pipes and block this script, so the whole session ends.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            raise SetupError(
                f"`{' '.join(words)}` did not end within {timeout_seconds:g} s",
                "its service does not answer, or the node is overloaded: run it by hand on the node",
            ) from None
        return Finished(process.returncode, output, errors)

    def run(
        self,
        *command: str | Path,
        timeout_seconds: float = 60,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        remedy: str = "run it by hand on the node to see more",
    ) -> str:
        """Run a command that must succeed, and return its standard output.

        Raises:
            SetupError: if it fails, with its output and ``remedy``.
        """
        done = self.try_run(*command, timeout_seconds=timeout_seconds, stdin=stdin, env=env)
        if done.status != 0:
            words = " ".join(str(word) for word in command)
            raise SetupError(
                f"`{words}` ended with {done.status}: {done.said or 'it printed nothing'}", remedy
            )
        return done.output

    def write_text(self, path: str | Path, text: str, mode: int = 0o644) -> bool:
        """Create a file with this text and mode, whole or not at all, and return whether anything changed."""
        target = self.path(path)
        is_plain = target.is_file() and not target.is_symlink()
        if is_plain and target.read_text(errors="replace") == text:
            changed = stat.S_IMODE(target.stat().st_mode) != mode
            target.chmod(mode)
            return changed
        with self.replaced(path, mode) as file:
            file.write(text.encode())
        return True

    @contextlib.contextmanager
    def replaced(self, path: str | Path, mode: int) -> Iterator[IO[bytes]]:
        """Open a file that replaces the target once it is whole; a failure leaves nothing behind."""
        target = self.path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.chmod(partial, mode)
            os.replace(partial, target)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise

    def sleep(self, seconds: float) -> None:
        """Sleep for about this time, so that nodes which begin together do not repeat together."""
        time.sleep(seconds * random.uniform(*SPREAD) * self.patience)

    def wait_for(
        self,
        look: Callable[[], Found],
        *,
        timeout_seconds: float,
        what: str,
        remedy: str = "",
        every_seconds: float = 5,
    ) -> Found:
        """Call ``look`` until it returns a true value: at least once, and once more at the deadline.

        SetupError from ``look`` means not yet. The final message has the problem of the last call.

        Raises:
            SetupError: if there is no true value in time.
        """
        deadline = time.monotonic() + timeout_seconds * self.patience
        while True:
            is_last = time.monotonic() >= deadline
            reason = ""
            advice = remedy
            try:
                if found := look():
                    return found
            except SetupError as error:
                reason = f": {error.problem}"
                advice = error.remedy or remedy
            if is_last:
                raise SetupError(f"{what} after {timeout_seconds:g} s{reason}", advice)
            self.sleep(every_seconds)
