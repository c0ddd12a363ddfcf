"""Tables that combine lines of acceptance runs with other facts of the project.

They need packages of the development environment, so only the report imports this module.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from benchmarks import expected
from benchmarks.case import AUTO_KERNELS, Line
from benchmarks.growth.rows import ROWS as GROWTH_ROWS
from benchmarks.growth.table import STAGE as GROWTH
from benchmarks.growth.table import table_rows as growth_rows
from benchmarks.ours import RECIPE_TOKENS, family_with
from benchmarks.stages.speed import by_size
from config.facts.instance_catalogue import INSTANCE_TYPES
from config.facts.price_list import load_prices
from seqlm.proteins.families.table import MODEL_FAMILIES
from seqlm.runs.run_file import ModelConfig, RunFile
from seqlm.training.config import TrainConfig
from seqlm.training.kernels import PRODUCTS
from seqlm.training.peak_rates import PEAK_BF16_FLOPS
from tools.plan import tried
from tools.plan.memory import Layout, memory
from tools.plan.model_size import parameters_of, shape_of


class Table(NamedTuple):
    """Table of a document."""

    rows: list[dict[str, str]]
    """Cells of each row by heading."""
    note: str
    """Conditions of the figures, which stand below the table."""


PRICE_REGION = "us-east-1"
"""Region of the prices, as far as they are known there."""
STAND_INS = {"H200": "H100"}
"""GPUs whose price per hour stands in for a GPU without a known price, which is assumed to cost no less."""
COMPLETE = ("passed", "missed", "measured")
"""Verdicts of complete measurements."""
SECONDS_PER_HOUR = 3600
BILLION = 1e9


class HourlyPrice(NamedTuple):
    """Price of a GPU."""

    usd: float
    """USD per hour: the price of the instance divided by its GPUs."""
    instance_type: str
    region: str
    as_of: str
    """Date of the price."""


def price_of(gpu: str) -> HourlyPrice:
    """Return the lowest known price of a GPU on HyperPod, or that of its stand-in.

    Raises:
        KeyError: if neither has a known price.
    """
    prices = load_prices(PRICE_REGION)
    found: list[HourlyPrice] = []
    for name, instance in INSTANCE_TYPES.items():
        price = prices.get(f"hyperpod.{name}")
        if price and instance.accelerator == gpu:
            usd = price.usd / instance.num_accelerators
            found.append(HourlyPrice(usd, name, price.region, price.as_of))
    return min(found) if found else price_of(STAND_INS[gpu])


def gpu_of(line: Line) -> str | None:
    """Return the GPU of a line by its name in ``PEAK_BF16_FLOPS``; None for a processor or an unknown GPU."""
    return next((name for name in PEAK_BF16_FLOPS if name in line["device"].split()), None)


def on_gpus(lines: Sequence[Line]) -> list[Line]:
    """Return the lines of our trainer's speed with AdamW on GPUs, the fastest of each device and size."""
    best: dict[tuple[str, str], Line] = {}
    for line in lines:
        if line["stage"] != "speed" or line["verdict"] not in COMPLETE:
            continue
        if gpu_of(line) is None or "optimizer=" in line["shape"]:
            continue
        key = (line["device"], line["size"])
        if key not in best or _rate(line) > _rate(best[key]):
            best[key] = line
    return sorted(best.values(), key=by_size)


def _rate(line: Line) -> float:
    return float(line["figures"]["recipe"]["residues_per_second"])


def usd_per_billion(line: Line) -> float:
    """Return the USD for a billion residues on a GPU that is paid for only while it trains."""
    gpu = gpu_of(line)
    assert gpu is not None  # the caller selects lines of GPUs
    seconds = BILLION / _rate(line)
    return price_of(gpu).usd * seconds / SECONDS_PER_HOUR


def summary(lines: Sequence[Line]) -> Table:
    """Return the table that README.md begins with."""
    found: list[dict[str, str]] = []
    for line in on_gpus(lines):
        recipe = line["figures"]["recipe"]
        found.append(
            {
                "pre-training on one GPU": f"{_title(line)}, {line['device']}",
                "residues/s": f"{float(f'{_rate(line):.3g}'):,.0f}",
                "MFU": f"{recipe['model_mfu']:.1%}",
                "memory, GB": f"{recipe['peak_gb']:.1f}",
                "USD per billion residues, at least": f"{usd_per_billion(line):.2f}",
            }
        )
    return Table(found, f"{_versions(lines)} MFU is model FLOPs over the nominal peak.")


def usd(lines: Sequence[Line]) -> Table:
    """Return the USD per billion residues of each size."""
    found: list[dict[str, str]] = []
    for line in on_gpus(lines):
        found.append(
            {
                "model": _title(line),
                "GPU": line["device"],
                "USD per billion residues, at least": f"{usd_per_billion(line):.2f}",
            }
        )
    prices: dict[str, None] = {}
    for line in on_gpus(lines):
        price = price_of(str(gpu_of(line)))
        source = f"{price.instance_type} ({price.region}, {price.as_of})"
        prices[f"{price.usd:.2f} USD for an hour of a GPU of {source}"] = None
    return Table(found, f"{_versions(lines)} Price: {'; '.join(prices)}.")


def planned_memory(lines: Sequence[Line]) -> Table:
    """Return the peaks of memory that were measured, beside those that ``make plan`` computes."""
    found: list[dict[str, str]] = []
    for line in on_gpus(lines):
        layout = layout_of(line)
        measured = line["figures"]["recipe"]["peak_gb"]
        planned = memory(layout).total / BILLION
        found.append(
            {
                "model": _title(line),
                "GPU": line["device"],
                "tokens per pack": f"{layout.config.train.tokens_per_pack:,}",
                "measured, GB": f"{measured:.1f}",
                "planned, GB": f"{planned:.1f}",
                "planned over measured": f"{planned / measured - 1:+.1%}",
            }
        )
    return Table(found, _versions(lines))


def layout_of(line: Line) -> Layout:
    """Return the layout of a line's run for ``make plan``."""
    values = dict(part.split("=", 1) for part in line["shape"].split(","))
    # The first lines come from a version without kernels, and do not name them.
    kernels = line.get("kernels", "off").split(",")
    casts_weights = AUTO_KERNELS in kernels or PRODUCTS in kernels
    train = TrainConfig(
        kernels="auto" if casts_weights else "off",
        tokens_per_pack=int(values["tokens_per_pack"]),
        tokens_per_step=RECIPE_TOKENS,
        activation_checkpointing=values.get("recompute") == "1",
    )
    family = family_with(line["size"])
    model = ModelConfig(family=family, size=line["size"])
    config = RunFile(name="measured", model=model, train=train)
    shape = shape_of(config)
    return Layout(config, shape, parameters_of(config, shape), world_size=1)


def _title(line: Line) -> str:
    return f"{MODEL_FAMILIES[family_with(line['size'])].title} {line['size']}"


def _versions(lines: Sequence[Line]) -> str:
    """Return the versions and commits of the lines on GPUs."""
    commits: dict[str, list[str]] = {}
    for line in on_gpus(lines):
        of_version = commits.setdefault(line["versions"]["torch"], [])
        if line["commit"][:7] not in of_version:
            of_version.append(line["commit"][:7])
    parts = [
        f"torch {version}, commit{'s' * (len(found) > 1)} {', '.join(found)}"
        for version, found in commits.items()
    ]
    return f"Measured with {'; '.join(parts)}."


def gains(lines: Sequence[Line]) -> Table:
    """Return the expected gains of kernels, which come from no line of an acceptance run."""
    return Table(expected.rows(), expected.CONDITIONS)


def growth(lines: Sequence[Line]) -> Table:
    """Return the cost of each kind of work at three sizes, and what follows for larger ones."""
    found = [line for line in lines if line["stage"] == GROWTH]
    if not found:
        return Table([], "")
    # Costs of two machines do not make a slope, so each kind of work has the lines of its last machine.
    machines = {line["contestant"]: line["device"] for line in found}
    mine = [line for line in found if line["device"] == machines[line["contestant"]]]
    devices = Counter(line["device"] for line in mine)
    [(main, _), *others] = devices.most_common()
    notes = [_machine([line for line in mine if line["device"] == main])]
    for device, _ in others:
        here = [line for line in mine if line["device"] == device]
        titles = [row.title for row in GROWTH_ROWS if machines.get(row.name) == device]
        notes.append(f"{_machine(here)} This machine is that of: {'; '.join(titles)}.")
    return Table(growth_rows(mine), " ".join(notes))


def _machine(lines: Sequence[Line]) -> str:
    """Return the machine, the versions, the commits and the conditions of lines of the growth benchmark."""
    last = lines[-1]
    versions = last["versions"]
    commits = ", ".join(dict.fromkeys(line["commit"][:7] for line in lines))
    notes = "; ".join(dict.fromkeys(line["note"] for line in lines if line["note"]))
    conditions = f" Conditions: {notes}." if notes else ""
    return (
        f"Measured on {last['device']} ({versions['cpu_cores']} cores), torch {versions['torch']}, Python "
        f"{versions['python']}; commit {commits}.{conditions}"
    )


def limits(lines: Sequence[Line]) -> Table:
    """Return the largest numbers that were run, which ``make plan`` also uses. It depends on no lines."""
    return Table(
        tried.table(), "`make plan` prints a warning for each number of a run that is larger."
    )


TABLES: Mapping[str, Callable[[Sequence[Line]], Table]] = {
    "summary": summary,
    "usd": usd,
    "memory": planned_memory,
    "expected": gains,
    "growth": growth,
    "limits": limits,
}
"""Functions that return a table, by the name in its marker."""
