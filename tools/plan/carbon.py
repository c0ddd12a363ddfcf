"""CO2 of a run by the grid of its region: location-based, whatever power AWS buys for it."""

from __future__ import annotations

import csv
from pathlib import Path

BOARD_WATTS = {"A10G": 300, "L4": 72, "L40S": 350, "A100": 400, "H100": 700, "H200": 700, "B200": 1000}
"""Of a GPU at full load: NVIDIA's data sheets."""
HOST_FACTOR = 10.2 / (8 * 0.7)
"""Node over its GPUs: a DGX H100 draws at most 10.2 kW (NVIDIA's data sheet)."""
POWER_USAGE_EFFECTIVENESS = 1.135
"""Of AWS's data centres, as the Cloud Carbon Footprint project takes it (package @cloud-carbon-footprint/aws
0.15.0)."""
GRID_FILE = Path(__file__).with_name("grid_carbon.csv")


def grid_grams_per_kwh(region: str) -> float:
    """Grams of CO2 equivalents of a kilowatt hour.

    Raises:
        ValueError: for a region without a figure.
    """
    with GRID_FILE.open(newline="") as file:
        known = {row["region"]: float(row["grams_per_kwh"]) for row in csv.DictReader(file)}
    if region not in known:
        raise ValueError(
            f"--co2: got {region}; figures are known of {', '.join(sorted(known))}; leave it out"
        )
    return known[region]


def energy_kwh(gpu: str, world_size: int, hours: float) -> float:
    """Of the nodes at full load, cooling included.

    Raises:
        ValueError: for an accelerator whose power is not published.
    """
    if gpu not in BOARD_WATTS:
        raise ValueError(f"--co2: got {gpu}, whose power is not published; leave it out")
    return BOARD_WATTS[gpu] / 1000 * world_size * hours * HOST_FACTOR * POWER_USAGE_EFFECTIVENESS


def tonnes(gpu: str, world_size: int, hours: float, region: str) -> float:
    return energy_kwh(gpu, world_size, hours) * grid_grams_per_kwh(region) / 1e6
