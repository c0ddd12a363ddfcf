"""Report of a plan, with changes for a run that does not fit.

CO2 is computed from the region's grid (location-based), independent of the power that AWS buys.
"""

import csv
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from config.cluster_kinds import AnyCluster
from config.eks_cluster import EksCluster
from config.facts.price_list import dearest, load_prices, node_keys
from seqlm.runs.run_file import RunFile
from tools.command_line import format_table
from tools.cost.bill import Usage, hourly_usd, make_bill
from tools.cost.cluster_items import cluster_items
from tools.plan.checkpoints import Checkpoints, checkpoint_bytes, node_memory_bytes
from tools.plan.memory import USABLE, Layout, Memory, memory
from tools.plan.placement import Place, accelerators
from tools.plan.speed import Speed, residues_of

BOARD_WATTS = {
    "A10G": 300,
    "L4": 72,
    "L40S": 350,
    "A100": 400,
    "H100": 700,
    "H200": 700,
    "B200": 1000,
}
"""Power of a GPU at full load, from NVIDIA's data sheets."""
HOST_FACTOR = 10.2 / (8 * 0.7)
"""Power of a node divided by that of its GPUs; a DGX H100 draws at most 10.2 kW (NVIDIA's data sheet)."""
POWER_USAGE_EFFECTIVENESS = 1.135
"""Power usage effectiveness of AWS's data centers in the Cloud Carbon Footprint project (package
@cloud-carbon-footprint/aws 0.15.0)."""
GRID_FILE = Path(__file__).with_name("grid_carbon.csv")
MIB = 2**20
GIB = 2**30
SECONDS_PER_HOUR = 3600
TIME_UNITS = {"days": 24, "hours": 1, "minutes": 1 / 60, "seconds": 1 / SECONDS_PER_HOUR}
"""Hours per unit of a run's time; the report uses the largest unit that fits twice."""
Changes = dict[str, Any]
"""Values of the run file's settings, by ``section.field``."""


def usable_bytes(place: Place) -> float:
    return USABLE * place.device_memory_gib * GIB


def type_lines(place: Place) -> list[str]:
    """Return a line about a group of several types; none for a group of one."""
    if len(place.group.types) == 1:
        return []
    return [
        f"{place.group.name} may have {place.group.types_text}: the plan has the smallest memory of these,"
        f" {place.device_memory_gib:g} GiB, the slowest accelerator, {place.gpu}, and the dearest type"
    ]


def memory_lines(layout: Layout, found: Memory, place: Place, changes: list[str]) -> list[str]:
    parts = {**dataclasses.asdict(found), "together": found.total}
    rows = [(name.replace("_", " "), _size(value)) for name, value in parts.items()]
    usable = usable_bytes(place)
    size = place.device_memory_gib
    others = "Neuron's runtime" if place.hardware.is_neuron else "CUDA and NCCL"
    reserved = f"{1 - USABLE:.0%} reserved for {others}"
    verdict = f"of {_size(usable)} usable ({size:g} GiB {place.device}, {reserved})"
    lines = [format_table((f"memory of a {_kind(place)}", "size"), rows)]
    if place.hardware.is_neuron:
        lines.append(
            "Activations are what PyTorch would keep; what neuronx-cc keeps is unknown, because nothing was"
            " measured on Trainium."
        )
    if found.total <= usable:
        lines.append(f"fits: {_size(found.total)} {verdict}")
        kept = memory(_changed(layout, {"train.activation_checkpointing": False})).total
        if layout.config.train.activation_checkpointing and kept <= usable:
            lines.append(
                f"With {_size(kept)} it may also fit without recomputing layers, in a quarter less"
                " time: ARGS=train.activation_checkpointing=false"
            )
        return lines
    lines.append(f"DOES NOT FIT: {_size(found.total)} {verdict}")
    if changes:
        return [*lines, "It fits with one of these:", *(f'  ARGS="{change}"' for change in changes)]
    states = found.parameters + found.gradients + found.optimizer
    larger = "more nodes with parallel.mode=fsdp, GPUs with more memory"
    if place.gpu_slice:
        larger = "a group with larger slices or whole GPUs"
    return [
        *lines,
        f"Smaller packs, recomputed activations and sharding do not help: {_size(states)} are states of the"
        f" model. Use {larger}, or a smaller model.",
    ]


def speed_lines(layout: Layout, found: Speed, place: Place) -> list[str]:
    residues = residues_of(layout.config)
    low = found.residues_per_second_low
    high = found.residues_per_second_high
    train = layout.config.train
    kind = _kind(place)
    lines = [
        f"model FLOPs utilisation {_span(100 * found.mfu_low, 100 * found.mfu_high, ' %')}: {found.source}",
        f"{_span(low, high)} residues/s, {_span(low / layout.world_size, high / layout.world_size)}"
        f" per {kind}; {residues:.3g} residues in {train.max_steps:,} steps of {train.tokens_per_step:,}"
        " tokens",
    ]
    if found.busy < 1:
        lines.append(
            f"{1 - found.busy:.0%} of the {kind}s' time is idle: a step has"
            f" {layout.config.packs_per_step} packs for {layout.world_size} {kind}s; set"
            " train.tokens_per_pack or train.tokens_per_step so that they divide evenly"
        )
    return lines


def checkpoint_lines(layout: Layout, found: Checkpoints, seconds_per_step: float) -> list[str]:
    steps = max(1, int(_rounded(found.interval_seconds / seconds_per_step, 2)))
    hours = found.mean_seconds_between_failures / SECONDS_PER_HOUR
    size = checkpoint_bytes(layout.parameters)
    size_text = f"{size / 1e9:.3g} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"
    lost = f"{found.lost_share:.1%}" if found.lost_share >= 0.001 else "less than 0.1%"
    return [
        f"checkpoints of {size_text}: training waits {found.stall_seconds:.2g} s, Lustre writes"
        f" {found.write_seconds:.2g} s; a failure is expected every {hours:,.0f} h",
        f"save every {found.interval_seconds / 60:.0f} min (Daly 2006): ARGS=train.save_every_steps={steps}"
        f" (now {layout.config.train.save_every_steps}); {lost} of the time is lost to saving"
        " and failures",
    ]


@dataclass(frozen=True)
class NodeMemory:
    """Memory of a node for the states that a run keeps there."""

    needed_bytes: int
    usable_bytes: float
    kind: str
    """Memory that is meant, as ``of each node``."""


def node_memory(layout: Layout, place: Place, cluster: AnyCluster) -> NodeMemory | None:
    """Return the memory of a node for the states that a run keeps there; None if it keeps none.

    Jobs on Neuron devices keep none, and on EKS only jobs of clusters with ``memory_states``.
    """
    if place.hardware.is_neuron:
        return None
    size = place.hardware.memory_gib * place.nodes_paid / place.num_nodes
    kind = "of this share of a node" if place.gpu_slice else "of each node"
    is_managed = False
    if isinstance(cluster, EksCluster):
        if cluster.memory_states is None:
            return None
        if cluster.managed_memory_percent:
            is_managed = True
            size *= cluster.managed_memory_percent / 100
            kind = "of each node for HyperPod's managed tier, whose own copies are not counted"
    needed = node_memory_bytes(layout, num_nodes=place.num_nodes, is_managed=is_managed)
    return NodeMemory(needed, size * GIB, kind) if needed else None


def node_memory_lines(found: NodeMemory | None) -> list[str]:
    """Return lines about the states that a run keeps in the memory of its nodes; none if it keeps none."""
    if found is None:
        return []
    usable = f"{found.usable_bytes / GIB:g} GiB {found.kind}"
    line = f"states in memory: up to {_size(found.needed_bytes)} of the {usable}"
    if found.needed_bytes > found.usable_bytes:
        line += (
            "; that is too much, so none are kept: ARGS=train.memory_checkpoint_steps=0 is the same"
        )
    return [line]


def time_and_money(
    cluster: AnyCluster, place: Place, *, hours_low: float, hours_high: float, co2: bool
) -> list[str]:
    """Return lines about time, cost and, if wanted, emissions; ``hours_low`` belongs to the higher speed."""
    unit, length = next(
        (unit, hours)
        for unit, hours in TIME_UNITS.items()
        if hours_high >= 2 * hours or unit == "seconds"
    )
    time = f"{_span(hours_low / length, hours_high / length)} {unit}"
    devices = f"{place.num_nodes} * {place.group.types_text} ({place.world_size} {_kind(place)}s)"
    if place.gpu_slice:
        devices = f"one {place.device} of {place.group.types_text}"
    lines = [
        f"{time} on {devices}",
        _cost_line(cluster, place, hours_low, hours_high),
    ]
    if co2:
        lines.append(_emissions_line(cluster, place, hours_low, hours_high))
    return lines


@dataclass(frozen=True)
class HourlyRates:
    """USD per hour while a run lasts."""

    nodes: float
    """Nodes of the run, on demand; of a slice, its share of a node."""
    cluster: float
    """Whole cluster."""


def hourly_rates(cluster: AnyCluster, place: Place) -> HourlyRates | None:
    """Return the rates of a run; None if the price of its nodes is not known."""
    prices = load_prices(cluster.region)
    node_price = dearest(node_keys(place.group.types), prices)
    if not node_price:
        return None
    bill = make_bill(cluster.region, cluster_items(cluster, Usage()), prices)
    # The bill does not include nodes that Karpenter adds.
    num_added = max(0, place.num_nodes - place.group.num_instances)
    return HourlyRates(
        nodes=node_price.usd * place.nodes_paid,
        cluster=hourly_usd(bill.monthly_usd) + node_price.usd * num_added,
    )


def _cost_line(cluster: AnyCluster, place: Place, hours_low: float, hours_high: float) -> str:
    rates = hourly_rates(cluster, place)
    if rates is None:
        return f"no price is known for {place.group.types_text}; run `make prices REGION={cluster.region}`"
    nodes_cost = _money(rates.nodes * hours_low, rates.nodes * hours_high)
    cluster_cost = _money(rates.cluster * hours_low, rates.cluster * hours_high)
    what = "this share of a node" if place.gpu_slice else "these nodes"
    return (
        f"{nodes_cost} for {what} on demand, {cluster_cost} for the whole cluster in that time"
        " (`make cost` names the sources of the prices)"
    )


def _emissions_line(cluster: AnyCluster, place: Place, hours_low: float, hours_high: float) -> str:
    gpus = accelerators(place.group)
    kwh_low = min(energy_kwh(gpu, place.gpus_paid, hours_low) for gpu in gpus)
    kwh_high = max(energy_kwh(gpu, place.gpus_paid, hours_high) for gpu in gpus)
    kg_per_kwh = grid_grams_per_kwh(cluster.region) / 1000
    kg_low = kwh_low * kg_per_kwh
    kg_high = kwh_high * kg_per_kwh
    mass = (
        f"{_span(kg_low / 1000, kg_high / 1000)} t"
        if kg_high >= 1000
        else f"{_span(kg_low, kg_high)} kg"
    )
    return (
        f"{mass} CO2e with the grid of {cluster.region} for {_span(kwh_low, kwh_high)} kWh (at full load;"
        " docs/cost.md)"
    )


def _kind(place: Place) -> str:
    """Return the kind of device of one process."""
    if place.gpu_slice:
        return "slice"
    return "NeuronCore" if place.hardware.is_neuron else "GPU"


def _span(low: float, high: float, unit: str = "") -> str:
    """Return both ends of a range with three digits, or one value if they look the same."""
    first = _three_digits(low) + unit
    second = _three_digits(high) + unit
    return first if first == second else f"{first} to {second}"


def _three_digits(value: float) -> str:
    rounded = _rounded(value, 3)
    return f"{rounded:,.0f}" if rounded >= 100 else f"{rounded:g}"


def _size(num_bytes: float) -> str:
    return (
        f"{num_bytes / GIB:.1f} GiB"
        if num_bytes >= GIB
        else f"{_rounded(num_bytes / MIB, 2):g} MiB"
    )


def _money(low_usd: float, high_usd: float) -> str:
    if high_usd >= 1:
        return f"{_span(low_usd, high_usd)} USD"
    if high_usd >= 0.001:
        return f"{_span(100 * low_usd, 100 * high_usd)} cents"
    return "less than 0.1 cents"


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def grid_grams_per_kwh(region: str) -> float:
    """Return the grams of CO2 equivalents per kilowatt hour.

    Raises:
        ValueError: for a region without a figure.
    """
    with GRID_FILE.open(newline="") as file:
        known = {row["region"]: float(row["grams_per_kwh"]) for row in csv.DictReader(file)}
    if region not in known:
        raise ValueError(
            f"--co2: got {region}; figures are known for {', '.join(sorted(known))}; remove it"
        )
    return known[region]


def energy_kwh(gpu: str, num_gpus: float, hours: float) -> float:
    """Return the energy of GPUs and their share of the nodes at full load, including cooling.

    Raises:
        ValueError: for an accelerator whose power is not published.
    """
    if gpu not in BOARD_WATTS:
        raise ValueError(f"--co2: got {gpu}, whose power is not published; remove it")
    return BOARD_WATTS[gpu] / 1000 * num_gpus * hours * HOST_FACTOR * POWER_USAGE_EFFECTIVENESS


def remedies(layout: Layout, usable_bytes: float) -> list[str]:
    """Return the smallest changes of each kind, as ARGS of make, with which the run fits, if any."""
    found: list[Changes] = []
    for setting in _settings(layout):
        if any(changes.items() <= setting.items() for changes in found):
            continue  # a smaller change is enough
        packs: list[Changes] = [
            {"train.tokens_per_pack": size} for size in _smaller_packs(layout.config)
        ]
        for pack in ({}, *packs):
            if memory(_changed(layout, setting | pack)).total <= usable_bytes:
                found.append(setting | pack)
                break
    return [
        " ".join(f"{key}={value}".lower() for key, value in changes.items()) for changes in found
    ]


def _changed(layout: Layout, changes: Changes) -> Layout:
    config = layout.config
    for key, value in changes.items():
        name, _, field = key.partition(".")
        section = dataclasses.replace(getattr(config, name), **{field: value})
        config = dataclasses.replace(config, **{name: section})
    return dataclasses.replace(layout, config=config)


def _settings(layout: Layout) -> list[Changes]:
    """Return settings that can be combined with smaller packs; the first is empty."""
    config = layout.config
    settings: list[Changes] = [{}]
    if not config.train.activation_checkpointing:
        settings.append({"train.activation_checkpointing": True})
    # Adapters leave little to shard, and NeuronCores support only full copies of the model.
    can_shard = layout.world_size > 1 and config.lora is None and layout.attention != "window"
    if config.parallel.mode == "ddp" and can_shard:
        settings += [{**setting, "parallel.mode": "fsdp"} for setting in settings]
    return settings


def _smaller_packs(config: RunFile) -> list[int]:
    """Return halves, quarters, ... of the pack that hold the longest protein; steps keep their size."""
    least = config.model.max_residues + 2
    sizes = []
    tokens = config.train.tokens_per_pack
    while tokens % 2 == 0 and tokens // 2 >= least:
        tokens //= 2
        sizes.append(tokens)
    return sizes
