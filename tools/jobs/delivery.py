"""Files of a run that a machine of the cluster sends as lines of text (``fetch_run.sh``)."""

import base64
import binascii
import shutil
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from seqlm.training.whole_file import move_into_place
from tools.archives import extract
from tools.json_output import publish

SHOWN_LINES = 20
"""Lines shown of a message that arrived instead of files."""


class Delivery:
    """Receives a run's files as text: header lines, the line ``files``, then a base64 tar archive.

    Args:
        archive: empty file that receives the archive.
    """

    def __init__(self, archive: IO[bytes]) -> None:
        self._said: list[str] = []
        self._has_files = False
        self._rest = ""
        self._damage = ""
        self._archive = archive

    def take(self, line: str) -> None:
        """Take the next line."""
        if not self._has_files:
            self._said.append(line)
            self._has_files = line == "files"
            return
        # A session may break lines anywhere; base64 is decoded by four characters.
        text = self._rest + line
        whole = len(text) // 4 * 4
        self._rest = text[whole:]
        try:
            self._archive.write(base64.b64decode(text[:whole], validate=True))
        except binascii.Error as error:
            self._damage = str(error)

    def unpack(self, to: Path, *, status: int, instead: str) -> int:
        """Put the files into the folder of their run below ``to``, and list them.

        Args:
            to: folder of runs.
            status: exit status of the sender.
            instead: advice for files that are left out.

        Raises:
            ValueError: with the sender's message if it has nothing to send, or if the archive is damaged.
        """
        if status or not self._has_files:
            raise ValueError("\n".join(self._said[:SHOWN_LINES]).removeprefix("error: "))
        run = next(line.removeprefix("run ") for line in self._said if line.startswith("run "))
        target = to / run
        target.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".fetched-", dir=target) as folder:
            self._extract(Path(folder))
            for path in sorted(Path(folder).iterdir()):
                if (target / path.name).is_dir():
                    shutil.rmtree(target / path.name)
                move_into_place(path, target / path.name)
        left = [line.removeprefix("left ") for line in self._said if line.startswith("left ")]
        for name in left:
            print(f"not fetched: {name}; {instead}", file=sys.stderr)
        files = sorted(target.iterdir())
        publish(folder=str(target), files=[path.name for path in files], left=left)
        for path in files:
            print(path)
        return 0

    def _extract(self, folder: Path) -> None:
        damage = self._damage or ("the end is missing" if self._rest else "")
        self._archive.seek(0)
        try:
            if not damage:
                with tarfile.open(fileobj=self._archive) as tar:
                    extract(tar, folder)
        except (EOFError, tarfile.TarError, OSError) as error:
            damage = str(error)
        if damage:
            raise ValueError(f"what came is damaged ({damage}); run the same command again")
