"""All-reduce of known numbers with real processes: right, wrong and hanging; bandwidth as nccl-tests says."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from seqlm.launch.network import check
from seqlm.launch.network.all_reduce import Point
from seqlm.launch.network.check import SECONDS
from seqlm.launch.network.nccl_log import chosen_network
from tests.workloads.training.forked_processes import forked

pytestmark = pytest.mark.long

BAD_RANK = "1"


def run_check(
    folder: Path, target: Callable[..., None], *arguments: float
) -> tuple[list[int], str, str]:
    """Statuses, output, and the message that the first process left."""
    message = folder / "message"
    with forked(3, target, *arguments, log=folder / "log", ESM2_ERROR_FILE=str(message)) as started:
        statuses = started.ends(SECONDS["cpu"] + 60)
        return statuses, started.output, message.read_text() if message.exists() else ""


def check_with_a_wrong_number() -> None:
    all_reduce = dist.all_reduce

    def wrong(tensor: Any, *arguments: Any, **options: Any) -> Any:
        tensor[5] += os.environ["RANK"] == BAD_RANK
        return all_reduce(tensor, *arguments, **options)

    dist.all_reduce = wrong
    check.main(6.0)


def check_without_one(seconds: float) -> None:
    if os.environ["RANK"] == BAD_RANK:
        time.sleep(1000)
    check.main(seconds)


def test_numbers_that_are_right(tmp_path: Path) -> None:
    statuses, output, message = run_check(tmp_path, check.main)
    assert not any(statuses) and not message
    assert "all-reduce over 3 process(es) is right: 1 MiB in" in output and "network gloo" in output


def test_a_process_that_gives_wrong_numbers(tmp_path: Path) -> None:
    """Element 5 of three processes is 5 + 0, 5 + 1 and 5 + 2, and one of them has added 1."""
    statuses, _, message = run_check(tmp_path, check_with_a_wrong_number)
    assert any(statuses)
    assert (
        message == "all-reduce of 4096 bytes over 3 processes: element 5 is 19.0, and must be 18.0"
    )


def test_a_process_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    (first, late, last), _, message = run_check(tmp_path, check_without_one, 6.0)
    assert first > 0 and last > 0 and late == -signal.SIGKILL
    assert message and "\n" not in message


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
