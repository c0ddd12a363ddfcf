"""Services that steps install, including the programs of ``collectors/``, which write metrics."""

from collections.abc import Callable, Sequence

from node_setup.failure import SetupError
from node_setup.node import Node

FOLDER = "/usr/local/lib/node-setup"
TEXT_FILES = "/var/lib/node_exporter/textfile"
"""Folder in which node_exporter looks for metrics of other programs."""


def run_unit(node: Node, unit: str, *, changed: bool = False, **values: str) -> None:
    """Install a unit, enable it and start it; restart it if the unit or its program changed.

    ``values`` replace the marks in its template.

    Raises:
        SetupError: if it does not start, with the end of its log.
    """
    changed |= node.install_unit(unit, **values)
    if changed:
        node.host.run("systemctl", "daemon-reload")
    if node.host.try_run("systemctl", "is-enabled", "--quiet", unit).status != 0:
        node.host.run("systemctl", "enable", "--quiet", unit)
        node.changed(f"{unit} enabled")
    running = is_running(node, unit)
    if running and not changed:
        return
    done = node.host.try_run("systemctl", "restart", unit, timeout_seconds=300)
    if done.status != 0:
        raise SetupError(
            f"{unit} does not start: {done.said}; its log ends with: {last_log_lines(node, unit)}",
            f"see `journalctl --unit {unit}`, repair it, and run these scripts again",
        )
    node.changed(f"{unit} {'restarted' if running else 'started'}")


def remove_units(node: Node, units: Sequence[str]) -> None:
    """Stop and remove our units; units of the same name that an administrator created stay.

    Raises:
        SetupError: if one does not stop.
    """
    before = len(node.changes)
    for unit in units:
        path = node.host.path(f"/etc/systemd/system/{unit}")
        ours = (node.files / "units" / unit).read_text()
        if path.is_file() and _description(path.read_text()) == _description(ours):
            node.host.run("systemctl", "disable", "--now", "--quiet", unit, timeout_seconds=120)
            path.unlink()
            node.changed(f"{unit}: removed")
    if len(node.changes) > before:
        node.host.run("systemctl", "daemon-reload")


def have_system_user(node: Node, name: str) -> None:
    """Create a system user for a service, without a home and without logins, if it is missing."""
    if node.host.try_run("id", "--user", name).status == 0:
        return
    node.host.run(
        "useradd",
        "--system",
        "--user-group",
        "--no-create-home",
        "--home-dir",
        "/nonexistent",
        "--shell",
        "/usr/sbin/nologin",
        name,
    )
    node.changed(f"user {name}")


def is_running(node: Node, unit: str) -> bool:
    return node.host.try_run("systemctl", "is-active", "--quiet", unit).status == 0


def last_log_lines(node: Node, unit: str) -> str:
    """Return the end of a unit's log on one line."""
    done = node.host.try_run(
        "journalctl", "--unit", unit, "--lines", "5", "--no-pager", "--output", "cat"
    )
    return done.said or "nothing"


def _description(text: str) -> str:
    """Return the line that identifies our units."""
    return next((line for line in text.splitlines() if line.startswith("Description=")), "")


def run_collector(
    node: Node, name: str, *, timeout_seconds: float, is_good: Callable[[str], bool] = bool
) -> str:
    """Install ``collectors/<name>.py`` with its unit, start it, and return its first good text.

    Raises:
        SetupError: if it writes none in time, with the end of its log.
    """
    unit = f"{name.replace('_', '-')}.service"
    written = node.host.path(f"{TEXT_FILES}/{name}.prom")
    run_unit(node, unit, changed=install_program(node, name))

    def look() -> str:
        text = written.read_text() if written.is_file() else ""
        return text if is_good(text) else ""

    problem = f"{unit} has no numbers in {TEXT_FILES}/{name}.prom"
    try:
        return node.host.wait_for(look, timeout_seconds=timeout_seconds, what=problem)
    except SetupError as error:
        raise SetupError(
            f"{error.problem}; its log ends with: {last_log_lines(node, unit)}",
            f"see `journalctl --unit {unit}` on the node",
        ) from None


def install_program(node: Node, name: str) -> bool:
    """Install a collector and its shared module, and return whether either changed."""
    shared = "collectors/text_files.py"
    changed = node.install(f"{FOLDER}/{shared}", node.template(shared))
    changed |= node.install(f"{FOLDER}/{name}.py", node.template(f"collectors/{name}.py"))
    return changed
