"""Contestants of the benchmarks: what they count, and how they wait for their turn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers import DataCollatorForLanguageModeling
from transformers.trainer_pt_utils import LengthGroupedSampler

from benchmarks.case import Settings
from benchmarks.contestant import Gate, Grant, Window, park, steady, training_state
from benchmarks.figures import figures_of
from benchmarks.ours import counts_of, model_of
from benchmarks.stages.profile import Kernel, kind_of, summary
from benchmarks.stages.quality import grants_of, points_of, seconds_to
from benchmarks.stages.speed import split_time
from benchmarks.stages.versus import Entry, compared
from benchmarks.trainers import Rows, _CountingCollator, _SpreadBatches, store_rows
from seqlm.proteins.alphabet import EOS
from seqlm.proteins.families.esm2.model import published_config
from seqlm.proteins.model.pretrained import tokenizer
from seqlm.proteins.model.protein_packs import ProteinStream
from seqlm.runs.run_file import ModelConfig
from seqlm.training.packing import PackShape, Position
from seqlm.training.records import RecordSplit
from seqlm.training.step.gradients import FlatGradients
from seqlm.training.step.loader import step_packs


def window(seconds: float, steps: int, residues: int = 100, **other: int) -> Window:
    counts = {"proteins": 1, "attended_pairs": (residues + 2) ** 2, "slots": residues + 2, **other}
    return Window(seconds, steps, residues=residues, loss=3.0, **counts)


def test_counts_of_a_batch(data: Path, tmp_path: Path) -> None:
    split = RecordSplit(data, "train")
    places, lengths = split.draw(0, split.num_units, 0, 0)
    collator = _CountingCollator(DataCollatorForLanguageModeling(tokenizer(published_config("8M"))))
    for width, padded in ((512, True), (1024, False)):
        store_rows(split, tmp_path / str(width), width)
        rows = Rows(tmp_path / str(width), padded=padded)
        kept = lengths.clip(max=width - 2)
        assert len(rows) == split.num_units and rows.lengths == (kept + 2).tolist()
        first = rows[0]
        assert first["input_ids"][1 : 1 + kept[0]] == split.token_ids(places[0])[: kept[0]].tolist()
        assert len(first["input_ids"]) == (width if padded else kept[0] + 2)
        assert sum(first["attention_mask"]) == kept[0] + 2
        assert first["special_tokens_mask"][0] == 1 and not any(
            first["special_tokens_mask"][1 : kept[0] + 1]
        )
        batch = collator([rows[index] for index in range(len(rows))])
        expected = [len(rows), kept.sum(), ((kept + 2) ** 2).sum(), width * len(rows)]
        assert batch["counts"].tolist() == expected


def test_counts_of_a_pack_agree_with_its_tokens(data: Path) -> None:
    split = RecordSplit(data, "train")
    steps = step_packs(
        ProteinStream(split, PackShape.of(split, 2048, 1022), 0), Position(), 2, 0, 1
    )
    for _ in range(5):
        step = next(steps)
        residues = sum(int(np.count_nonzero(pack.tokens > EOS)) for pack in step.packs)
        assert counts_of(step).tolist()[1::2] == [residues, 4096]


def test_spread_batches_are_the_samplers_own() -> None:
    torch.manual_seed(0)
    lengths = torch.randint(30, 1024, (803,)).tolist()
    plain = LengthGroupedSampler(8, lengths=lengths)
    torch.manual_seed(1)
    own = list(plain)
    torch.manual_seed(1)
    spread = list(_SpreadBatches(plain, 8))
    batches = [tuple(own[i : i + 8]) for i in range(0, 803, 8)]
    found = [tuple(spread[i : i + 8]) for i in range(0, 803, 8)]
    assert sorted(found) == sorted(batches)
    assert (found[0], found[-1]) == (batches[0], batches[-1])
    longest = [max(lengths[index] for index in batch) for batch in found[:-1]]
    # The longest and the shortest batch are compiled first.
    assert longest[0] == max(longest) and longest[1] == min(longest)
    # Any eight in a row are as long on average as all are.
    overall = sum(longest) / len(longest)
    for start in range(2, len(longest) - 8, 8):
        assert sum(longest[start : start + 8]) / 8 == pytest.approx(overall, rel=0.15)


def test_training_continues_after_its_state_was_on_the_host() -> None:
    """A contestant's memory is free between its turns, and its training does not change."""

    def losses(parks: bool) -> list[float]:
        torch.manual_seed(0)
        model = nn.Linear(4, 4, bias=False)
        tied = nn.Linear(4, 4, bias=False)
        tied.weight = model.weight
        both = nn.ModuleList([model, tied])
        optimizer = torch.optim.AdamW(both.parameters(), lr=0.1)
        found = []
        for _ in range(4):
            loss = tied(model(torch.ones(2, 4))).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
            if parks:
                state = list(training_state(both, [optimizer]))
                assert len(state) == 4  # the weight, its two moments and the step
                bring_back = park(state)
                assert all(tensor.untyped_storage().nbytes() == 0 for tensor in state)
                bring_back()
        return found

    assert losses(parks=True) == losses(parks=False)


def test_kept_gradients_leave_the_device_too() -> None:
    model = nn.Linear(4, 4, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients = FlatGradients([optimizer], world_size=1)
    gradients.begin()
    model(torch.ones(2, 4)).sum().backward()
    kept = model.weight.grad
    assert kept is not None
    expected = kept.clone()
    bring_back = park(training_state(model, [optimizer]))
    assert kept.untyped_storage().nbytes() == 0
    bring_back()
    assert torch.equal(kept, expected) and model.weight.grad is kept


def test_the_first_steps_of_a_window_are_not_measured() -> None:
    granted = iter([Grant(steps=2, unmeasured_steps=3), Grant(steps=1), None])
    windows: list[Window | None] = []

    def ask(window: Window | None) -> Grant | None:
        windows.append(window)
        return next(granted)

    gate = Gate(ask)
    may_work = gate.enter()
    step = 0
    while may_work:
        step += 1
        gate.count(
            torch.tensor([1.0, step, 1.0, 1.0], dtype=torch.float64), torch.tensor(1.0 * step)
        )
        may_work = gate.step_done()
    found = [window for window in windows if window is not None]
    assert [(window.steps, window.residues, window.loss) for window in found] == [
        (2, 4 + 5, 4.5),
        (1, 6, 6.0),
    ]


def test_windows_have_one_step_if_they_are_not_used() -> None:
    settings = Settings(Path("unused"), torch.device("cpu"), rehearsal=False, window=3.0)
    assert steady(settings) == Grant(seconds=3.0)
    assert steady(replace(settings, is_warm_up=True)) == Grant()
    assert steady(replace(settings, rehearsal=True)) == Grant()
    on_cuda = replace(settings, device=torch.device("cuda"))
    assert steady(on_cuda) == Grant(seconds=3.0, unmeasured_steps=1)


@pytest.mark.long
@pytest.mark.parametrize(("name", "size"), [("ours", "8M"), ("tuned", "300M"), ("packed", "8M")])
def test_contestants_train_the_same_when_parked(
    name: str, size: str, data: Path, tmp_path: Path
) -> None:
    """Move the state as on a GPU between turns; values outside ``gate.state`` stay on the device."""
    settings = Settings(data, torch.device("cpu"), rehearsal=True)
    entry = Entry(
        name,
        model_of(size, settings, tmp_path),
        data,
        tmp_path,
        4 if name == "tuned" else 2048,
        False,
    )
    contestant = replace(entry, precision="fp32").contestant()

    def losses(parks: bool) -> list[float]:
        windows: list[Window | None] = []

        def ask(window: Window | None) -> Grant | None:
            windows.append(window)
            return Grant() if len(windows) < 4 else None

        contestant.run(Gate(ask, parks=parks))
        return [found.loss for found in windows if found]

    assert len(set(losses(parks=True))) == 3 and losses(parks=True) == losses(parks=False)


def test_figures_of_windows() -> None:
    """Rates are medians; MFU is a share of the ceiling here; skipped and recomputed work show in executed."""
    model = ModelConfig(size="8M")
    device = torch.device("cpu")
    windows = [
        Window(2.0, 4, proteins=40, residues=8_000, attended_pairs=1_632_160, slots=8192, loss=3.0),
        Window(4.0, 4, proteins=40, residues=8_000, attended_pairs=1_632_160, slots=8192, loss=2.9),
    ]
    figures = figures_of(windows, model, device, [1e11, 2e11, 9e11])
    assert figures["residues_per_second"] == 3000 and figures["loss"] == 2.9
    assert figures["mean_length"] == pytest.approx(
        200
    )  # 40 proteins of 200 residues, (200 + 2)**2 each
    assert (
        figures["ceiling_flops_per_second"] == 2e11
        and figures["mfu_is_share_of"] == "measured ceiling"
    )
    # 7.5 M parameters without the embedding, six FLOPs each; attention adds a little.
    assert figures["model_mfu"] * 2e11 * 6 == pytest.approx(6 * 7.5e6 * 16_000, rel=0.15)
    skipping = figures_of(windows, model, device, [2e11], tokens_per_pack=2048)
    recomputing = figures_of(windows, model, device, [2e11], tokens_per_pack=2048, recomputed=True)
    assert skipping["executed_mfu"] < 0.95 * figures["executed_mfu"]
    assert recomputing["executed_mfu"] == pytest.approx(4 / 3 * skipping["executed_mfu"], rel=0.03)
    assert skipping["model_mfu"] == recomputing["model_mfu"] == figures["model_mfu"]


def test_pack_and_optimizer_are_timed_separately() -> None:
    assert split_time(window(10.0, 10), window(25.0, 10), 4) == pytest.approx((0.5, 0.5))
    assert split_time(window(10.0, 10), window(50.0, 10), 4) == (
        1.0,
        0.0,
    )  # noise, but no negative time


def test_verdict_of_a_comparison() -> None:
    ours = [window(1.0, 1), window(1.0, 1)]
    theirs = [window(2.0, 1), window(4.0, 1)]
    windows = {"guidance": theirs, "ours": ours}
    passed = compared(windows, {"guidance": 2.5, "tuned": 9.0}, {"tuned": "out of memory: tuned"})
    assert passed["ratios"]["guidance"] == {"median": 3.0, "min": 2.0, "max": 4.0}
    assert passed["verdict"] == "passed"
    assert compared(windows, {"guidance": 3.5}, {})["verdict"] == "missed"
    failed = compared(windows, {}, {"tuned": "tuned: no such argument"})
    assert failed["verdict"] == "failed" and failed["error"] == "tuned: no such argument"
    assert (
        compared({"guidance": theirs}, {}, {"ours": "out of memory: ours"})["verdict"]
        == "out of memory"
    )


def test_profile_of_overlapping_kernels() -> None:
    kernels = [
        Kernel("nvjet_gemm", 0.0, 40.0),
        Kernel("flash_fwd", 30.0, 50.0),
        Kernel("Memcpy HtoD", 80.0, 100.0),
        Kernel("triton_poi_fused_where_0", 100.0, 110.0, is_masking=True),
    ]
    found = summary(kernels, wall=200.0, num_steps=2)
    assert found["busy_share"] == 0.4 and found["launches_per_step"] == 2
    assert found["kernel_ms_per_step"] == pytest.approx(0.045)
    times = {"products": 0.02, "attention": 0.01, "copies": 0.01, "masking": 0.005}
    for kind, milliseconds in times.items():
        assert found["ms_per_step"][kind] == pytest.approx(milliseconds)
        assert found["shares"][kind] == pytest.approx(milliseconds / 0.045)
    assert found["shares"]["pointwise"] == 0
    assert found["kernels"][0]["name"] == "nvjet_gemm"
    for name in ("triton_poi_fused__to_copy_add_gelu_0", "elementwise_kernel"):
        assert kind_of(Kernel(name, 0.0, 1.0)) == "pointwise"
        assert kind_of(Kernel(name, 0.0, 1.0, is_masking=True)) == "masking"


def test_quality_windows_end_after_compilation_and_at_quarters(tmp_path: Path) -> None:
    grants = grants_of(172, tmp_path)
    assert [grant.steps for grant in grants] == [3, 40, 43, 43, 43]
    assert [bool(grant.weights_to) for grant in grants] == [False, True, True, True, True]
    assert [grant.steps for grant in grants_of(8, tmp_path)] == [1, 1, 2, 2, 2]
    assert Grant().steps == 1


def test_compiling_is_not_counted() -> None:
    windows = [window(500.0, 2), window(30.0, 10), window(30.0, 10)]
    points = points_of(windows, [2.9, 2.8])
    assert points == [
        {"residues": 200, "seconds": 36.0, "loss": 2.9},
        {"residues": 300, "seconds": 66.0, "loss": 2.8},
    ]


def test_seconds_to_a_loss() -> None:
    points = [{"seconds": 10.0 * n, "loss": loss} for n, loss in ((1, 3.0), (2, 2.8), (3, 2.7))]
    assert seconds_to(points, 2.9) == pytest.approx(15)
    assert seconds_to(points, 3.1) == 10
    assert seconds_to(points, 2.6) is None
