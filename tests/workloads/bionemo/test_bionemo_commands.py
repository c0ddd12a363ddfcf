"""Every command line that goes to BioNeMo, against what its entry points are recorded to take."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import pytest

from seqlm.bionemo.command import Data, Devices, arguments, batch_problems, conversion, unsupported
from seqlm.bionemo.files import ExportFiles
from seqlm.language.config import ChatConfig
from seqlm.proteins.families.esm2.facts import ESM2
from seqlm.runs.run_file import RunFile, load_config
from tests.workloads.bionemo.stand_in_bionemo import check_conversion, get_parser

CONFIGS = Path(__file__).parents[3] / "workloads/seqlm/configs"
SIZES = ("8M", "35M", "150M", "650M", "3B")
DEVICES = (Devices(1, 1), Devices(1, 8), Devices(2, 8), Devices(4, 4))
DATA = Data(ExportFiles(Path("/fsx/data/uniref50-bionemo")), num_validation=300_000, num_classes=3)
LORA = str(CONFIGS / "bionemo/membrane_lora.yaml")


def published(size: str, *overrides: str) -> RunFile:
    return load_config(CONFIGS / f"esm2_{size.lower()}.yaml", overrides)


def parsed(config: RunFile, devices: Devices = DEVICES[1]) -> argparse.Namespace:
    """Parse a command line as an entry point that accepts only the recorded options."""
    words = arguments(config, devices, DATA)
    name = "train_esm2" if config.task is None else "finetune_esm2"
    return get_parser(name).parse_args(words)


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("size", SIZES)
def test_every_published_size_pre_trains(size: str, devices: Devices) -> None:
    """The run file of our trainer gives the same proteins per step on any number of devices."""
    options = parsed(published(size), devices)
    layers, hidden_size, heads, feed_forward = ESM2.sizes[size]
    assert (options.num_layers, options.hidden_size, options.num_attention_heads) == (
        layers,
        hidden_size,
        heads,
    )
    assert options.ffn_hidden_size == feed_forward
    assert (options.num_nodes, options.num_gpus) == (devices.num_nodes, devices.gpus_per_node)
    step = options.micro_batch_size * options.accumulate_grad_batches * devices.world_size
    assert step * options.max_seq_length == 2_097_152
    assert options.min_seq_length == options.max_seq_length == 1024
    assert (options.lr, options.warmup_steps, options.num_steps) == (4e-4, 2000, 500_000)
    assert options.resume_if_exists and options.create_tensorboard_logger
    assert options.random_mask_strategy == "amino_acids_only"


@pytest.mark.parametrize("kind", ["binary", "multiclass", "regression", "residue"])
@pytest.mark.parametrize("size", SIZES)
def test_every_published_size_is_fine_tuned(size: str, kind: str) -> None:
    start = f"model.init_from=/fsx/esm2-{size}-nemo"
    table = "task.table=[table.csv]" if kind != "binary" else "task.table=[sample]"
    classes = "task.classes=[C, E, H]" if kind in ("multiclass", "residue") else "task.classes=[]"
    options = parsed(load_config(LORA, [start, f"task.kind={kind}", table, classes]))
    assert options.lora_finetune and options.resume_if_exists and options.lr == 5e-4
    assert str(options.restore_from_checkpoint_path) == f"/fsx/esm2-{size}-nemo"
    assert options.task_type == ("regression" if kind == "regression" else "classification")
    is_residue = kind == "residue"
    assert options.dataset_class == (
        "InMemoryPerTokenValueDataset" if is_residue else "InMemorySingleValueDataset"
    )
    assert (options.cnn_num_classes if is_residue else options.mlp_target_size) == 3
    assert not parsed(load_config(LORA, [start, "lora=null", "optim.lr=1e-5"])).lora_finetune


def test_own_settings_are_followed() -> None:
    own = (
        "bionemo.micro_batch_size=32",
        "bionemo.tensor_parallel_size=4",
        "bionemo.check_every_steps=250",
    )
    options = parsed(published("650M", *own, "train.precision=fp32"), Devices(2, 8))
    assert (options.micro_batch_size, options.tensor_model_parallel_size) == (32, 4)
    assert options.accumulate_grad_batches == 2048 // (32 * 4)
    assert (options.val_check_interval, options.precision) == (250, "fp32")


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (("optim.name=muon",), "optim.name: got muon"),
        (("optim.weight_decay=0.1",), "optim.weight_decay: got 0.1"),
        (("optim.clip_norm=0",), "optim.clip_norm"),
        (
            ("optim.schedule=cosine",),
            "optim.schedule: got cosine; BioNeMo has no option for it, allowed is linear",
        ),
        (("optim.final_lr_fraction=0",), "optim.final_lr_fraction"),
        (("model.mask_fraction=0.2",), "model.mask_fraction"),
        (("train.seed=1",), "train.seed"),
    ],
)
def test_what_bionemo_cannot_do_is_refused_by_name(overrides: tuple[str, ...], named: str) -> None:
    config = published("650M", *overrides)
    (problem,) = unsupported(config)
    assert named in problem
    with pytest.raises(ValueError, match="BioNeMo cannot train this run"):
        arguments(config, DEVICES[1], DATA)


def test_our_fine_tuning_files_are_refused_with_every_difference() -> None:
    found = "\n".join(unsupported(load_config(CONFIGS / "finetune/membrane_sample.yaml")))
    for name in (
        "lora.rank: got 16",
        "lora.merge: got true",
        "optim.schedule",
        "task.class_weights",
    ):
        assert name in found, name
    assert (
        "task.kind: got multilabel" in unsupported(load_config(LORA, ["task.kind=multilabel"]))[0]
    )
    several = ["task.kind=regression", "task.label_columns=[a, b]"]
    assert "task.label_columns: got a, b" in unsupported(load_config(LORA, several))[0]
    assert "chat: BioNeMo" in unsupported(replace(published("8M"), chat=ChatConfig()))[0]
    assert (
        "model.init_from: is missing" in unsupported(load_config(LORA, ["model.init_from=null"]))[0]
    )


def test_steps_must_be_made_of_whole_micro_batches() -> None:
    assert batch_problems(published("8M"), 32) == []
    (problem,) = batch_problems(published("8M"), 64)
    assert (
        "bionemo.micro_batch_size: got 64 on 64 device(s)" in problem
        and "allowed here: " in problem
    )
    assert "1, 2, 4, 8, 16, 32," in problem
    (problem,) = batch_problems(published("8M", "bionemo.tensor_parallel_size=3"), 8)
    assert "bionemo.tensor_parallel_size: got 3 on 8 device(s)" in problem
    with pytest.raises(ValueError, match=r"bionemo\.micro_batch_size: got 0; must be at least 1"):
        published("8M", "bionemo.micro_batch_size=0")


def test_a_short_run_is_evaluated_at_its_end() -> None:
    """Lightning refuses an interval that is longer than the run."""
    assert (
        parsed(published("8M", "train.max_steps=30", "optim.warmup_steps=2")).val_check_interval
        == 30
    )


def test_evaluations_are_as_long_as_asked_in_whole_steps() -> None:
    assert parsed(published("8M", "train.eval_packs=0")).limit_val_batches == 300_000 // 2048
    assert parsed(published("8M")).limit_val_batches == 2, "64 packs of 65,536 tokens are two steps"


@pytest.mark.parametrize("to_bionemo", [True, False])
def test_the_converter_takes_its_commands(to_bionemo: bool) -> None:
    check_conversion(conversion("here", Path("there"), to_bionemo=to_bionemo))
