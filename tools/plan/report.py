"""A plan in words."""

from __future__ import annotations

from config.cluster_kinds import AnyCluster
from config.price_list import load_prices
from tools.cost.bill import hourly_usd, make_bill
from tools.cost.cluster_items import cluster_items
from tools.cost.usage import Usage
from tools.plan.carbon import energy_kwh, tonnes
from tools.plan.checkpoints import Checkpoints, checkpoint_bytes
from tools.plan.memory import USABLE, Layout, Memory
from tools.plan.place import Place
from tools.plan.speed import Speed, residues_of
from tools.tables import format_table

GIB = 2**30
SECONDS_PER_HOUR = 3600
HOURS_PER_DAY = 24


def usable_bytes(place: Place) -> float:
    return USABLE * place.hardware.accelerator_memory_gib * GIB


def memory_lines(layout: Layout, found: Memory, place: Place, changes: list[str]) -> list[str]:
    parts = {
        "parameters": found.parameters,
        "gradients": found.gradients,
        "optimizer": found.optimizer,
        "weights in use": found.weights_in_use,
        "activations": found.activations,
        "together": found.total,
    }
    rows = [(name, f"{value / GIB:.1f}") for name, value in parts.items()]
    usable, size = usable_bytes(place), place.hardware.accelerator_memory_gib
    verdict = f"of {usable / GIB:.1f} usable ({size} GiB {place.gpu}, {1 - USABLE:.0%} left to CUDA and NCCL)"
    lines = [format_table(("memory of a GPU", "GiB"), rows)]
    if found.total <= usable:
        return [*lines, f"fits: {found.total / GIB:.1f} {verdict}"]
    lines.append(f"DOES NOT FIT: {found.total / GIB:.1f} {verdict}")
    if changes:
        return [*lines, "It fits with one of these:", *(f'  ARGS="{change}"' for change in changes)]
    states = (found.parameters + found.gradients + found.optimizer) / GIB
    return [
        *lines,
        f"Smaller packs, recomputed activations and sharding do not help: {states:.1f} GiB are states of the"
        " model. Take more nodes with parallel.mode=fsdp, GPUs with more memory, or a smaller model.",
    ]


def speed_lines(layout: Layout, found: Speed) -> list[str]:
    residues = residues_of(layout.config)
    low, high = found.residues_per_second_low, found.residues_per_second_high
    train = layout.config.train
    rate = _span(low, high, "{:,.0f}")
    lines = [
        f"model FLOPs utilisation {_span(found.mfu_low, found.mfu_high, '{:.3g} %', 100)}: {found.source}",
        f"{rate} residues/s, {_span(low / layout.world_size, high / layout.world_size, '{:,.0f}')} a GPU;"
        f" {residues:.3g} residues in {train.max_steps:,} steps of {train.tokens_per_step:,} tokens",
    ]
    if found.busy < 1:
        lines.append(
            f"{1 - found.busy:.0%} of the GPUs' time is idle: a step has {layout.config.packs_per_step} packs"
            f" for {layout.world_size} GPUs; choose train.tokens_per_pack or train.tokens_per_step to divide"
        )
    return lines


def checkpoint_lines(layout: Layout, found: Checkpoints, seconds_per_step: float) -> list[str]:
    steps = max(1, int(_rounded(found.interval_seconds / seconds_per_step, 2)))
    hours = found.mean_seconds_between_failures / SECONDS_PER_HOUR
    size = checkpoint_bytes(layout.parameters) / 1e9
    return [
        f"checkpoints of {size:.3g} GB: training waits {found.stall_seconds:.2g} s, Lustre writes"
        f" {found.write_seconds:.2g} s; a failure is expected every {hours:,.0f} h",
        f"save every {found.interval_seconds / 60:.0f} min (Daly 2006): ARGS=train.save_every_steps={steps}"
        f" (now {layout.config.train.save_every_steps}); {found.lost_share:.1%} of the time goes to saving"
        " and to what failures undo",
    ]


def time_and_money(
    cluster: AnyCluster, place: Place, hours_low: float, hours_high: float, *, co2: bool
) -> list[str]:
    """``hours_low`` of the faster speed."""
    bill = make_bill(cluster_items(cluster, Usage()), load_prices(cluster.region))
    hourly = hourly_usd(bill.monthly_usd)
    nodes = next(
        (line.price for line in bill.lines if line.item.key == f"hyperpod.{place.group.instance_type}"), None
    )
    if hours_high < 2 * HOURS_PER_DAY:
        time = f"{_span(hours_low, hours_high, '{:.1f}')} hours"
    else:
        time = f"{_span(hours_low / HOURS_PER_DAY, hours_high / HOURS_PER_DAY, '{:,.1f}')} days"
    lines = [f"{time} on {place.num_nodes} * {place.group.instance_type} ({place.world_size} GPUs)"]
    if nodes:
        usd = nodes.usd * place.num_nodes
        whole = _span(hourly * hours_low, hourly * hours_high, "{:,.0f}")
        lines.append(
            f"{_span(usd * hours_low, usd * hours_high, '{:,.0f}')} USD for these nodes on demand,"
            f" {whole} USD for the whole cluster in that time (make cost says whose prices these are)"
        )
    else:
        lines.append(f"no price is known of {place.group.instance_type}: make prices REGION={cluster.region}")
    if co2:
        arguments = place.gpu, place.world_size
        mass = _span(
            tonnes(*arguments, hours_low, cluster.region),
            tonnes(*arguments, hours_high, cluster.region),
            "{:.3g}",
        )
        energy = _span(energy_kwh(*arguments, hours_low), energy_kwh(*arguments, hours_high), "{:,.0f}")
        lines.append(
            f"{mass} t CO2e by the grid of {cluster.region} for {energy} kWh (at full load; docs/cost.md)"
        )
    return lines


def _span(low: float, high: float, form: str, factor: float = 1.0) -> str:
    """Both ends to three digits, or one if they look the same."""
    first, second = (form.format(_rounded(factor * value, 3)) for value in (low, high))
    return first if first == second else f"{first} to {second}"


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")
