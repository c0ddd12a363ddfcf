"""Measure all-reduces: ``torchrun ... -m seqlm.launch.network.bandwidth [--config FILE] --to FOLDER``.

The command prints a table, and writes ``bandwidth.json`` and ``report.html`` into the folder. With a file of
expectations, which jobs on clusters have, it exits with 2 if the bandwidth is lower.
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

RESULTS_FILE = "bandwidth.json"
REPORT_FILE = "report.html"
SMALLEST_BYTES = 1 << 10
LARGEST_BYTES = {"cuda": 4 << 30, "cpu": 16 << 20}
"""Largest size by the type of the device."""
MEMORY_SHARE = 0.25
"""Share of a GPU's free memory for the buffer. The check of its contents and NCCL need memory, too."""
LONGEST_ROUND_SECONDS = 5.0
"""Longest round. On such a slow network, a larger buffer gives no new information."""


TITLES = ("size", "time, us", "algorithm, GB/s", "bus, GB/s", "rounds")
"""Titles of the columns of the table."""


def sizes(largest_bytes: int) -> list[int]:
    """Return the powers of two from ``SMALLEST_BYTES`` up to a size."""
    return [1 << n for n in range(SMALLEST_BYTES.bit_length() - 1, largest_bytes.bit_length())]


def sweep(largest_bytes: int, here: Processes) -> Iterator[Point]:
    """Measure all sizes, and check the sums of each one before.

    Raises:
        WrongSum: if a sum is wrong.
    """
    for size in sizes(largest_that_fits(largest_bytes, here)):
        beat(f"all-reduce of {size_text(size)}")
        buffer = new_buffer(size, here)
        verified_all_reduce(buffer, here)
        point = measure(buffer, here)
        yield point
        if point.seconds > LONGEST_ROUND_SECONDS:
            return


def largest_that_fits(largest_bytes: int, here: Processes) -> int:
    """Return the size of the largest buffer, limited by the free memory of the GPU of every process."""
    if here.device.type != "cuda":
        return largest_bytes
    free_here, _ = torch.cuda.mem_get_info()
    least_free = torch.tensor(float(free_here))
    dist.all_reduce(least_free, op=dist.ReduceOp.MIN, group=here.control)
    return min(largest_bytes, int(float(least_free) * MEMORY_SHARE))


def row(point: Point) -> tuple[str, ...]:
    """Return the cells of a row of the table."""
    return (
        size_text(point.size_bytes),
        f"{point.seconds * 1e6:,.1f}",
        f"{point.algorithm_gb_s:.3g}",
        f"{point.bus_gb_s:.3g}",
        str(point.num_rounds),
    )


def line(cells: Sequence[str]) -> str:
    """Return a line of the table in the log."""
    widths = [max(10, len(title) + 2) for title in TITLES]
    return "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def run(here: Processes, log: NcclLog) -> Sweep:
    """Measure all sizes, and print each result at once."""
    if here.is_first:
        print(line(TITLES), flush=True)
    points = []
    for point in sweep(LARGEST_BYTES[here.device.type], here):
        points.append(point)
        if here.is_first:
            print(line(row(point)), flush=True)
    num_nodes = here.world_size // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return Sweep(num_nodes, here.world_size, log.network or "gloo", tuple(points))


def write_results(
    folder: Path, found: Sweep, expected: Expectation | None, verdict: Verdict | None
) -> None:
    """Write the results as JSON and as an HTML page."""
    folder.mkdir(parents=True, exist_ok=True)
    points = [
        asdict(point) | {"algorithm_gb_s": point.algorithm_gb_s, "bus_gb_s": point.bus_gb_s}
        for point in found.points
    ]
    result = asdict(found) | {
        "points": points,
        "expected": asdict(expected) if expected else None,
        "verdict": asdict(verdict) if verdict else None,
    }
    write_whole(folder / RESULTS_FILE, json.dumps(result, indent=2) + "\n")
    write_whole(folder / REPORT_FILE, report(found, expected, verdict))


def report(sweep: Sweep, expected: Expectation | None, verdict: Verdict | None) -> str:
    """Return the HTML page about a sweep of all-reduces: bandwidth over size, and the expectation."""
    best = sweep.best
    smallest = sweep.points[0]
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
        figure_block(
            "Bus bandwidth over message size", bandwidth_figure(sweep, expected), wide=True
        ),
        section(
            "What it is compared with", table(["verdict"], [[verdict.text]]) if verdict else ""
        ),
        section("All sizes", table(TITLES, [row(point) for point in sweep.points])),
    ]
    what = f"{expected.instance_type}, " if expected else ""
    return page("All-reduce", f"{what}{nodes}", verdict.state if verdict else "", body)


def bandwidth_figure(sweep: Sweep, expected: Expectation | None) -> str:
    """Draw the bus bandwidth over the size, with two logarithmic axes that show small sizes, too."""
    # Imported here, because matplotlib takes a second and only one process draws.
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    from seqlm.training.report.drawing import BLUE, WIDE_INCHES, drawing, svg_text

    with drawing(WIDE_INCHES, "All-reduce: bus bandwidth") as (figure, axes):
        x = [point.size_bytes for point in sweep.points]
        axes.plot(
            x, [point.bus_gb_s for point in sweep.points], color=BLUE, marker="o", label="measured"
        )
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
    """Draw the limit of the network, the user's bound and the published figure."""
    from seqlm.training.report.drawing import GREEN, GREY, ORANGE

    limit = wire_limit_gb_s(expected.network_gb_s, *sweep.scale)
    if limit:
        label = f"limit of the wire, {limit:.4g} (not a measurement)"
        axes.axhline(limit, color=GREY, linestyle=(0, (5, 3)), label=label)
    if expected.at_least_gb_s is not None:
        axes.axhline(
            expected.at_least_gb_s, color=ORANGE, label=f"at_least {expected.at_least_gb_s:g}"
        )
    published = expected.published
    if published:
        axes.errorbar(
            [published.size_bytes],
            [published.bus_gb_s],
            yerr=[[TOLERANCE * published.bus_gb_s], [0]],
            color=GREEN,
            marker="D",
            linestyle="",
            capsize=5,
            label=f"published, {published.num_nodes} nodes, and what may be missing",
        )


def main() -> int:
    """Measure, write the results, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--config", type=Path, help="file of expectations, which tools.jobs submit writes"
    )
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
    summary = f"all-reduce over {nodes}: {verdict.state}: {verdict.text}"
    if verdict.state == "low":
        tell(f"error: {summary}")
        return USAGE_ERROR
    print(summary, flush=True)
    return 0


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
