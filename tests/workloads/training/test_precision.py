"""Effect of ``train.precision`` on each device; ``auto`` on CPUs, with measurements given by the test."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from seqlm.training import precision
from seqlm.training.config import TrainConfig
from seqlm.training.precision import PRECISION_FILE, Precision, bf16_speedup, select_precision
from seqlm.training.processes import processes
from tests.workloads.training.forked_processes import forked
from tests.workloads.training.training_runs import train_here

CPU = torch.device("cpu")
AUTO = TrainConfig(precision="auto")
Measure = Callable[[float], list[float]]


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "hyperpod-esm2"


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Give the processor bf16 instructions and a speed in it; the list grows with each measurement."""
    measured: list[float] = []

    def give(speedup: float) -> list[float]:
        monkeypatch.setattr(precision, "has_bf16_instructions", lambda: True)
        monkeypatch.setattr(precision, "bf16_speedup", lambda: measured.append(speedup) or speedup)
        return measured

    return give


@pytest.mark.parametrize(
    ("speedup", "expected"), [(0.52, "fp32"), (1.19, "fp32"), (1.2, "bf16"), (2.5, "bf16")]
)
def test_auto_on_a_cpu_is_bf16_where_it_pays_off(
    measuring: Measure, speedup: float, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    measuring(speedup)
    found = select_precision(AUTO, CPU)
    reason = f"bf16 products are {speedup:.2f} times as fast as fp32 on this processor"
    assert found == Precision(expected, reason)
    assert found.dtype == (torch.bfloat16 if expected == "bf16" else torch.float32)
    assert found.record() == {"precision": expected, "precision_reason": reason}
    assert capsys.readouterr().err == f"precision: {expected}, because {reason}\n"


def test_a_processor_without_bf16_instructions_is_not_measured(
    measuring: Measure, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    measured = measuring(3.0)
    monkeypatch.setattr(precision, "has_bf16_instructions", lambda: False)
    found = select_precision(AUTO, CPU)
    assert found == Precision(
        "fp32", "this processor has no bf16 instructions (avx512_bf16 or AMX)"
    )
    assert not measured and not cache.exists()


def test_the_run_file_goes_before_all(
    measuring: Measure, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = measuring(3.0)
    assert select_precision(TrainConfig(precision="fp32"), CPU).name == "fp32"
    measuring(0.1)
    assert select_precision(TrainConfig(precision="bf16"), CPU).name == "bf16"
    assert not measured and not capsys.readouterr().err


def test_a_measurement_is_kept_by_processor_torch_and_threads(
    measuring: Measure, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    measured = measuring(0.5)
    first = select_precision(AUTO, CPU)
    measuring(3.0)
    assert select_precision(AUTO, CPU) == first and measured == [0.5]
    others: list[tuple[object, str, object]] = [
        (precision, "cpu_name", lambda: "Another CPU @ 2.5 GHz / 8"),
        (torch, "__version__", "2.99.0"),
        (torch, "get_num_threads", lambda: 77),
    ]
    for count, (where, name, value) in enumerate(others, start=2):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, value)
            assert select_precision(AUTO, CPU).name == "bf16" and len(measured) == count
            assert select_precision(AUTO, CPU).name == "bf16" and len(measured) == count
    assert len(list((cache / "bf16-speedup").iterdir())) == 4


@pytest.mark.parametrize(
    "text", ["", "0.5.", "{}", "[2.5]", '"2.5"', "NaN", "-1.0", "0.0", "true", "\xff"]
)
def test_a_damaged_cache_is_written_again(measuring: Measure, cache: Path, text: str) -> None:
    measured = measuring(0.5)
    select_precision(AUTO, CPU)
    (file,) = (cache / "bf16-speedup").iterdir()
    file.write_bytes(text.encode("latin-1"))
    assert select_precision(AUTO, CPU).name == "fp32" and len(measured) == 2
    assert json.loads(file.read_text()) == 0.5


def test_a_cache_that_cannot_be_written_does_not_stop_a_run(
    measuring: Measure, cache: Path
) -> None:
    measured = measuring(2.0)
    cache.parent.write_text("a file where the folder should be")
    for count in (1, 2):
        assert select_precision(AUTO, CPU).name == "bf16" and len(measured) == count


@pytest.mark.parametrize("value", ["", "relative/cache"])
def test_without_an_absolute_xdg_cache_home_it_is_in_the_home(
    measuring: Measure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    measuring(2.0)
    select_precision(AUTO, CPU)
    assert len(list((tmp_path / "home/.cache/hyperpod-esm2/bf16-speedup").iterdir())) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_a_run_keeps_what_it_began_with(
    measuring: Measure,
    run_file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the cache, the number of threads and the machine say later."""
    short = ("train.precision=auto", "optim.warmup_steps=0", "train.save_every_steps=2")
    measured = measuring(0.52)
    train_here(run_file, *short, "train.max_steps=2")
    run_dir = run_file.parent / "runs/run"
    reason = "bf16 products are 0.52 times as fast as fp32 on this processor"
    assert capsys.readouterr().err.count(f"precision: fp32, because {reason}\n") == 1
    assert json.loads((run_dir / PRECISION_FILE).read_text()) == {
        "precision": "fp32",
        "precision_reason": reason,
    }
    document = json.loads((run_dir / "checkpoints/step-00000002/checkpoint.json").read_text())
    assert document["environment"]["precision"] == "fp32"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    measuring(3.0)
    assert select_precision(AUTO, CPU).name == "bf16"  # of any other run
    train_here(run_file, *short, "train.max_steps=4")
    assert measured == [0.52, 3.0]
    environment = json.loads((run_dir / "all_results.json").read_text())["environment"]
    assert environment["precision"] == "fp32"
    assert environment["precision_reason"] == f"the run began with it ({reason})"
    report = (run_dir / "report.html").read_text()
    assert f"the run began with it ({reason})" in report


def test_a_run_whose_file_is_damaged_selects_anew(measuring: Measure, tmp_path: Path) -> None:
    measuring(2.0)
    for text in ("{", "[]", '{"precision": "fp8"}'):
        (tmp_path / PRECISION_FILE).write_text(text)
        assert select_precision(AUTO, CPU, run_dir=tmp_path).name == "bf16"
        assert json.loads((tmp_path / PRECISION_FILE).read_text())["precision"] == "bf16"


@pytest.mark.long
def test_the_first_process_selects_for_all(tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    with forked(2, _member, tmp_path, log=tmp_path / "log", **cache) as started:
        assert started.ends() == [0, 0], started.output
    first, second = (json.loads((tmp_path / str(rank)).read_text()) for rank in range(2))
    assert first == ["fp32", "bf16 products are 0.50 times as fast as fp32 on this processor", 1]
    assert second == [*first[:2], 0]


def _member(folder: Path) -> None:
    rank = int(os.environ["RANK"])
    measured = list[int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(precision, "has_bf16_instructions", lambda: True)
        patch.setattr(precision, "bf16_speedup", lambda: measured.append(rank) or [0.5, 9.0][rank])
        with processes() as here:
            found = select_precision(AUTO, here.device, here)
    (folder / str(rank)).write_text(json.dumps([*found, len(measured)]))


def test_gpus_compute_in_bf16_by_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    gpu = torch.device("cuda", 0)
    assert select_precision(AUTO, gpu).name == "bf16"
    assert select_precision(TrainConfig(precision="bf16"), gpu).name == "bf16"
    assert not capsys.readouterr().err
    assert select_precision(TrainConfig(precision="fp32"), gpu).name == "fp32"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: ") and "train.precision=bf16" in line


def test_a_gpu_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    for chosen in ("auto", "fp32"):
        with pytest.raises(ValueError, match="Tesla T4 has no bf16 arithmetic"):
            select_precision(TrainConfig(precision=chosen), torch.device("cuda", 0))


def test_the_measurement_is_a_ratio_and_draws_no_random_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The larger matrices take this processor minutes in bf16 if it has no instructions for it.
    monkeypatch.setattr(precision, "MEASURED_HIDDEN_SIZE", 8)
    monkeypatch.setattr(precision, "MEASURED_HEADS", 2)
    before = torch.get_rng_state()
    assert 0 < bf16_speedup() < math.inf
    assert torch.equal(torch.get_rng_state(), before)
