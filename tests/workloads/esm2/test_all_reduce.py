"""All-reduce of known numbers with real processes: right, wrong and hanging; bandwidth as nccl-tests says."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from workloads.esm2.network.all_reduce import Point
from workloads.esm2.network.check import SECONDS
from workloads.esm2.network.nccl_log import chosen_network

REPOSITORY = Path(__file__).parents[3]


def run_check(tmp_path: Path, *module: str) -> tuple[int, str, str]:
    """Status, output, and the message that the first process left."""
    message = tmp_path / "message"
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3", "-m", *module],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1", "ESM2_ERROR_FILE": str(message)},
        capture_output=True,
        text=True,
        timeout=SECONDS["cpu"] + 60,
    )
    return done.returncode, done.stdout, message.read_text() if message.exists() else ""


def test_numbers_that_are_right(tmp_path: Path) -> None:
    status, output, message = run_check(tmp_path, "workloads.esm2.network.check")
    assert status == 0 and not message
    assert "all-reduce over 3 process(es) is right: 1 MiB in" in output and "network gloo" in output


def test_a_process_that_gives_wrong_numbers(tmp_path: Path) -> None:
    """Element 5 of three processes is 5 + 0, 5 + 1 and 5 + 2, and one of them has added 1."""
    status, _, message = run_check(tmp_path, "tests.workloads.esm2.hindered_all_reduce", "wrong")
    assert status == 1
    assert message == "all-reduce of 4096 bytes over 3 processes: element 5 is 19.0, and must be 18.0"


def test_a_process_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    start = time.monotonic()
    status, _, message = run_check(tmp_path, "tests.workloads.esm2.hindered_all_reduce", "late")
    assert status == 1
    assert message and "\n" not in message
    assert time.monotonic() - start < SECONDS["cpu"]


@pytest.mark.parametrize(
    ("size_bytes", "microseconds", "num_processes", "algorithm", "bus"),
    [
        # Lines that nccl-tests prints, of two p4de.24xlarge and of two p5.48xlarge.
        (2147483648, 51406, 16, 41.78, 78.33),
        (17179869184, 66132, 16, 259.78, 487.09),
        (1 << 20, 100.0, 1, 10.49, 0.0),
    ],
)
def test_bandwidth_is_that_of_nccl_tests(
    size_bytes: int, microseconds: float, num_processes: int, algorithm: float, bus: float
) -> None:
    point = Point(size_bytes, microseconds / 1e6, 20, num_processes)
    assert point.algorithm_gb_s == pytest.approx(algorithm, abs=0.006)
    assert point.bus_gb_s == pytest.approx(bus, abs=0.006)


@pytest.mark.parametrize(
    ("lines", "network"),
    [
        ([], ""),
        (
            [
                "NET/OFI Selected provider is efa, fabric is efa-direct (found 16 nics)",
                "Using network Libfabric",
            ],
            "Libfabric, efa, 16 cards",
        ),
        (["NET/OFI Selected Provider is efa", "Using network AWS Libfabric"], "AWS Libfabric, efa"),
        (["NET/Socket : Using [0]eth0:10.0.1.2<0>", "Using network Socket"], "Socket"),
    ],
    ids=["no NCCL", "EFA", "an old plugin", "TCP"],
)
def test_the_network_is_read_from_nccls_log(lines: list[str], network: str) -> None:
    text = "".join(f"ip-10-0-1-2:90:90 [0] NCCL INFO {line}\n" for line in lines)
    assert chosen_network(text) == network
