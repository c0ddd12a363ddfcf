"""Requirements of XLA devices, tested without one: attention of constant shapes, and messages."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from seqlm.proteins.finetune.objective import FineTuning
from seqlm.proteins.model.attention import packed_attention, rotate
from seqlm.proteins.model.window_attention import window_attention
from seqlm.runs.run_file import load_config
from seqlm.training import device_runtime
from seqlm.training.device_runtime import (
    CACHE_VARIABLE,
    DeviceRuntime,
    XlaRuntime,
    drop_locks,
    register,
)
from seqlm.training.layered_model import Segments
from tests.workloads.training.training_runs import train_here


@pytest.mark.parametrize("max_length", [97, 64, 33])
@pytest.mark.parametrize("num_tokens", [97, 192, 200, 291, 292, 300])
def test_windows_give_what_proteins_one_by_one_give(max_length: int, num_tokens: int) -> None:
    """Packs of one block and of several; proteins of one token, of the largest length, and across blocks."""
    lengths = []
    while sum(lengths) < num_tokens:
        length = (max_length, 1, max_length - 1, 5, max_length // 2 + 1)[len(lengths) % 5]
        lengths.append(min(length, num_tokens - sum(lengths)))
    cumulative = torch.tensor([0, *lengths, 0, 0]).cumsum(0).int()  # two empty segments at the end
    segment = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    torch.manual_seed(0)
    qkv = torch.randn(num_tokens, 3, 4, 16, requires_grad=True)
    angles = torch.randn(num_tokens, 1, 8)
    cos = angles.cos()
    sin = angles.sin()
    upstream = torch.randn(num_tokens, 4, 16)

    expected = packed_attention(*qkv.unbind(1), cos, sin, Segments(cumulative, max_length))
    (expected_grad,) = torch.autograd.grad(expected, qkv, upstream)
    q, k, v = qkv.unbind(1)
    found = window_attention(
        rotate(q, cos, sin) * 16**-0.5, rotate(k, cos, sin), v, segment, max_length
    )
    (found_grad,) = torch.autograd.grad(found, qkv, upstream)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(found_grad, expected_grad, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("runtime", [DeviceRuntime, XlaRuntime])
def test_a_seed_gives_the_numbers_that_torch_gives_by_it(runtime: type[DeviceRuntime]) -> None:
    torch.manual_seed(7)
    expected = torch.rand(5)
    runtime(torch.device("cpu")).seed(7)
    assert torch.equal(torch.rand(5), expected)


def test_what_is_not_done_on_xla_is_named(run_file: Path) -> None:
    xla = XlaRuntime(torch.device("xla", 0))
    refused = load_config(run_file, ["parallel.mode=fsdp", "train.compile=on", "optim.name=muon"])
    with pytest.raises(ValueError, match=r"parallel\.mode: got fsdp") as raised:
        xla.check(refused)
    assert "train.compile: got on" in str(raised.value) and "optim.name: got muon" in str(
        raised.value
    )
    assert FineTuning.xla_problems[0].startswith("task: fine-tuning")
    with pytest.raises(ValueError, match="task: fine-tuning"):
        xla.check(load_config(run_file), FineTuning.xla_problems)
    xla.check(load_config(run_file))


def test_a_device_that_cannot_be_had_is_an_error(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PJRT_DEVICE", "NEURON")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setitem(sys.modules, "torch_xla", None)
    with pytest.raises(
        ValueError, match="PJRT_DEVICE: got NEURON, and torch_xla cannot be imported"
    ):
        train_here(run_file)


def test_locks_in_a_run_s_own_cache_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a folder that somebody has named may be others'."""
    lock = tmp_path / "neuronxcc-2.24" / "MODULE_1" / "model.hlo_module.pb.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    compiled = lock.with_name("model.neff")
    compiled.touch()
    monkeypatch.setitem(sys.modules, "torch_xla", None)
    monkeypatch.setenv("PJRT_DEVICE", "NEURON")
    monkeypatch.setenv(CACHE_VARIABLE, "/fsx/everyones")
    with pytest.raises(ValueError, match="torch_xla cannot be imported"):
        register(tmp_path)
    drop_locks(tmp_path)
    assert lock.exists()
    monkeypatch.delenv(CACHE_VARIABLE)
    with pytest.raises(ValueError, match="torch_xla cannot be imported"):
        register(tmp_path)
    assert os.environ[CACHE_VARIABLE] == str(tmp_path)
    drop_locks(tmp_path)
    assert compiled.exists() and not lock.exists()


def test_peak_of_a_core_is_that_of_its_instance_type(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(device_runtime, "_INSTANCE_TYPE", tmp_path / "product_name")
    core = XlaRuntime(torch.device("xla", 0))
    peaks = []
    for instance_type in ("trn1.32xlarge", "trn1n.32xlarge", "trn2.48xlarge", "trn9.48xlarge"):
        (tmp_path / "product_name").write_text(instance_type + "\n")
        monkeypatch.setenv("PJRT_DEVICE", "NEURON")
        peaks.append(core.peak_flops())
        monkeypatch.setenv("PJRT_DEVICE", "CPU")
        assert core.peak_flops() is None
    assert peaks == [95e12, 95e12, 166.75e12, None]
