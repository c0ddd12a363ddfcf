"""Writes the counters of the EFA network adapters as metrics, under the names that AWS gives them.

A text file that node_exporter adds to its own, instead of the exporter that AWS builds from a patched
node_exporter of an old version.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from collectors.text_files import Sample, format_samples, repeat, write

PREFIX = "node_amazonefa_"
GAUGES = (f"{PREFIX}info", f"{PREFIX}lifespan")
"""All others only ever grow."""
INFO = {"board_id": "board_id", "firmware_version": "fw_ver", "hca_type": "hca_type"}
"""Labels that describe an adapter, and the file of each."""


def metrics(devices: Path) -> str:
    """The text for all adapters below ``/sys/class/infiniband``."""
    samples: list[Sample] = []
    for device in devices.glob("*"):
        info = {label: _read(device / file) for label, file in INFO.items()}
        samples.append((f"{PREFIX}info", {"device": device.name, **info}, 1))
        for counter in device.glob("ports/*/hw_counters/*"):
            labels = {"device": device.name, "port": counter.parts[-3]}
            try:
                samples.append((f"{PREFIX}{counter.name}", labels, int(_read(counter))))
            except ValueError:
                # A counter that the firmware has no number for, or an adapter that goes away meanwhile.
                continue
    return format_samples(samples, lambda name: name not in GAUGES)


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=Path, default=Path("/sys/class/infiniband"))

    def run(options: argparse.Namespace) -> bool:
        write(options.output, metrics(options.devices))
        return True

    return repeat(parser, run)


if __name__ == "__main__":
    sys.exit(main())
