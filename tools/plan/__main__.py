"""Plan of a run: ``python -m tools.plan --config RUN.yaml --cluster FILE [section.field=value ...]``.

The exit status is 1 if the run does not fit into the GPUs' memory.
"""

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path

from config.cluster_kinds import AnyCluster
from config.reading.loader import load_cluster
from seqlm.runs.run_file import RunFile, load_config, xla_violations
from tools.command_line import cluster_parser, run_command
from tools.jobs.checks import listed
from tools.json_output import add_json_option, publish
from tools.plan import report, tried
from tools.plan.checkpoints import plan_checkpoints
from tools.plan.memory import Layout, memory
from tools.plan.model_size import parameters_of, shape_of
from tools.plan.network import NETWORK_SHARE
from tools.plan.placement import Place, find_place, with_slowest_gpu
from tools.plan.scaling_report import scaling_lines
from tools.plan.speed import read_measured, residues_of, speed

DOES_NOT_FIT = 1
"""Exit status; 2 is for wrong usage."""
GIB_PER_TIB = 1024


@dataclass(frozen=True)
class Span:
    """Lower and higher estimate."""

    low: float
    high: float

    def times(self, factor: float) -> "Span":
        return Span(factor * self.low, factor * self.high)


def main() -> int:
    options = _options()
    config = load_config(options.config, options.overrides)
    cluster = load_cluster(options.cluster)
    place = find_place(cluster, options.group, options.nodes)
    layout = _layout(config, place)
    place = with_slowest_gpu(place, layout, options.mfu)
    num_proteins = tried.num_proteins(config, options.proteins)
    warnings = tried.warnings(num_proteins, place)
    title = f"{config.name} on {place.group.name} of {cluster.name}"
    print(title, *report.type_lines(place), *warnings, "", sep="\n")
    needed = memory(layout)
    usable = report.usable_bytes(place)
    fits = needed.total <= usable
    changes = [] if fits else report.remedies(layout, usable)
    publish(
        run=config.name,
        cluster=cluster.name,
        group=place.group.name,
        instance_type=place.group.types_text,
        nodes=place.num_nodes,
        devices=place.world_size,
        warnings=warnings,
        fits=fits,
        memory_bytes=round(needed.total),
        usable_bytes=round(usable),
        changes=changes,
    )
    print(*report.memory_lines(layout, needed, place, changes), sep="\n")
    if not fits:
        return DOES_NOT_FIT
    measured = read_measured(options.measured) if options.measured else None
    found = speed(
        layout, gpu=place.gpu, mfu=options.mfu, measured=measured, gpu_share=place.gpu_share
    )
    saving = plan_checkpoints(
        layout,
        lustre_bytes_per_second=lustre_bytes_per_second(cluster),
        failure_hours=options.failure_hours,
    )
    residues = residues_of(config)
    # Saving and failures lengthen the training.
    useful_share = 1 - saving.lost_share
    seconds_low = residues / found.residues_per_second_high / useful_share
    seconds_high = residues / found.residues_per_second_low / useful_share
    seconds_per_step = residues / config.train.max_steps / found.residues_per_second_high
    hours = Span(seconds_low / report.SECONDS_PER_HOUR, seconds_high / report.SECONDS_PER_HOUR)
    node_memory = report.node_memory(layout, place, cluster)
    _publish_time_and_money(cluster, place, hours)
    publish(
        memory_states_bytes=node_memory.needed_bytes if node_memory else 0,
        memory_states_usable_bytes=round(node_memory.usable_bytes) if node_memory else None,
        residues_per_second=asdict(
            Span(found.residues_per_second_low, found.residues_per_second_high)
        ),
        save_every_seconds=saving.interval_seconds,
    )
    print(
        "",
        *report.speed_lines(layout, found, place),
        *report.checkpoint_lines(layout, saving, seconds_per_step),
        *report.node_memory_lines(node_memory),
        *report.time_and_money(
            cluster,
            place,
            hours_low=hours.low,
            hours_high=hours.high,
            co2=options.co2,
        ),
        "",
        *scaling_lines(layout, found, place, cluster.region, options.network_share),
        sep="\n",
    )
    return 0


def _options() -> argparse.Namespace:
    parser = cluster_parser("Plan a run on a cluster: memory, time, cost and checkpoints.")
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="run file")
    parser.add_argument("--group", help="instance group (default: the one with the most GPUs)")
    parser.add_argument("--nodes", type=int, help="number of nodes of the group (default: all)")
    parser.add_argument(
        "--mfu", type=float, help="share of the GPUs' peak to assume, for example 0.4"
    )
    parser.add_argument(
        "--measured", type=Path, metavar="FILE", help="results.json of a run on the same GPUs"
    )
    parser.add_argument(
        "--failure-hours", type=float, help="hours between failures of the job, if known"
    )
    parser.add_argument(
        "--proteins",
        type=int,
        help="number of proteins of the run (default: of the prepared data or of the named source, if known)",
    )
    parser.add_argument(
        "--network-share",
        type=float,
        default=NETWORK_SHARE,
        help="share of EFA's bandwidth that collectives reach, for the table of scaling (default:"
        f" {NETWORK_SHARE})",
    )
    parser.add_argument(
        "--co2", action="store_true", help="report emissions, too, from the grid of the region"
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="section.field=value", help="changes of the run file"
    )
    add_json_option(parser)
    options = parser.parse_intermixed_args()
    _check_number("--mfu", options.mfu, most=1.0)
    _check_number("--failure-hours", options.failure_hours, most=1e9)
    _check_number("--network-share", options.network_share, most=1.0)
    _check_number("--proteins", options.proteins, most=1e12)
    return options


def _publish_time_and_money(cluster: AnyCluster, place: Place, hours: Span) -> None:
    """Publish the duration and the cost of a run for ``--json``."""
    publish(hours=asdict(hours))
    rates = report.hourly_rates(cluster, place)
    if rates is not None:
        publish(
            nodes_usd=asdict(hours.times(rates.nodes)),
            cluster_usd=asdict(hours.times(rates.cluster)),
        )


def _check_number(option: str, value: float | None, *, most: float) -> None:
    """Raise ValueError if the value of an option is not between 0 and ``most``."""
    if value is not None and not 0 < value <= most:
        raise ValueError(
            f"{option}: got {value}; a number above 0 and at most {most:g} is allowed; change or remove it"
        )


def _layout(config: RunFile, place: Place) -> Layout:
    """Return the layout of a run on the devices of a place.

    Raises:
        ValueError: if the run cannot be divided among these devices, or NeuronCores do not support it.
    """
    shape = shape_of(config)
    layout = Layout(
        config,
        shape,
        parameters_of(config, shape),
        place.world_size,
        number_bytes=4 if config.train.precision == "fp32" else 2,
        attention="window" if place.hardware.is_neuron else "flash",
    )
    if layout.world_size % layout.shards:
        raise ValueError(
            f"parallel.shard_size: got {layout.shards}; it must divide the {layout.world_size} GPUs"
        )
    if place.hardware.is_neuron and (problems := xla_violations(config)):
        raise ValueError(listed(problems))
    return layout


def lustre_bytes_per_second(cluster: AnyCluster) -> float:
    """Return the throughput of the file system of checkpoints: Lustre, or the homes' without it."""
    lustre = cluster.storage.lustre
    if lustre is None:
        home = cluster.storage.home
        assert home, "a rule of cluster files requires one of the two"
        return home.throughput_mbps * 1e6
    return lustre.capacity_gib / GIB_PER_TIB * lustre.throughput_mbps_per_tib * 1e6


if __name__ == "__main__":
    run_command(main)
