"""Text format of metrics, atomic files, and the main loop of the collectors."""

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
"""Escapes in the value of a label."""


class Sample(NamedTuple):
    """Value of one metric with its labels."""

    name: str
    labels: dict[str, str]
    value: float


def format_samples(samples: list[Sample], is_counter: Callable[[str], bool]) -> str:
    """Return Prometheus' text format, which requires the samples of a metric to be together."""
    lines: dict[str, list[str]] = {}
    for name, labels, value in samples:
        inner = ",".join(f'{key}="{text.translate(ESCAPES)}"' for key, text in labels.items())
        number = str(value) if isinstance(value, int) else f"{value:.10g}"
        series = f"{name}{{{inner}}}" if inner else name
        lines.setdefault(name, []).append(f"{series} {number}")
    text: list[str] = []
    for name, values in sorted(lines.items()):
        kind = "counter" if is_counter(name) else "gauge"
        text.append(f"# TYPE {name} {kind}")
        text.extend(sorted(values))
    return "\n".join(text) + "\n"


def write(path: Path, text: str) -> None:
    """Replace the file atomically, so that a reader sees either the old or the new text."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text)
    partial.chmod(0o644)
    os.replace(partial, path)


def repeat(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], bool]) -> int:
    """Run with the command line's options, once or until stopped, and return the exit status."""
    parser.add_argument("--output", type=Path, required=True, help="file or folder to write")
    parser.add_argument(
        "--every-seconds", type=float, help="interval of repeated runs (default: one run)"
    )
    options = parser.parse_args()
    while True:
        went_well = run(options)
        if options.every_seconds is None:
            return 0 if went_well else 1
        time.sleep(options.every_seconds)
