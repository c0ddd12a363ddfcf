"""Values in lists of slurm.conf, such as ``AccountingStorageEnforce``, without which Slurm ignores limits."""

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from node_setup.failure import SetupError
from node_setup.node import Node
from node_setup.slurm import configuration, wait_for_controller

REMEDY = (
    "see slurm.conf and `scontrol show config` on the controller, or set scheduling.enforce: false"
)


def missing_values(
    running: Mapping[str, str], wanted: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """Return the values that slurmctld's running lists lack, by the list's name."""
    found = {}
    for name, values in wanted.items():
        there = running.get(name, "").lower().split(",")
        lacking = [value for value in values if value not in there]
        if lacking:
            found[name] = lacking
    return found


def bring_values(node: Node, wanted: Mapping[str, Sequence[str]]) -> None:
    """Add values to lists of slurm.conf, and restart slurmctld if it runs without them.

    Jobs continue meanwhile.

    Raises:
        SetupError: if slurmctld runs without the values afterwards.
    """
    running = configuration(node.host)
    missing = missing_values(running, wanted)
    if not missing:
        return
    main = Path(running.get("SLURM_CONF", ""))
    if not node.host.path(main).is_file():
        raise SetupError(f"slurmctld reads {main}, which does not exist", REMEDY)
    for name, values in missing.items():
        _add(node, main, name, values)
    node.host.run("systemctl", "restart", "slurmctld", timeout_seconds=120)
    wait_for_controller(node.host)
    node.changed("slurmctld restarted")
    left = missing_values(configuration(node.host), wanted)
    if left:
        name, values = next(iter(left.items()))
        raise SetupError(
            f"slurmctld runs without {', '.join(values)} in {name}, which its configuration has",
            REMEDY,
        )


def _add(node: Node, main: Path, name: str, values: Sequence[str]) -> None:
    """Add values to the list in the file that has it last, which counts; without one, to slurm.conf."""
    line = re.compile(rf"^([ \t]*{name}[ \t]*=[ \t]*)([^\s#]*)(.*)$", re.MULTILINE | re.IGNORECASE)
    target = main
    for path in _files(node, main):
        if line.search(node.host.path(path).read_text()):
            target = path
    file = node.host.path(target)
    text = file.read_text()
    found = list(line.finditer(text))
    if found:
        last = found[-1]
        there = [value for value in last[2].split(",") if value and value.lower() != "none"]
        new = [value for value in values if value not in (known.lower() for known in there)]
        changed = f"{last[1]}{','.join([*there, *new])}{last[3]}"
        text = text[: last.start()] + changed + text[last.end() :]
    else:
        end = "" if text.endswith("\n") or not text else "\n"
        text = f"{text}{end}{name}={','.join(values)}\n"
    before = file.stat()
    if node.host.write_text(target, text, stat.S_IMODE(before.st_mode)):
        after = file.stat()
        if (after.st_uid, after.st_gid) != (before.st_uid, before.st_gid):
            os.chown(file, before.st_uid, before.st_gid)
        node.changed(f"{target}: {name} has {', '.join(values)}")


def _files(node: Node, path: Path) -> Iterator[Path]:
    """Yield a configuration file and those that it includes, which are beside it unless they say more."""
    file = node.host.path(path)
    if not file.is_file():
        return
    yield path
    for name in re.findall(r"^[ \t]*include[ \t]+(\S+)", file.read_text(), re.MULTILINE | re.I):
        yield from _files(node, path.parent / name)
