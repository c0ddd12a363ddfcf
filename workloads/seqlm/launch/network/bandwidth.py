"""``torchrun ... -m seqlm.launch.network.bandwidth [--config FILE] --to FOLDER``: all-reduces.

Prints a table, and leaves ``bandwidth.json`` and ``report.html`` in the folder. Ends with 2 if it is slower
than expected. A job on a cluster has a file of what is expected; without one nothing is.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from seqlm.training.command_line import USAGE_ERROR, one_line_errors, tell
from seqlm.training.heartbeat import beat
from seqlm.training.processes import Processes, processes
from seqlm.training.report.page import Card, figure_block, page, section, size_text, table
from seqlm.training.whole_file import write_whole

from .all_reduce import Point, Sweep, measure, new_buffer, verified_all_reduce
from .expectation import TOLERANCE, Expectation, Verdict, judge, read_expectation, wire_limit_gb_s
from .nccl_log import NcclLog

RESULTS_FILE, REPORT_FILE = "bandwidth.json", "report.html"
SMALLEST_BYTES = 1 << 10
LARGEST_BYTES = {"cuda": 4 << 30, "cpu": 16 << 20}
MEMORY_SHARE = 0.25
"""Share of a GPU's free memory for the buffer. The check of its contents and NCCL need memory, too."""
LONGEST_ROUND_SECONDS = 5.0
"""Longest round. On such a slow network, a larger buffer gives no new information."""


def sizes(largest_bytes: int) -> list[int]:
    """Powers of two."""
    return [1 << n for n in range(SMALLEST_BYTES.bit_length() - 1, largest_bytes.bit_length())]


def sweep(largest_bytes: int, here: Processes) -> Iterator[Point]:
    """Measure all sizes, each after it has been seen to add up rightly.

    Raises:
        WrongSum: if it does not.
    """
    if here.device.type == "cuda":  # the largest that fits in the memory of every process
        free = torch.tensor(float(torch.cuda.mem_get_info()[0]))
        dist.all_reduce(free, op=dist.ReduceOp.MIN, group=here.control)
        largest_bytes = min(largest_bytes, int(float(free) * MEMORY_SHARE))
    for size in sizes(largest_bytes):
        beat(f"all-reduce of {size_text(size)}")
        buffer = new_buffer(size, here)
        verified_all_reduce(buffer, here)
        point = measure(buffer, here)
        yield point
        if point.seconds > LONGEST_ROUND_SECONDS:
            return


TITLES = ("size", "time, us", "algorithm, GB/s", "bus, GB/s", "rounds")


def row(point: Point) -> tuple[str, ...]:
    return (
        size_text(point.size_bytes),
        f"{point.seconds * 1e6:,.1f}",
        f"{point.algorithm_gb_s:.3g}",
        f"{point.bus_gb_s:.3g}",
        str(point.num_rounds),
    )


def line(cells: Sequence[str]) -> str:
    """Return a line of the table in the log."""
    return "".join(f"{cell:>{max(10, len(title) + 2)}}" for cell, title in zip(cells, TITLES, strict=True))


def run(here: Processes, log: NcclLog) -> Sweep:
    """Measure all sizes, and print each at once."""
    if here.is_first:
        print(line(TITLES), flush=True)
    points = []
    for point in sweep(LARGEST_BYTES[here.device.type], here):
        points.append(point)
        if here.is_first:
            print(line(row(point)), flush=True)
    num_nodes = here.world_size // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return Sweep(num_nodes, here.world_size, log.network or "gloo", tuple(points))


def write_results(folder: Path, found: Sweep, expected: Expectation | None, verdict: Verdict | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    points = [{**asdict(p), "algorithm_gb_s": p.algorithm_gb_s, "bus_gb_s": p.bus_gb_s} for p in found.points]
    result = asdict(found) | {
        "points": points,
        "expected": asdict(expected) if expected else None,
        "verdict": asdict(verdict) if verdict else None,
    }
    write_whole(folder / RESULTS_FILE, json.dumps(result, indent=2) + "\n")
    write_whole(folder / REPORT_FILE, report(found, expected, verdict))


def report(sweep: Sweep, expected: Expectation | None, verdict: Verdict | None) -> str:
    """Return the HTML page about a sweep of all-reduces: bandwidth over size, with what was expected."""
    best, smallest = sweep.best, sweep.points[0]
    nodes = f"{sweep.num_nodes} node(s), {sweep.num_processes} processes"
    network, _, detail = sweep.network.partition(", ")
    wire = f"{expected.network_gb_s:g} GB/s a node" if expected else ""
    cards = [
        Card("bus bandwidth", f"{best.bus_gb_s:.4g} GB/s", f"at {size_text(best.size_bytes)}"),
        Card("latency", f"{smallest.seconds * 1e6:.4g} us", f"of {size_text(smallest.size_bytes)}"),
        Card("network", network, ", ".join(filter(None, [detail, wire]))),
        Card("verdict", verdict.state if verdict else None),
    ]
    body = [
        f'<div class="cards">{"".join(card.html() for card in cards)}</div>',
        figure_block("Bus bandwidth over message size", bandwidth_figure(sweep, expected), wide=True),
        section("What it is compared with", table(["verdict"], [[verdict.text]]) if verdict else ""),
        section("All sizes", table(TITLES, [row(point) for point in sweep.points])),
    ]
    what = f"{expected.instance_type}, " if expected else ""
    return page("All-reduce", f"{what}{nodes}", verdict.state if verdict else "", body)


def bandwidth_figure(sweep: Sweep, expected: Expectation | None) -> str:
    """Draw the bus bandwidth over size, both logarithmic: latency is what counts on the left."""
    # Imported here: matplotlib takes a second, and one process alone writes.
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    from seqlm.training.report.drawing import BLUE, WIDE_INCHES, drawing, svg_text

    with drawing(WIDE_INCHES, "All-reduce: bus bandwidth") as (figure, axes):
        x = [point.size_bytes for point in sweep.points]
        axes.plot(x, [point.bus_gb_s for point in sweep.points], color=BLUE, marker="o", label="measured")
        axes.set_xscale("log", base=2)
        if sweep.num_processes > 1:
            axes.set_yscale("log")
        axes.xaxis.set_major_locator(FixedLocator(x[::2]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: size_text(round(value))))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_xlabel("message size")
        axes.set_ylabel("GB/s")
        if expected:
            _draw_expected(axes, sweep, expected)
        axes.legend(loc="lower right")
        return svg_text(figure, "bandwidth")


def _draw_expected(axes: Any, sweep: Sweep, expected: Expectation) -> None:
    from seqlm.training.report.drawing import GREEN, GREY, ORANGE

    found = expected.published
    if limit := wire_limit_gb_s(expected.network_gb_s, *sweep.scale):
        label = f"limit of the wire, {limit:.4g} (not a measurement)"
        axes.axhline(limit, color=GREY, linestyle=(0, (5, 3)), label=label)
    if expected.at_least_gb_s is not None:
        axes.axhline(expected.at_least_gb_s, color=ORANGE, label=f"at_least {expected.at_least_gb_s:g}")
    if found:
        label = f"published, {found.num_nodes} nodes, and what may be missing"
        bars = {"yerr": [[TOLERANCE * found.bus_gb_s], [0]], "capsize": 5, "marker": "D", "linestyle": ""}
        axes.errorbar([found.size_bytes], [found.bus_gb_s], color=GREEN, label=label, **bars)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, help="what is expected, from tools.jobs submit")
    parser.add_argument("--to", type=Path, required=True, help="folder for the results")
    options = parser.parse_args()
    expected = read_expectation(options.config) if options.config else None
    log = NcclLog()
    beat("starting", slow=True)
    try:
        with processes() as here:
            found = run(here, log)
    except RuntimeError as error:
        log.fail(error)
    if not here.is_first:
        return 0
    verdict = judge(expected, found) if expected else None
    write_results(options.to, found, expected, verdict)
    print(f"network {found.network}; {options.to / REPORT_FILE}", flush=True)
    if verdict is None:
        return 0
    nodes = f"{found.num_nodes} node(s), {found.num_processes} processes"
    told = f"all-reduce over {nodes}: {verdict.state}: {verdict.text}"
    if verdict.state == "low":
        tell(f"error: {told}")
        return USAGE_ERROR
    print(told, flush=True)
    return 0


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
