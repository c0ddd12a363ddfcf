"""A page about a sweep of all-reduces: bandwidth over size, with what was expected."""

from collections.abc import Sequence
from typing import Any

from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from workloads.training.report.figures import BLUE, GREEN, GREY, ORANGE, WIDE_INCHES, drawing, svg_text
from workloads.training.report.page import Card, figure_block, page, section, size_text, table

from .all_reduce import Sweep
from .expectation import TOLERANCE, Expectation, Verdict, wire_limit_gb_s


def report(
    sweep: Sweep,
    expected: Expectation | None,
    verdict: Verdict | None,
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
) -> str:
    """HTML of the whole page; ``titles`` and ``rows`` are its table."""
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
        section("All sizes", table(titles, rows)),
    ]
    what = f"{expected.instance_type}, " if expected else ""
    return page("All-reduce", f"{what}{nodes}", verdict.state if verdict else "", body)


def bandwidth_figure(sweep: Sweep, expected: Expectation | None) -> str:
    """Draw the bus bandwidth over size, both logarithmic: latency is what counts on the left."""
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
