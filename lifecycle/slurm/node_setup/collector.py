"""The small programs of ``collectors/``, which write metrics for node_exporter to add to its own."""

from __future__ import annotations

from collections.abc import Callable

from node_setup.failure import SetupError
from node_setup.node import Node
from node_setup.service import keep_running, last_log_lines

FOLDER = "/usr/local/lib/node-setup"
TEXT_FILES = "/var/lib/node_exporter/textfile"
"""Where node_exporter looks for metrics of others."""


def run_collector(
    node: Node, name: str, *, timeout_seconds: float, is_good: Callable[[str], bool] = bool
) -> str:
    """Install ``collectors/<name>.py`` with its unit, run it, and return the first good text that it writes.

    Raises:
        SetupError: if it writes none in time, with the end of its log.
    """
    unit = f"{name.replace('_', '-')}.service"
    changed = install_program(node, name)
    changed |= node.install_unit(unit)
    written = node.host.path(f"{TEXT_FILES}/{name}.prom")
    keep_running(node, unit, changed=changed)

    def look() -> str | None:
        text = written.read_text() if written.is_file() else ""
        return text if is_good(text) else None

    try:
        return node.host.wait_for(
            look,
            timeout_seconds=timeout_seconds,
            what=f"{unit} has no numbers in {TEXT_FILES}/{name}.prom",
            remedy="",
        )
    except SetupError as error:
        raise SetupError(
            f"{error.problem}; its log ends with: {last_log_lines(node, unit)}",
            f"see `journalctl --unit {unit}` on the node",
        ) from None


def install_program(node: Node, name: str) -> bool:
    """Put a collector where its unit starts it; whether it is another one than before."""
    return node.install(f"{FOLDER}/{name}.py", (node.files / "collectors" / f"{name}.py").read_text())
