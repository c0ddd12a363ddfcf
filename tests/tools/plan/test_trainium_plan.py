"""Plans for Trainium, with memory per NeuronCore and its own attention."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from seqlm.proteins.families.esm2.facts import ESM2
from seqlm.proteins.model.shape import Dimensions
from seqlm.proteins.model.window_attention import window_attention
from seqlm.runs.run_file import ModelConfig, RunFile
from seqlm.training import device_runtime
from seqlm.training.config import TrainConfig
from tools.plan import __main__ as command
from tools.plan.memory import Layout, memory
from tools.plan.model_size import parameters_of

CONFIGS = Path("workloads/seqlm/configs")
NUMBER_BYTES = 2


def plan(monkeypatch: pytest.MonkeyPatch, config: str, cluster: str, *arguments: str) -> int:
    given = ["--config", str(CONFIGS / f"{config}.yaml"), "--cluster", f"clusters/{cluster}.yaml"]
    monkeypatch.setattr(sys, "argv", ["plan", *given, *arguments])
    return command.main()


FITTING = ("train.activation_checkpointing=true", "train.tokens_per_pack=8192")


@pytest.mark.parametrize(
    ("cluster", "parts"),
    [
        (
            "slurm-trn1",
            (
                "of 14.7 GiB usable (16 GiB Trainium NeuronCore",
                "on 4 * ml.trn1.32xlarge (128 NeuronCores)",
            ),
        ),
        (
            "eks-trn2",
            (
                "of 22.1 GiB usable (24 GiB Trainium2 NeuronCore",
                "on 4 * ml.trn2.48xlarge (256 NeuronCores)",
            ),
        ),
    ],
)
def test_cores_share_a_device_s_memory(
    cluster: str,
    parts: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert plan(monkeypatch, "esm2_150m", cluster, *FITTING) == 0
    out = capsys.readouterr().out
    for part in (
        *parts,
        "nothing was measured on Trainium",
        "assumed, because no rate is published",
        "USD for these",
    ):
        assert part in out
    assert " GPU" not in out


def test_keys_of_other_proteins_take_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A query meets 3,072 keys, of which 414 belong to its protein on average."""
    assert plan(monkeypatch, "esm2_150m", "slurm-trn1", *FITTING) == 0
    assert "62% of that, because attention reads 3072 keys per token" in capsys.readouterr().out


def test_accepts_measurements_from_trainium(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PJRT_DEVICE", "NEURON")
    (tmp_path / "product_name").write_text("trn1.32xlarge\n")
    monkeypatch.setattr(device_runtime, "_INSTANCE_TYPE", tmp_path / "product_name")
    results = tmp_path / "results.json"
    results.write_text(
        json.dumps(
            {
                "mfu": 0.1,
                "environment": {"device": device_runtime.runtime_of(torch.device("xla", 0)).name()},
            }
        )
    )
    assert plan(monkeypatch, "esm2_150m", "slurm-trn1", *FITTING, "--measured", str(results)) == 0
    assert "10 %: measured on Trainium by the run of --measured" in capsys.readouterr().out
    with pytest.raises(ValueError, match="the run was on Trainium, and the cluster has Trainium2"):
        plan(monkeypatch, "esm2_150m", "eks-trn2", *FITTING, "--measured", str(results))


def test_a_run_that_does_not_fit_is_not_sharded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(monkeypatch, "esm2_650m", "slurm-trn1") == command.DOES_NOT_FIT
    out = capsys.readouterr().out
    changes = [line.split('"')[1] for line in out.splitlines() if "ARGS=" in line]
    assert changes and not [change for change in changes if "fsdp" in change]
    for change in changes:
        assert plan(monkeypatch, "esm2_650m", "slurm-trn1", *change.split()) == 0


@pytest.mark.parametrize(
    ("config", "argument", "message"),
    [
        ("esm2_3b", "", "parallel.mode: got fsdp; FSDP2 does not shard"),
        ("esm2_150m", "--co2", "--co2: got Trainium, whose power is not published"),
    ],
)
def test_rejects_unsupported_runs(
    config: str, argument: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=message):
        plan(monkeypatch, config, "slurm-trn1", *FITTING, *filter(None, [argument]))


def test_agrees_with_the_tensors_of_window_attention() -> None:
    heads = 4
    size = 16
    longest = 128
    tokens = 1024
    config = RunFile(
        name="memory",
        model=ModelConfig(max_residues=longest - 2),
        train=TrainConfig(tokens_per_pack=tokens, tokens_per_step=tokens),
    )
    width = heads * size
    shape = ESM2.shape(Dimensions(layers=1, hidden=width, heads=heads, feed_forward=4 * width))
    layout = Layout(config, shape, parameters_of(config, shape), 1, NUMBER_BYTES, "window")
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    place = torch.arange(tokens) // longest
    q, k, v = (
        torch.randn(tokens, heads, size, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
    )
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        window_attention(q * 1, k * 1, v * 1, place, longest)
    # These are inputs and outputs of two layer norms and the GELU, and attention's output for the next
    # product.
    of_the_rest = (4 + 4 + (1 + 1 + 8 + 1) * NUMBER_BYTES) * tokens * shape.hidden
    assert memory(layout).activations == of_the_rest + sum(
        tensor.nbytes for tensor in kept.values()
    )
