"""FLOPs, the ceiling and the rates of steady steps in a run's results, with clocks given by the test."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode
from transformers import PretrainedConfig

from seqlm.proteins.model import attention
from seqlm.proteins.model.packed_model import MaskedLanguageModel, Pack, PackedModel
from seqlm.proteins.model.pretrained import of_config
from seqlm.training import hardware
from seqlm.training.hardware import executed_flops, matmul_ceiling, num_flops
from seqlm.training.layered_model import Segments
from seqlm.training.packing import Position
from seqlm.training.step.loader import StepPacks
from seqlm.training.tracking import progress, totals
from seqlm.training.tracking.progress import WARM_STEPS, Progress, Window
from tests.workloads.training.training_runs import lines, train_here

BOTH_FAMILIES = {
    "test_executed_flops_are_those_that_torch_counts",
    "test_model_flops_count_the_last_layer_in_full_and_nothing_twice",
}
CPU = torch.device("cpu")
LENGTHS = (64, 128, 192)
"""With CLS and EOS, in tokens. The CPU's attention rounds keys and queries up to multiples of 32."""
ROWS = sum(LENGTHS) // 2
"""The first half of each protein, so that the same share of pairs is attended to."""


def counted(
    kind: str, config: PretrainedConfig, *, recomputed: bool, frozen: bool
) -> tuple[PackedModel, int]:
    """A model, and torch's count of the products of its forward and backward pass over a pack.

    ``kind`` is a field of the family's ``Architecture``.
    """
    torch.manual_seed(0)
    model = getattr(of_config(config), kind).packed(config)
    model.activation_checkpointing = recomputed
    for name, parameter in model.named_parameters():
        # Without the embedding's gradient the first layer would skip that of its input.
        if frozen and not any(part in name for part in model.uncounted):
            parameter.requires_grad_(False)
    cumulative = torch.tensor(np.cumsum([0, *LENGTHS]), dtype=torch.int32)
    tokens = torch.randint(4, 24, (sum(LENGTHS),))
    pack = Pack(
        tokens=tokens,
        token_scale=torch.ones(len(tokens)),
        positions=torch.cat([torch.arange(length) for length in LENGTHS]),
        segments=Segments(cumulative, max(LENGTHS)),
        rows=torch.cat(
            [start + torch.arange(n // 2) for start, n in zip(cumulative, LENGTHS, strict=False)]
        ),
        targets=tokens[:ROWS],
    )
    # In eager mode, the recomputation of a layer ends before its last product; compiled layers go through.
    with FlopCounterMode(display=False) as counter, set_checkpoint_early_stop(False):
        found = model(pack)
        (found.loss_sum if isinstance(model, MaskedLanguageModel) else found.sum()).backward()
    return model, counter.get_total_flops()


@pytest.mark.parametrize("kind", ["masked_lm", "sequence_classifier", "token_classifier"])
@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_executed_flops_are_those_that_torch_counts(
    tiny_config: PretrainedConfig,
    kind: str,
    recomputed: bool,
    frozen: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention, "uses_cpu_kernel", lambda x: False)  # which torch does not count
    model, expected = counted(kind, tiny_config, recomputed=recomputed, frozen=frozen)
    pairs = sum(length**2 for length in LENGTHS)
    # Those over the vocabulary are few, and not counted.
    hidden = tiny_config.hidden_size
    passes = 2 + (not frozen) + recomputed
    expected -= len(model.on_vocabulary) * 2 * passes * hidden**2 * tiny_config.vocab_size
    found = executed_flops(model, sum(LENGTHS), ROWS, pairs, recomputed=recomputed, on_cpu=True)
    assert found == expected


def test_model_flops_count_the_last_layer_in_full_and_nothing_twice(
    tiny_config: PretrainedConfig, family: str
) -> None:
    model, _ = counted("masked_lm", tiny_config, recomputed=False, frozen=False)
    tokens = sum(LENGTHS)
    pairs = sum(length**2 for length in LENGTHS)
    hidden = tiny_config.hidden_size
    inner = tiny_config.intermediate_size
    matrices = {"esm2": 2, "esmc": 3}[family]  # SwiGLU has a gate
    # With the head's first matrix.
    skipped = 6 * (tokens - ROWS) * (hidden**2 + matrices * hidden * inner + hidden**2)
    skipped += len(model.on_vocabulary) * 6 * tokens * hidden**2
    executed = executed_flops(model, tokens, ROWS, pairs, recomputed=False, on_cpu=False)
    # Biases and norms are counted by the one, the decoder by the other; ESMC's own is counted by both.
    vectors = sum(
        p.numel() for n, p in model.named_parameters() if p.ndim == 1 and "contact_head" not in n
    )
    decoder = 6 * (ROWS if family == "esm2" else ROWS - tokens) * hidden * tiny_config.vocab_size
    assert num_flops(model, tokens, pairs) == executed + skipped + 6 * tokens * vectors - decoder


@pytest.mark.parametrize(
    ("seconds", "side"), [([0.001, 0.006, 0.05], 1024), ([0.03], 256), ([1e-5] * 6, 8192)]
)
def test_the_ceiling_is_of_a_product_that_takes_long_enough(
    monkeypatch: pytest.MonkeyPatch, seconds: list[float], side: int
) -> None:
    """``seconds`` of the best product of each side from 256 on; others take twice as long."""
    sides: list[int] = []
    turns: dict[int, Iterator[int]] = {}
    now = [0.0]

    def multiply(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        if len(a) not in turns:
            sides.append(len(a))
            turns[len(a)] = iter((9, 2, 1, 3))
        now[0] += seconds[len(sides) - 1] * next(turns[len(a)])

    monkeypatch.setattr(torch, "randn", lambda *size, device, generator: torch.empty(size))
    monkeypatch.setattr(torch, "mm", multiply)
    monkeypatch.setattr(hardware.time, "perf_counter", lambda: now[0])
    assert matmul_ceiling(CPU, torch.float32) == pytest.approx(2 * side**3 / seconds[-1])
    assert sides == [256 << power for power in range(len(seconds))]


def test_the_ceiling_is_measured_in_the_type_of_the_run() -> None:
    before = torch.get_rng_state()
    assert 0 < matmul_ceiling(CPU, torch.float32) < math.inf
    assert torch.equal(torch.get_rng_state(), before)


def test_the_mean_length_weighs_proteins_by_their_lengths() -> None:
    lengths = [10, 400]
    step = StepPacks(
        [], 2, sum(lengths), sum((length + 2) ** 2 for length in lengths), 512, Position()
    )
    done = Progress()
    done.add(step)
    assert done.length_weighted_mean(special_tokens=2) == (10**2 + 400**2) / 410
    assert Progress().length_weighted_mean(special_tokens=2) == 0


class Clock:
    """Stands in for the module ``time``: a step takes a second per packet, nothing else any time."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(progress, "time", found)
    return found


def test_steady_steps_leave_out_the_first_ones_and_what_lies_between_steps(clock: Clock) -> None:
    done = Progress()
    window = Window(done, lambda residues, pairs: 0.0, CPU, 1)
    step = StepPacks([], 1, 100, 200, 300, Position())

    def make(num: int, seconds: float) -> None:
        for _ in range(num):
            window.next_step()
            clock.now += seconds
            done.add(step)

    make(WARM_STEPS, 50.0)
    assert window.measure()["residues_per_second"] == 2
    assert done.steady_seconds == done.steady_residues == 0
    make(4, 2.0)
    assert window.measure()["residues_per_second"] == 50
    assert (done.steady_seconds, done.steady_residues) == (8, 400)
    make(3, 7.0)  # launched and not waited for when a checkpoint is written
    clock.now += 1000
    window.begin()
    make(1, 4.0)
    assert window.measure()["residues_per_second"] == 25
    assert (done.steady_seconds, done.steady_residues) == (12, 500)
    assert (done.steady_attended_pairs, done.steady_slots) == (1000, 1500)
    assert done.residues == 1100
    # Another process warms up again, and continues the sums.
    done = Progress(**asdict(done))
    window = Window(done, lambda residues, pairs: 0.0, CPU, 1)
    make(WARM_STEPS + 2, 3.0)
    window.measure()
    assert (done.steady_seconds, done.steady_residues) == (18, 700)


def test_a_checkpoint_of_an_earlier_version_can_be_resumed() -> None:
    saved = {
        name: value
        for name, value in asdict(Progress(step=7)).items()
        if not name.startswith("steady")
    }
    assert Progress(**saved) == Progress(step=7)


RATES = {
    "steady_seconds",
    "steady_residues_per_second",
    "model_mfu",
    "executed_mfu",
    "ceiling_flops_per_second",
    "share_of_ceiling",
    "length_weighted_mean_length",
}


def results_of(run_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_dir / "all_results.json").read_text())
    return found


@pytest.mark.long
def test_results_state_the_rates_of_steady_steps(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(totals, "matmul_ceiling", lambda device, dtype: 1e9)
    monkeypatch.setattr(totals, "peak_flops", lambda device: 4e9)
    counts: list[tuple[int, ...]] = []

    def count(model: nn.Module, *numbers: int, **options: bool) -> float:
        counts.append(numbers)
        return executed_flops(model, *numbers, **options)

    monkeypatch.setattr(totals, "executed_flops", count)
    train_here(run_file, "optim.warmup_steps=0", "train.max_steps=7", "train.save_every_steps=7")
    run_dir = run_file.parent / "runs/run"
    found = results_of(run_dir)
    document = json.loads((run_dir / "checkpoints/step-00000007/checkpoint.json").read_text())
    done = Progress(**document["progress"])
    logged = {line["step"]: line for line in lines(run_dir, "train")}
    assert done.steady_residues == logged[7]["residues"] - logged[WARM_STEPS]["residues"]
    assert done.steady_slots == 4 * 1024
    assert 0 < done.steady_seconds < found["train_runtime"]
    assert found["steady_residues_per_second"] == done.steady_residues / done.steady_seconds
    # 256 tokens a pack, 15 % of them and eight standard deviations.
    assert counts == [(4 * 1024, 16 * 85, done.steady_attended_pairs)]
    assert found["ceiling_flops_per_second"] == 1e9
    assert found["share_of_ceiling"] == pytest.approx(4 * found["executed_mfu"])
    whole = found["mfu"] * found["train_runtime"] / found["train_residues"]
    steady = found["model_mfu"] * done.steady_seconds / done.steady_residues
    assert steady == pytest.approx(whole, rel=0.1)  # attention's share differs from step to step
    assert found["mfu"] == pytest.approx(found["total_flos"] / found["train_runtime"] / 4e9)
    assert 5 < found["length_weighted_mean_length"] <= 126
    mean = found["train_residues"] / found["train_samples"]
    assert found["length_weighted_mean_length"] > mean


def test_a_run_of_few_steps_has_no_steady_rates(run_file: Path) -> None:
    train_here(run_file, "optim.warmup_steps=0", f"train.max_steps={WARM_STEPS}")
    found = results_of(run_file.parent / "runs/run")
    assert found.keys() >= RATES
    missing = {name for name in RATES if found[name] is None}
    assert missing == {
        "steady_residues_per_second",
        "model_mfu",
        "executed_mfu",
        "share_of_ceiling",
    }
    assert found["steady_seconds"] == 0 and found["ceiling_flops_per_second"] > 0
