"""Cause of a hang, from recorded stacks of processes (torch 2.13, gloo, Python 3.11)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from seqlm.launch.hang_report import (
    Blame,
    Frame,
    Observed,
    blame,
    frames_of,
    is_waiting,
    place_of,
    report,
)
from seqlm.training.processes import Processes

RECORDED = Path(__file__).with_name("recorded_stacks")
NODES = ("node-1", "node-2", "node-3")
WAITING = Observed(
    "node-1", 0, "S", 301.0, "training", "all_reduce (torch/distributed/c10d.py:1)", True
)
STANDING = replace(
    WAITING, node="node-2", rank=1, place="load (seqlm/training/loader.py:79)", waits=False
)
THIRD = replace(WAITING, node="node-3", rank=2)


def recorded(name: str) -> list[Frame]:
    return frames_of((RECORDED / f"{name}.txt").read_text())


@pytest.mark.parametrize(
    ("name", "place", "waits"),
    [
        (
            "ddp_backward",
            "_engine_run_backward (torch/autograd/graph.py:979) called by step (seqlm/training/train.py:109)",
            True,
        ),
        (
            "ddp_flags",
            "all_reduce (torch/distributed/distributed_c10d.py:3252) called by "
            "sum_on_host (seqlm/training/processes.py:41)",
            True,
        ),
        (
            "fsdp_gather",
            "all_gather_single (torch/distributed/distributed_c10d.py:4394) called by "
            "logits (seqlm/proteins/families/esm2/model.py:158)",
            True,
        ),
        (
            "fsdp_norm",
            "wait_tensor (torch/distributed/_functional_collectives.py:142) called by "
            "clip_gradients (seqlm/training/parallel.py:168)",
            True,
        ),
        ("loader", "__iter__ (seqlm/training/loader.py:79)", False),
    ],
)
def test_where_a_process_is_and_whether_it_waits(name: str, place: str, waits: bool) -> None:
    frames = recorded(name)
    assert (place_of(frames), is_waiting(frames)) == (place, waits)


def test_on_gpus_the_host_waits_for_the_device() -> None:
    for waits in (Processes.to_host, torch.cuda.Event.synchronize):
        code = waits.__code__
        assert is_waiting(frames_of(f'  File "{code.co_filename}", line 1 in {code.co_name}\n'))


def test_without_stacks_nothing_is_known() -> None:
    assert frames_of("") == [] and place_of([]) == "" and not is_waiting([])


@pytest.mark.parametrize(
    ("processes", "guilty", "nodes", "why"),
    [
        (
            [WAITING, STANDING, THIRD],
            [STANDING],
            ["node-2"],
            "does not wait for others, as 2 of 3 do",
        ),
        # Where it was stopped does not matter.
        (
            [WAITING, replace(STANDING, state="T", waits=True), THIRD],
            [1],
            ["node-2"],
            "stopped by a signal",
        ),
        ([WAITING, STANDING, replace(THIRD, state="t")], [2], ["node-3"], "stopped by a debugger"),
        # It does not even answer: in the kernel, or not begun.
        (
            [WAITING, replace(STANDING, state="D", place=""), THIRD],
            [1],
            ["node-2"],
            "does not wait",
        ),
        ([WAITING, THIRD], [], ["node-2"], "did not answer"),
        ([WAITING, STANDING], [], ["node-3"], "did not answer"),
        ([WAITING, replace(STANDING, waits=True), THIRD], [], [], ""),
        ([replace(WAITING, waits=False), STANDING, replace(THIRD, waits=False)], [], [], ""),
        (
            [WAITING, STANDING, replace(THIRD, waits=False)],
            [1, 2],
            ["node-2", "node-3"],
            "as 1 of 3 do",
        ),
    ],
    ids=[
        *("stands", "stopped", "traced", "in the kernel", "node silent", "silence before stacks"),
        *("all wait", "none waits", "several"),
    ],
)
def test_blame(processes: list[Observed], guilty: list[object], nodes: list[str], why: str) -> None:
    found = blame(processes, NODES)
    expected = [processes[place] if isinstance(place, int) else place for place in guilty]
    assert (list(found.processes), list(found.nodes)) == (expected, nodes)
    assert why in found.why and bool(why) == bool(found.why)


def test_the_report_of_many_processes_is_short() -> None:
    processes = [replace(WAITING, node=f"node-{rank // 8}", rank=rank) for rank in range(512)]
    processes[9] = replace(STANDING, node="node-1", rank=9)
    lines = report(processes, blame(processes, [f"node-{number}" for number in range(64)]))
    assert lines == [
        "hung: 512 processes, the longest without an advance for 301 s",
        "to blame is node-1, process 9, it does not wait for others, as 511 of 512 do; state S, training, "
        "load (seqlm/training/loader.py:79)",
        "511 in all_reduce (torch/distributed/c10d.py:1)",
    ]
    assert (
        len(report([replace(p, waits=not p.rank) for p in processes], Blame(tuple(processes)))) < 20
    )
