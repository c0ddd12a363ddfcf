"""Write the counters of the EFA network adapters as metrics, under AWS's names.

The output is a text file for node_exporter. It replaces the exporter that AWS builds from a patched old
version of node_exporter.
"""

import argparse
import sys
from pathlib import Path

from collectors.text_files import Sample, format_samples, repeat, write

PREFIX = "node_amazonefa_"
GAUGES = (f"{PREFIX}info", f"{PREFIX}lifespan")
"""Metrics that are not counters."""
INFO = {"board_id": "board_id", "firmware_version": "fw_ver", "hca_type": "hca_type"}
"""Labels of an adapter, and the file of each."""


def metrics(devices: Path) -> str:
    """Return the text for all adapters below ``/sys/class/infiniband``."""
    samples: list[Sample] = []
    for device in devices.glob("*"):
        info = {label: _read(device / file) for label, file in INFO.items()}
        samples.append(Sample(f"{PREFIX}info", {"device": device.name, **info}, 1))
        for counter in device.glob("ports/*/hw_counters/*"):
            # The path is ports/<port>/hw_counters/<counter>.
            labels = {"device": device.name, "port": counter.parts[-3]}
            try:
                value = int(_read(counter))
            except ValueError:
                # The firmware has no number for this counter, or the adapter has just disappeared.
                continue
            samples.append(Sample(f"{PREFIX}{counter.name}", labels, value))
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
