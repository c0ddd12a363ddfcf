"""Text format of metrics, atomic files, and the main loop of the collectors."""

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

Sample = tuple[str, dict[str, str], float]
"""Name, labels, value."""
ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def format_samples(samples: list[Sample], is_counter: Callable[[str], bool]) -> str:
    """Return Prometheus' text format, which requires the samples of a metric to be together."""
    lines: dict[str, list[str]] = {}
    for name, labels, value in samples:
        inner = ",".join(f'{key}="{text.translate(ESCAPES)}"' for key, text in labels.items())
        number = str(value) if isinstance(value, int) else f"{value:.10g}"
        lines.setdefault(name, []).append(f"{name}{{{inner}}} {number}" if inner else f"{name} {number}")
    text = []
    for name, values in sorted(lines.items()):
        text += [f"# TYPE {name} {'counter' if is_counter(name) else 'gauge'}", *sorted(values)]
    return "\n".join(text) + "\n"


def write(path: Path, text: str) -> None:
    """Replace the file atomically: a reader sees the whole old or the whole new one."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text)
    partial.chmod(0o644)
    os.replace(partial, path)


def repeat(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], bool]) -> int:
    """Run with the command line's options, once or until stopped, and return the exit status."""
    parser.add_argument("--output", type=Path, required=True, help="file or folder to write")
    parser.add_argument("--every-seconds", type=float, help="repeat until stopped; once without it")
    options = parser.parse_args()
    while True:
        went_well = run(options)
        if options.every_seconds is None:
            return 0 if went_well else 1
        time.sleep(options.every_seconds)
