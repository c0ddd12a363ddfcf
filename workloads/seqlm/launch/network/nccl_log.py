"""Over which network NCCL's processes talk, and what NCCL warns of: from its own log."""

import os
import re
import tempfile
from pathlib import Path
from typing import NoReturn

from seqlm.training.command_line import tell

SOCKETS = "Socket"
"""NCCL's name for plain TCP."""
NUM_WARNINGS = 3


class NcclLog:
    """NCCL's log of this process. Made before the process group, since NCCL reads its environment once."""

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
        """End the process with a line for who started it, and NCCL's last warnings, which say what failed."""
        warnings = [line.strip() for line in self.text.splitlines() if "NCCL WARN" in line]
        tell("\n".join([str(why).partition("\n")[0] or type(why).__name__, *warnings[-NUM_WARNINGS:]]))
        # At once: threads of the process group may wait for processes that never come.
        os._exit(1)


def chosen_network(text: str) -> str:
    """Name the network that NCCL's log tells of, as ``Libfabric, efa, 16 cards``; empty if it tells of none.

    NCCL says "Using network <name>" once it has chosen a plugin or its own transport; aws-ofi-nccl adds
    "NET/OFI Selected provider is <provider>, ... (found <n> nics)". A single node needs no network, but NCCL
    chooses one.
    """
    using = re.search(r"Using network (.+)", text)
    if using is None:
        return ""
    parts = [using[1].strip()]
    if provider := re.search(r"NET/OFI Selected [Pp]rovider is ([\w;-]+)(?:.*\(found (\d+) nics\))?", text):
        parts.append(provider[1])
        parts += [f"{provider[2]} cards"] if provider[2] else []
    return ", ".join(parts)
