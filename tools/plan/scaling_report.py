"""Table of a run's speed on more GPUs, with the assumptions behind it."""

import dataclasses
import math

from config.facts.price_list import dearest, load_prices, node_keys
from tools.command_line import format_table
from tools.plan.memory import Layout, memory
from tools.plan.messages import exchange_of, gradient_bytes, parts_of
from tools.plan.network import Network, network_of
from tools.plan.placement import Place
from tools.plan.report import SECONDS_PER_HOUR, TIME_UNITS, usable_bytes
from tools.plan.scaling import Scaled, scaled, sizes
from tools.plan.speed import FILL, Speed, residues_of

HEADER = ("GPUs", "step, s", "messages, s", "waiting", "residues/s", "efficiency")
"""Titles of the columns before those of time and money."""
TITLE = "Scaling: a MODEL, not a measurement. No run on several GPUs has been measured."
UNKNOWN = "-"
"""Cell without a value."""
SMALLEST_SHARE = 0.001
"""Smallest share that a cell shows as a number."""
WHOLE_USD = 100
"""Amount from which a cell has whole dollars."""


def scaling_lines(
    layout: Layout, found: Speed, place: Place, region: str, network_share: float
) -> list[str]:
    """Return the lines about more GPUs of the place's type.

    Args:
        layout: run on the GPUs of the place.
        found: speed without communication.
        place: nodes of the run.
        region: region of the prices.
        network_share: share of EFA's bandwidth that collectives reach.
    """
    if place.gpu_slice:
        return ["Scaling: none, because NCCL connects no slices of GPUs"]
    network = network_of(place.hardware, network_share)
    if network is None:
        if place.hardware.is_neuron:
            return ["Scaling: no model for NeuronCores"]
        return [f"Scaling: no model for {place.group.types_text}, which has no EFA"]
    pack_seconds = _pack_seconds(layout, found)
    results = []
    left_out = []
    for world_size in sizes(place.world_size):
        larger = dataclasses.replace(layout, world_size=world_size)
        if world_size % larger.shards:
            left_out.append(f"{world_size} (parallel.shard_size does not divide it)")
        elif memory(larger).total > usable_bytes(place):
            left_out.append(f"{world_size} (the run does not fit)")
        else:
            results.append(scaled(larger, network, pack_seconds))
    lines = [TITLE, _table(results, layout, place, region)]
    if left_out:
        lines.append(f"Left out: {', '.join(left_out)}")
    return [*lines, *_assumptions(layout, found, network, pack_seconds, network_share)]


def _pack_seconds(layout: Layout, found: Speed) -> float:
    """Return the time of a pack on one GPU, at the higher rate, which communication slows down most."""
    alone = found.residues_per_second_high / (layout.world_size * found.busy)
    return layout.config.train.tokens_per_pack * FILL / alone


def _table(results: list[Scaled], layout: Layout, place: Place, region: str) -> str:
    price = dearest(node_keys(place.group.types), load_prices(region))
    residues = residues_of(layout.config)
    hours = [residues / found.residues_per_second / SECONDS_PER_HOUR for found in results]
    unit, length = next(
        (unit, length)
        for unit, length in TIME_UNITS.items()
        if max(hours, default=0) >= 2 * length or unit == "seconds"
    )
    rows = []
    for found, hours_here in zip(results, hours, strict=True):
        num_nodes = math.ceil(found.num_gpus / place.hardware.num_gpus)
        usd = _usd(num_nodes * price.usd * hours_here) if price else UNKNOWN
        rows.append((*_cells(found), f"{hours_here / length:.3g}", usd))
    return format_table((*HEADER, unit, "USD"), rows)


def _cells(found: Scaled) -> tuple[str, ...]:
    """Return the cells before those of time and money."""
    waiting = found.waiting_seconds / found.step_seconds
    return (
        str(found.num_gpus),
        f"{found.step_seconds:.3g}",
        f"{found.message_seconds:.2g}",
        f"{100 * waiting:.3g}%" if waiting >= SMALLEST_SHARE else f"<{SMALLEST_SHARE:.1%}",
        f"{found.residues_per_second:,.0f}",
        f"{found.efficiency:.3g}",
    )


def _usd(amount: float) -> str:
    return f"{amount:,.0f}" if amount >= WHOLE_USD else f"{amount:.2g}"


def _assumptions(
    layout: Layout, found: Speed, network: Network, pack_seconds: float, network_share: float
) -> list[str]:
    """Return the assumptions behind the table."""
    config = layout.config
    node_gb_s = network.node_bytes_per_second / network_share / 1e9
    link_gb_s = network.link.nominal_bytes_per_second / 1e9
    return [
        "Assumptions (docs/cost.md has the others and their sources):",
        f"  computation: {pack_seconds:.3g} s per pack of {config.train.tokens_per_pack:,} tokens on one GPU,"
        f" from the higher rate above, which is {_origin(found)}",
        f"  {_gradients(layout)}",
        f"  network: {network_share:.0%} of the {node_gb_s:.3g} GB/s of a node's EFA (--network-share),"
        f" {network.link.share:.0%} of the {link_gb_s:.3g} GB/s of a GPU's {network.link.name};"
        " latencies of NCCL's own model",
        f"  a step has {config.packs_per_step} packs; GPUs without a pack in a round are idle",
        "  time and USD are for the nodes on demand, without saving, failures and evaluations",
        *_not_counted(layout),
    ]


def _origin(found: Speed) -> str:
    """Return the kind of source of a rate: measured, published, scaled, assumed or given."""
    return found.source.split()[0].rstrip(":,")


def _gradients(layout: Layout) -> str:
    """Return how the run exchanges weights and gradients."""
    exchange = exchange_of(layout)
    if exchange.reduction == "sharded":
        copies = f"{layout.shards} GPUs per copy of the model"
        whole = "all GPUs of a row" if not layout.config.parallel.shard_size else copies
        return (
            f"FSDP2 over {whole}: weights are gathered twice per micro-batch in {8 * exchange.number_bytes}"
            " bits, gradients scattered in fp32"
        )
    sizes_in_bytes = gradient_bytes(parts_of(layout), exchange.reduction)
    total = f"{sum(sizes_in_bytes) / 1e9:.3g} GB"
    kernels = f"train.kernels: {layout.config.train.kernels}"
    if exchange.reduction == "flat":
        return f"gradients: one all-reduce of {total} after the last backward pass ({kernels})"
    return (
        f"gradients: {len(sizes_in_bytes)} all-reduces of {total} in all, during the last backward pass"
        f" ({kernels})"
    )


def _not_counted(layout: Layout) -> list[str]:
    """Return what the table leaves out for this run."""
    config = layout.config
    if config.optim.name == "muon" and config.parallel.mode == "fsdp":
        return ["  the exchange of Muon's matrices between shards is not counted"]
    return []
