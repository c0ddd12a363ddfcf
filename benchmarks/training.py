"""Training speed and quality of this project beside transformers' Trainer, on the machine at hand.

``python -m benchmarks.training [--quality] [--model 8M] [--data FOLDER] [--json OUT]``

Arms, all from the same weights on the same proteins (``trainer_arms`` says exactly what A and A' are):

* A, the AWS guidance's procedure: rows padded to 512, batch size 4, eager and compiled;
* A', the best found set-up of the Trainer: grouped by length, padded to the longest, fused AdamW, sdpa;
* B, this project's loop: packed, never padded.

The arms take turns window by window, A A' B B A' A and so on, so that a machine that is slower for a
while is slower for all; ratios are taken within a round, and medians over rounds are reported. Residues
are real ones that were trained on: no CLS, EOS or padding, nothing cut off. On a CPU each arm has one
thread and a second is one of its process's CPU time; on CUDA it is wall time, from idle to idle device.

``--quality`` instead trains every arm for the same number of residues at several learning rates.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from benchmarks import quality
from benchmarks.arm_process import Arm, ArmFailedError, ArmProcess, Grant, Window
from benchmarks.arm_setup import CUDA_BATCH_SIZES, CUDA_TOKENS_PER_PACK, NAMES, Setup, prepared
from benchmarks.our_arm import MatmulArm
from benchmarks.speed_table import MATMUL, speed_summary, speed_table
from workloads.esm2.hardware import environment


@dataclass(frozen=True)
class Timing:
    """How long the arms work, and how often."""

    rounds: int
    window: Grant
    warmup: Grant
    """Compilation, kernels made at first sight of a shape, allocator."""
    search: Grant

    @staticmethod
    def of(device: torch.device, rounds: int | None, is_quick: bool) -> Timing:
        if is_quick:
            return Timing(rounds or 1, Grant(seconds=0.05), Grant(steps=1), Grant(steps=1))
        if device.type == "cuda":
            return Timing(
                rounds or 9,
                Grant(seconds=2, steps=5),
                Grant(seconds=10, steps=40),
                Grant(seconds=4, steps=10),
            )
        return Timing(rounds or 6, Grant(seconds=8), Grant(seconds=10, steps=6), Grant(seconds=20))


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parse(arguments)
    # The Trainer would spread over all GPUs by itself; the arms are compared on one.
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    timing = Timing.of(device, options.rounds, options.quick)
    result: dict[str, Any] = {
        "command": shlex.join(["python", "-m", "benchmarks.training", *(arguments or sys.argv[1:])]),
        "model": options.model,
        "data": str(options.data),
        "environment": environment(device),
        "versions": {name: version(name) for name in ("torch", "transformers", "accelerate", "datasets")},
    }
    batch_size, tokens_per_pack = options.a_prime_batch, options.tokens_per_pack
    if options.quality:
        batch_size = batch_size or quality.BATCH_SIZE[device.type]
        tokens_per_pack = tokens_per_pack or quality.TOKENS_PER_PACK[device.type]
    try:
        with prepared(options.model, options.data, device, batch_size, tokens_per_pack, progress) as setup:
            if device.type == "cuda" and not options.quality:
                setup, result["search"] = _searched(setup, options, timing.search)
            if options.quality:
                result["quality"] = quality.compare(setup, options.residues, options.quick, progress)
                table = quality.table(result)
            else:
                windows = measure(arms_of(setup, options.arms), timing)
                result["speed"] = speed_summary(setup, windows, timing.rounds)
                result["windows"] = {
                    name: [asdict(window) for window in found] for name, found in windows.items()
                }
                table = speed_table(result)
    except ValueError as error:
        raise SystemExit(f"error: {error}") from error
    print(table)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="8M", help="a published size, or a model folder to start from")
    parser.add_argument("--data", type=Path, default=Path("data/sample"), help="prepared folder")
    parser.add_argument("--arms", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--rounds", type=int, help="windows of each arm")
    parser.add_argument("--a-prime-batch", type=int, help="batch size of A' (CUDA: the fastest is searched)")
    parser.add_argument("--tokens-per-pack", type=int, help="pack of B (CUDA: the fastest is searched)")
    parser.add_argument("--quality", action="store_true", help="loss at equal residues instead of speed")
    parser.add_argument("--residues", type=int, help="residues that each arm trains on with --quality")
    parser.add_argument("--json", type=Path, help="write everything here")
    parser.add_argument("--quick", action="store_true", help="one short window each, to see that it works")
    return parser.parse_args(arguments)


def progress(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def arms_of(setup: Setup, keys: Sequence[str]) -> dict[str, Arm]:
    arms = {NAMES[key]: setup.arm(key) for key in keys}
    # A GPU's peak is in its data sheet; what a core can do is measured beside the arms.
    return arms if setup.device.type == "cuda" else {**arms, MATMUL: MatmulArm()}


def measure(arms: dict[str, Arm], timing: Timing) -> dict[str, list[Window]]:
    """Windows of every arm, ``rounds`` each; the first is that of the first round, and so on."""
    with ExitStack() as stack:
        processes = {}
        progress(f"starting {len(arms)} processes: {', '.join(arms)}")
        for name, arm in arms.items():
            processes[name] = ArmProcess(name, arm)
            stack.callback(processes[name].close)
        # Loading is done by all at once; so is warming up on a CPU, where each has its own clock.
        for process in processes.values():
            process.await_ready()
            progress(f"{process.name} is loaded")
        _warm_up(list(processes.values()), timing.warmup)
        windows: dict[str, list[Window]] = {name: [] for name in arms}
        for number in range(timing.rounds):
            order = list(processes) if number % 2 == 0 else list(reversed(processes))
            for name in order:
                grant = (
                    replace(timing.window, seconds=timing.window.seconds / 4)
                    if name == MATMUL
                    else timing.window
                )
                windows[name].append(processes[name].window(grant))
            progress(f"round {number + 1} of {timing.rounds}: {_rates(windows)}")
    return windows


def _warm_up(processes: Sequence[ArmProcess], grant: Grant) -> None:
    if torch.cuda.is_available():
        for process in processes:
            process.window(grant)
            progress(f"{process.name} is warm")
        return
    for process in processes:
        process.start(grant)
    for process in processes:
        window = process.finish()
        progress(f"{process.name} is warm after {window.seconds:.0f} s and {window.steps} steps")


def _rates(windows: dict[str, list[Window]]) -> str:
    return ", ".join(
        f"{name} {found[-1].residues_per_second:,.0f}" for name, found in windows.items() if name != MATMUL
    )


def _searched(
    setup: Setup, options: argparse.Namespace, grant: Grant
) -> tuple[Setup, dict[str, dict[int, float]]]:
    """The set-up with the fastest batch size of A' and pack of B, unless given; and what was found."""
    found: dict[str, dict[int, float]] = {}
    if options.a_prime_batch is None and not options.quick:
        found["a_prime_batch"] = _speeds(
            CUDA_BATCH_SIZES, lambda size: setup.with_batch_size(size).arm("a-prime"), grant
        )
        setup = setup.with_batch_size(_fastest(found["a_prime_batch"]))
    if options.tokens_per_pack is None and not options.quick:
        base = setup
        found["tokens_per_pack"] = _speeds(
            CUDA_TOKENS_PER_PACK, lambda tokens: base.with_tokens_per_pack(tokens).arm("b"), grant
        )
        setup = setup.with_tokens_per_pack(_fastest(found["tokens_per_pack"]))
    return setup, found


def _speeds(values: Sequence[int], make: Callable[[int], Arm], grant: Grant) -> dict[int, float]:
    """Residues per second at each value, smallest first, until memory runs out."""
    speeds: dict[int, float] = {}
    for value in values:
        try:
            with _alone(make(value), str(value)) as process:
                process.window(grant)
                speeds[value] = process.window(grant).residues_per_second
        except ArmFailedError as error:
            if not error.out_of_memory or not speeds:
                raise
            progress(f"  {value}: out of memory")
            break
        progress(f"  {value}: {speeds[value]:,.0f} residues/s")
    return speeds


@contextmanager
def _alone(arm: Arm, name: str) -> Iterator[ArmProcess]:
    process = ArmProcess(name, arm)
    try:
        process.await_ready()
        yield process
    finally:
        process.close()


def _fastest(speeds: dict[int, float]) -> int:
    return max(speeds, key=speeds.__getitem__)


if __name__ == "__main__":
    main()
