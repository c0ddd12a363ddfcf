"""The model of scaling: times of messages, their overlap with computation, and the table of make plan."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
import torch

from config.facts.instance_catalogue import INSTANCE_TYPES, instance_type
from seqlm.proteins.families.table import MODEL_FAMILIES
from seqlm.proteins.model.pretrained import on_meta
from seqlm.runs.run_file import load_config
from seqlm.training.config import KernelMode
from seqlm.training.kernels import GRAPH, PRODUCTS, selected
from seqlm.training.peak_rates import PEAK_BF16_FLOPS
from tools.plan import __main__ as command
from tools.plan.memory import Layout
from tools.plan.messages import (
    BUCKET_BYTES,
    Message,
    exchange_of,
    gradient_bytes,
    messages,
    padded_elements,
    parts_of,
)
from tools.plan.model_size import parameters_of, shape_of
from tools.plan.network import LINKS, NETWORK_SHARE, Network, network_of
from tools.plan.rates import NO_KERNELS, measurements
from tools.plan.scaling import FEWEST_GPUS, MOST_GPUS, Scaled, scaled, sizes

CONFIGS = Path("workloads/seqlm/configs")
PACK_SECONDS = 0.17
GPUS = [8, 16, 32, 64, 128]
"""Numbers of GPUs among which the 128 packs of the run file of 650M divide evenly."""
Plan = Callable[..., tuple[int, str]]


def layout_on(gpus: int, *overrides: str, config: str = "esm2_650m") -> Layout:
    loaded = load_config(CONFIGS / f"{config}.yaml", overrides)
    shape = shape_of(loaded)
    return Layout(loaded, shape, parameters_of(loaded, shape), gpus)


def network_on(name: str, share: float = NETWORK_SHARE) -> Network:
    found = network_of(instance_type(name), share)
    assert found is not None
    return found


def on_p5e(layout: Layout, pack_seconds: float = PACK_SECONDS) -> Scaled:
    return scaled(layout, network_on("ml.p5e.48xlarge"), pack_seconds)


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Plan:
    def run(config: str, cluster: str, *arguments: str) -> tuple[int, str]:
        cluster_file = Path("clusters") / f"{cluster}.yaml"
        files = ["--config", f"{CONFIGS}/{config}.yaml", "--cluster", str(cluster_file)]
        monkeypatch.setattr(sys, "argv", ["plan", *files, *arguments])
        return command.main(), capsys.readouterr().out

    return run


@pytest.mark.parametrize("family", MODEL_FAMILIES)
def test_shapes_are_those_of_the_model(family: str) -> None:
    each = MODEL_FAMILIES[family]
    size = next(iter(each.sizes))
    model = on_meta(each.architecture().published(size))
    overrides = [f"model.family={family}", f"model.size={size}"]
    parts = parts_of(layout_on(1, *overrides))
    for layer in model.layers:
        assert Counter(tuple(p.shape) for p in layer.parameters()) == Counter(parts.layer.trained)
    in_layers = {id(p) for p in model.layers.parameters()}
    rest = [p for p in model.parameters() if id(p) not in in_layers]
    trained = Counter(tuple(p.shape) for p in rest if p.requires_grad)
    assert trained == Counter(parts.rest.trained)
    assert [tuple(p.shape) for p in rest if not p.requires_grad] == list(parts.rest.frozen)


def test_buckets_hold_all_gradients_and_reach_their_sizes() -> None:
    parts = parts_of(layout_on(8))
    [flat] = gradient_bytes(parts, "flat")
    gradients = 4 * layout_on(8).parameters.trained
    bias_of_vocabulary = 4 * 33
    assert flat == gradients - bias_of_vocabulary + 256  # every other gradient fills its place
    first, *others, last = gradient_bytes(parts, "buckets")
    assert first + sum(others) + last == gradients
    assert first >= BUCKET_BYTES[0] and last > 0
    largest = 4 * 1280 * 5120
    assert all(BUCKET_BYTES[1] <= size < BUCKET_BYTES[1] + largest for size in others)


def test_shards_are_padded() -> None:
    assert padded_elements([(33, 10), (4,)], 4) == 36 * 10 + 4
    assert padded_elements([(1280, 10)], 512) == 1536 * 10


@pytest.mark.parametrize("mode", get_args(KernelMode))
def test_gradients_are_reduced_at_the_end_if_a_kernel_keeps_them(mode: KernelMode) -> None:
    used = selected(mode, [PRODUCTS, GRAPH], torch.device("cuda"), torch.bfloat16)
    found = exchange_of(layout_on(8, f"train.kernels={mode}")).reduction
    assert found == ("flat" if used else "buckets")
    in_fp32 = exchange_of(layout_on(8, f"train.kernels={mode}", "train.precision=fp32"))
    assert in_fp32.reduction == "buckets"


def test_gradients_of_adapters_travel_in_buckets() -> None:
    """Adapters have no weights that are cast once per step, so DDP reduces their gradients."""
    config = "finetune/deeploc_localization"
    assert exchange_of(layout_on(8, config=config)).reduction == "buckets"
    assert exchange_of(layout_on(8, "lora=null", config=config)).reduction == "flat"


def test_every_gpu_with_a_known_peak_has_a_link() -> None:
    assert set(LINKS) == set(PEAK_BF16_FLOPS)
    for hardware in INSTANCE_TYPES.values():
        found = network_of(hardware)
        assert (found is not None) == (hardware.accelerator in LINKS and hardware.num_efa > 0)


def all_reduce(num_bytes: int) -> Message:
    return Message("gradients", "model", "all-reduce", "all", num_bytes, 1)


@pytest.mark.parametrize(
    ("name", "num_nodes", "num_bytes", "microseconds", "ratio"),
    [
        # github.com/NVIDIA/nccl/issues/527
        ("ml.p4d.24xlarge", 1, 1 << 30, 8_142.6, 0.97),
        ("ml.p4d.24xlarge", 2, 1 << 30, 35_215, 1.02),
        ("ml.p4d.24xlarge", 3, 1 << 30, 64_782, 1.07),
        ("ml.p4d.24xlarge", 4, 1 << 30, 70_253, 0.99),
        # awsome-distributed-training, micro-benchmarks/nccl-tests/README.md
        ("ml.p4de.24xlarge", 2, 2 << 30, 51_406, 1.39),
        ("ml.p5.48xlarge", 2, 4 << 30, 17_286, 1.21),
        ("ml.p5.48xlarge", 2, 256 << 20, 1_468.2, 0.95),
        ("ml.p5.48xlarge", 2, 64 << 20, 601.5, 0.70),
        ("ml.p5.48xlarge", 2, 32 << 20, 439.7, 0.58),
        ("ml.p5.48xlarge", 2, 8, 69.12, 1.34),
    ],
)
def test_published_all_reduces_took_about_as_long_as_in_the_model(
    name: str, num_nodes: int, num_bytes: int, microseconds: float, ratio: float
) -> None:
    """The ratios are the errors of the model, which docs/cost.md states."""
    network = network_on(name)
    world_size = num_nodes * network.gpus_per_node
    group = network.group("all", 1, world_size)
    seconds = network.seconds(all_reduce(num_bytes), group)
    assert seconds * 1e6 / microseconds == pytest.approx(ratio, abs=0.01)


def test_groups_share_the_network_of_a_node() -> None:
    network = network_on("ml.p5.48xlarge")
    shards = network.group("shards", 8, 4)
    assert (shards.size, shards.num_nodes) == (8, 1)
    replicas = network.group("replicas", 8, 4)
    assert (replicas.size, replicas.num_nodes, replicas.sharing) == (4, 4, 8)
    # Each of eight rings over four nodes has an eighth of 60 % of 400 GB/s.
    share = network.seconds(all_reduce(1 << 30), replicas)
    assert share == pytest.approx(2 * 3 / 4 * (1 << 30) / (240e9 / 8), rel=0.01)
    wide = network.group("shards", 16, 2)
    assert (wide.size, wide.num_nodes, wide.sharing) == (16, 2, 1)
    replicas = network.group("replicas", 16, 2)
    assert (replicas.size, replicas.num_nodes, replicas.sharing) == (2, 2, 8)
    assert network.seconds(all_reduce(1 << 30), network.group("all", 1, 1)) == 0


EXCHANGES = {
    "flat": ["train.kernels=auto"],
    "buckets": ["train.kernels=off"],
    "fsdp": ["parallel.mode=fsdp"],
    "hsdp": ["parallel.mode=fsdp", "parallel.shard_size=8"],
}
"""Settings by the kind of exchange."""


@pytest.mark.parametrize("name", EXCHANGES)
def test_a_step_is_computation_and_the_messages_that_it_does_not_hide(name: str) -> None:
    before = 1.0
    for gpus in GPUS:
        layout = layout_on(gpus, *EXCHANGES[name])
        found = on_p5e(layout)
        computing = 128 / gpus * PACK_SECONDS
        assert found.step_seconds == pytest.approx(computing + found.waiting_seconds)
        assert 0 < found.waiting_seconds < found.message_seconds * (1 + 1e-9)
        assert found.efficiency == pytest.approx(computing / found.step_seconds)
        assert found.efficiency < before
        before = found.efficiency


def test_a_flat_all_reduce_is_not_hidden_and_buckets_are() -> None:
    flat = on_p5e(layout_on(64, *EXCHANGES["flat"]))
    assert flat.waiting_seconds == pytest.approx(flat.message_seconds)
    gradients = 4 * layout_on(64).parameters.trained
    # 2 (n - 1) / n of the gradients over 60 % of 400 GB/s, and a few hundred microseconds of latency
    expected = 2 * gradients / 240e9
    assert flat.waiting_seconds == pytest.approx(expected, rel=0.07)
    buckets = on_p5e(layout_on(64, *EXCHANGES["buckets"]))
    assert buckets.waiting_seconds < flat.waiting_seconds / 5
    # A backward pass that takes no time hides nothing.
    instant = on_p5e(layout_on(64, *EXCHANGES["buckets"]), pack_seconds=1e-9)
    assert instant.waiting_seconds == pytest.approx(instant.message_seconds)


def test_recomputed_layers_hide_more_messages() -> None:
    """Gathers in the backward pass are as many, and the pass is longer."""
    settings = ["parallel.mode=fsdp"]
    recomputed = ["train.activation_checkpointing=true"]
    for mode, overrides in (("kept", []), ("recomputed", recomputed)):
        found = messages(
            parts_of(layout_on(64, *settings, *overrides)),
            exchange_of(layout_on(64, *settings, *overrides)),
        )
        gathers = [one for one in found if one.collective == "all-gather" and one.part == "layer"]
        assert sum(one.count for one in gathers) == 2 * 33 * 2, mode


def test_shards_within_a_node_scale_better_than_over_all_nodes() -> None:
    """Rings of 512 GPUs have 511 steps for each layer."""
    sharded = [layout_on(512, *EXCHANGES[name], config="esm2_3b") for name in ("fsdp", "hsdp")]
    over_all, within = (on_p5e(layout) for layout in sharded)
    assert within.efficiency > over_all.efficiency


def test_gpus_without_a_pack_are_idle() -> None:
    found = on_p5e(layout_on(256, *EXCHANGES["flat"]))
    assert found.efficiency < 0.5
    full = on_p5e(layout_on(128, *EXCHANGES["flat"]))
    assert found.step_seconds >= full.step_seconds


def test_a_faster_network_makes_a_run_faster() -> None:
    layout = layout_on(64)
    slow = scaled(layout, network_on("ml.p5e.48xlarge", 0.3), PACK_SECONDS)
    fast = scaled(layout, network_on("ml.p5e.48xlarge", 0.9), PACK_SECONDS)
    assert fast.residues_per_second > slow.residues_per_second
    older = scaled(layout, network_on("ml.p4de.24xlarge"), PACK_SECONDS)
    assert older.residues_per_second < slow.residues_per_second


def test_sizes_are_doublings_and_the_cluster_at_hand() -> None:
    assert sizes(64) == [8, 16, 32, 64, 128, 256, 512]
    assert sizes(24) == [8, 16, 24, 32, 64, 128, 256, 512]
    assert (sizes(2)[0], sizes(1024)[-1]) == (2, 1024)
    assert (FEWEST_GPUS, MOST_GPUS) == (8, 512)


def rows(out: str) -> dict[int, list[str]]:
    """Return the cells of the table of scaling by the number of GPUs."""
    table = out.partition("Scaling: ")[2]
    found = re.findall(r"^(\d+)  +(.*)$", table, re.M)
    return {int(gpus): cells.split() for gpus, cells in found}


def test_the_plan_has_a_table_that_is_marked_as_a_model(plan: Plan) -> None:
    status, out = plan("esm2_650m", "slurm-p5")
    assert status == 0 and "Scaling: a MODEL, not a measurement" in out
    assert sorted(rows(out)) == sizes(64)
    for part in (
        "one all-reduce of 2.6 GB after the last backward pass (train.kernels: auto)",
        "60% of the 400 GB/s of a node's EFA", "80% of the 450 GB/s of a GPU's NVLink",
        "a step has 128 packs",
    ):  # fmt: skip
        assert part in out, part
    without = plan("esm2_650m", "slurm-p5", "train.kernels=off")[1]
    assert re.search(r"\d+ all-reduces of 2.6 GB in all, during the last backward pass", without)
    faster = plan("esm2_650m", "slurm-p5", "--network-share", "0.9")[1]
    assert float(rows(faster)[512][4]) > float(rows(out)[512][4])


def test_the_table_agrees_with_the_time_of_the_plan(plan: Plan) -> None:
    """The table has the time above it, if messages, saving and failures take none."""
    out = plan("esm2_650m", "slurm-p5", "--mfu", "0.4", "--failure-hours", "1e5")[1]
    [hours] = re.findall(r"^([\d.]+) hours on 8", out, re.M)
    cells = rows(out)[64]
    efficiency = float(cells[4])
    days_with_messages = float(cells[5])
    assert days_with_messages * 24 * efficiency == pytest.approx(float(hours), rel=0.01)


def test_rows_that_do_not_fit_are_left_out(plan: Plan) -> None:
    status, out = plan("esm2_15b", "slurm-p5", "train.tokens_per_pack=4096")
    assert status == 0 and "Left out: 8 (the run does not fit)" in out
    assert sorted(rows(out)) == [16, 32, 64, 128, 256, 512]
    odd = ["parallel.mode=fsdp", "parallel.shard_size=24", "--nodes", "3"]
    out = plan("esm2_650m", "slurm-p5", *odd)[1]
    assert "Left out: 8 (parallel.shard_size does not divide it)" in out
    assert sorted(rows(out)) == [24]


def test_types_without_efa_have_no_model(plan: Plan, tmp_path: Path) -> None:
    text = Path("clusters/slurm.yaml").read_text()
    assert "ml.g5.8xlarge" in text
    cluster = tmp_path / "small.yaml"
    cluster.write_text(text.replace("ml.g5.8xlarge", "ml.g5.2xlarge"))
    [found] = [
        line
        for line in plan("esm2_8m_sample", str(cluster.with_suffix("")))[1].splitlines()
        if line.startswith("Scaling")
    ]
    assert found == "Scaling: no model for ml.g5.2xlarge, which has no EFA"


@pytest.mark.parametrize(
    ("config", "arguments", "origin"),
    [("esm2_650m", [], "scaled"), ("esm2_650m", ["--mfu", "0.4"], "given")],
)
def test_the_origin_of_the_computation_is_named(
    config: str, arguments: list[str], origin: str, plan: Plan
) -> None:
    out = plan(config, "slurm-p5", *arguments)[1]
    assert f"from the higher rate above, which is {origin}\n" in out


def test_measured_rates_name_the_kernels_that_computed(plan: Plan, tmp_path: Path) -> None:
    """The lines of commit a69db570 are older than any kernel."""
    text = Path("clusters/slurm-p5.yaml").read_text()
    cluster = tmp_path / "p5e.yaml"
    cluster.write_text(text.replace("ml.p5.48xlarge", "ml.p5e.48xlarge"))
    out = plan("esm2_650m", str(cluster.with_suffix("")))[1]
    assert "measured with this trainer on one H200" in out
    for one in measurements():
        assert one.kernels
        if one.commit == "a69db570":
            assert one.kernels == NO_KERNELS
    assert "kernels of train.kernels: " in out
    assert "from the higher rate above, which is measured\n" in out


def test_neuron_cores_have_no_model(plan: Plan) -> None:
    arguments = ["train.activation_checkpointing=true", "train.tokens_per_pack=8192"]
    assert "Scaling: no model for NeuronCores\n" in plan("esm2_150m", "slurm-trn1", *arguments)[1]


def test_a_wrong_share_is_explained(plan: Plan) -> None:
    with pytest.raises(
        ValueError, match=r"--network-share: got 1\.5; a number above 0 and at most 1"
    ):
        plan("esm2_650m", "slurm-p5", "--network-share", "1.5")
