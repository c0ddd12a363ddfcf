"""Writes the counters of the EFA network adapters as metrics, under the names that AWS gives them.

A text file that node_exporter adds to its own, instead of the exporter that AWS builds from a patched
node_exporter of an old version.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path

GAUGES = ("lifespan",)
"""All others only ever grow."""


def metrics(devices: Path) -> str:
    """The text for all adapters below ``/sys/class/infiniband``."""
    lines: dict[str, list[str]] = {}
    info = [_info(device) for device in _sorted(devices)]
    for name, labels, value in _counters(devices):
        lines.setdefault(f"node_amazonefa_{name}", []).append(f"{{{labels}}} {value}")
    text = ["# TYPE node_amazonefa_info gauge", *info] if info else []
    for metric, samples in sorted(lines.items()):
        kind = "gauge" if metric.removeprefix("node_amazonefa_") in GAUGES else "counter"
        text += [f"# TYPE {metric} {kind}", *(metric + sample for sample in samples)]
    return "\n".join(text) + "\n"


def _counters(devices: Path) -> Iterator[tuple[str, str, int]]:
    """Name, labels and value of each counter."""
    for device in _sorted(devices):
        for port in _sorted(device / "ports"):
            for counter in _sorted(port / "hw_counters"):
                try:
                    value = int(counter.read_text())
                except (OSError, ValueError):
                    # A counter that the firmware has no number for, or an adapter that goes away meanwhile.
                    continue
                yield counter.name, f'device="{device.name}",port="{port.name}"', value


def _info(device: Path) -> str:
    def read(name: str) -> str:
        try:
            text = (device / name).read_text().strip()
        except OSError:
            return ""
        return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    return (
        f'node_amazonefa_info{{device="{device.name}",board_id="{read("board_id")}",'
        f'firmware_version="{read("fw_ver")}",hca_type="{read("hca_type")}"}} 1'
    )


def _sorted(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def write(path: Path, text: str) -> None:
    """Replace the file at once: a reader sees the old one or the new one, whole.

    Each collector has its own: it is installed by itself, and needs nothing beside it.
    """
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text)
    partial.chmod(0o644)
    os.replace(partial, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=Path, default=Path("/sys/class/infiniband"))
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--every-seconds", type=float, help="go on until stopped; once without it")
    arguments = parser.parse_args()
    while True:
        write(arguments.output, metrics(arguments.devices))
        if arguments.every_seconds is None:
            return
        time.sleep(arguments.every_seconds)


if __name__ == "__main__":
    main()
