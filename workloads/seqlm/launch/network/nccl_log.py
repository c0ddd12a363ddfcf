"""Network that NCCL's processes use, and NCCL's warnings, read from its log."""

import os
import re
import tempfile
from pathlib import Path
from typing import NoReturn

from seqlm.training.command_line import tell

SOCKETS = "Socket"
"""NCCL's name for plain TCP."""
NUM_WARNINGS = 3
"""Number of NCCL's last warnings that a failure reports."""


class NcclLog:
    """NCCL's log of this process. Create it before the process group: NCCL reads its environment once."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="nccl-")
        self._path = Path(self._folder.name) / "log"
        os.environ |= {
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,NET",
            "NCCL_DEBUG_FILE": str(self._path),
        }

    @property
    def text(self) -> str:
        return self._path.read_text(errors="replace") if self._path.exists() else ""

    @property
    def network(self) -> str:
        return chosen_network(self.text)

    def fail(self, why: str | Exception) -> NoReturn:
        """End the process with a line about the failure and NCCL's last warnings.

        Args:
            why: error, or description of the failure.
        """
        warnings = [line.strip() for line in self.text.splitlines() if "NCCL WARN" in line]
        first_line, _, _ = str(why).partition("\n")
        tell("\n".join([first_line or type(why).__name__, *warnings[-NUM_WARNINGS:]]))
        # At once, because threads of the process group may wait for processes for ever.
        os._exit(1)


def chosen_network(text: str) -> str:
    """Return the network in NCCL's log, such as ``Libfabric, efa, 16 cards``; empty if the log names none.

    NCCL logs "Using network <name>" when it has chosen a plugin or its own transport. aws-ofi-nccl adds
    "NET/OFI Selected provider is <provider>, ... (found <n> nics)". NCCL also chooses a network on a single
    node, which needs none.
    """
    using = re.search(r"Using network (.+)", text)
    if using is None:
        return ""
    parts = [using[1].strip()]
    provider = re.search(
        r"NET/OFI Selected [Pp]rovider is ([\w;-]+)(?:.*\(found (\d+) nics\))?", text
    )
    if provider is not None:
        parts.append(provider[1])
        if provider[2]:
            parts.append(f"{provider[2]} cards")
    return ", ".join(parts)
