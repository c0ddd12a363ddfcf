"""Speed, checkpoints, emissions and the report of make plan."""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from config.eks_cluster import EksCluster
from config.facts.price_list import load_prices
from config.facts.regions import ZONE_ID_PREFIXES
from config.reading.loader import load_cluster
from seqlm.proteins.families.esm2.facts import ESM2
from seqlm.proteins.families.esm2.model import PackedEsm, published_config
from seqlm.runs.run_file import RunFile, load_config
from seqlm.training.hardware import num_flops
from seqlm.training.peak_rates import PEAK_BF16_FLOPS
from tests.config.cluster_documents import document
from tools.plan import __main__ as command
from tools.plan.__main__ import lustre_bytes_per_second
from tools.plan.checkpoints import (
    GPU_HOURS_BETWEEN_FAILURES,
    STAGING_BYTES_PER_SECOND,
    checkpoint_bytes,
    daly_interval,
    lost_share,
    plan_checkpoints,
)
from tools.plan.memory import USABLE, Layout, memory
from tools.plan.model_size import parameters_of, shape_of
from tools.plan.placement import find_place
from tools.plan.rates import ASSUMED, BANDWIDTHS, PUBLISHED, Share, known_share, measurements
from tools.plan.report import (
    BOARD_WATTS,
    GIB,
    GRID_FILE,
    energy_kwh,
    grid_grams_per_kwh,
    node_memory,
    node_memory_lines,
    time_and_money,
)
from tools.plan.speed import (
    MEAN_LENGTH,
    flops_per_residue,
    read_measured,
    residues_of,
    speed,
)

CONFIGS = Path("workloads/seqlm/configs")
Plan = Callable[..., tuple[int, str]]


def layout_on(config: RunFile, gpus: int) -> Layout:
    shape = shape_of(config)
    return Layout(config, shape, parameters_of(config, shape), gpus)


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Plan:
    def run(config: str, cluster: str, *arguments: str) -> tuple[int, str]:
        given = [
            "--config",
            str(CONFIGS / f"{config}.yaml"),
            "--cluster",
            f"clusters/{cluster}.yaml",
        ]
        monkeypatch.setattr(sys, "argv", ["plan", *given, *arguments])
        return command.main(), capsys.readouterr().out

    return run


@pytest.mark.parametrize("size", ["8M", "650M"])
def test_flops_match_the_trainer_s(size: str) -> None:
    config = load_config(CONFIGS / f"esm2_{size.lower()}.yaml")
    layout = layout_on(config, 1)
    with torch.device("meta"):
        model = PackedEsm(published_config(size))
    model.esm.contact_head.requires_grad_(False)
    of_a_residue = num_flops(model, 1000, int(1000 * MEAN_LENGTH)) / 1000
    assert flops_per_residue(layout) == pytest.approx(of_a_residue)


def test_the_mean_length_matches_the_distribution() -> None:
    lengths = np.minimum(np.random.default_rng(0).lognormal(math.log(200), 0.75, 1_000_000), 1022)
    assert (lengths**2).sum() / lengths.sum() == pytest.approx(MEAN_LENGTH, rel=0.02)


def test_published_shares_are_of_known_gpus_and_sizes() -> None:
    for (gpu, size), (low, high, source) in PUBLISHED.items():
        assert gpu in PEAK_BF16_FLOPS and size in ESM2.sizes
        assert 0 < low <= high < 1 and source.startswith("published: ")


@pytest.mark.parametrize(
    ("gpu", "size", "tokens_per_second", "end"),
    [
        ("A100", "15B", 1_930, "high"),
        ("H100", "15B", 2_430, "low"),
        ("H100", "15B", 4_150, "high"),
        ("H200", "15B", 5_950, "high"),
    ],
)
def test_published_shares_follow_from_the_published_rates(
    gpu: str, size: str, tokens_per_second: float, end: str
) -> None:
    low, high, _ = PUBLISHED[gpu, size]
    share = published_share(gpu, size, tokens_per_second)
    assert share == pytest.approx(low if end == "low" else high, abs=0.04)


def published_share(gpu: str, size: str, tokens_per_second: float) -> float:
    """Padded rows of 1,024 tokens attend to 1,024 tokens, and packed rows (H200) to the mean length."""
    shape = ESM2.published_shape(size)
    attended = MEAN_LENGTH if gpu == "H200" else 1024
    weights = shape.layers * shape.layer_parameters + shape.language_head
    flops = 6 * weights + 12 * shape.layers * shape.hidden * attended
    return tokens_per_second * flops / PEAK_BF16_FLOPS[gpu]


def share_of(gpu: str, *changes: str) -> Share:
    """Return the known share for the run file of 650M with changes."""
    config = load_config(CONFIGS / "esm2_650m.yaml", changes)
    return known_share(layout_on(config, 8), gpu)


def test_a_measured_size_has_its_own_share() -> None:
    measured = {one.size: one.share for one in measurements() if one.gpu == "H200"}
    assert set(measured) == {"8M", "35M", "150M", "650M", "3B"}
    for size, share in measured.items():
        found = share_of("H200", f"model.size={size}")
        assert (found.low, found.high) == (share, share)
        assert found.source.startswith("measured with this trainer on one H200 (benchmarks/results")
    assert 0.46 < measured["650M"] < 0.48
    small = share_of("H100", "train.tokens_per_pack=8192")
    assert small.source.endswith(
        "packs of 16,384 tokens were measured, and smaller ones are slower"
    )


def test_other_gpus_have_a_range_between_peak_and_bandwidth() -> None:
    measured = {one.size: one.share for one in measurements() if one.gpu == "H200"}
    h100 = share_of("H100")
    # Both have the same peak. What memory bounds takes longer by the ratio of the bandwidths.
    assert h100.high == measured["650M"]
    assert h100.low == pytest.approx(measured["650M"] * 3.35 / 4.8)
    assert h100.source.startswith("scaled from 650M, measured with this trainer on one H200")
    # More bandwidth per FLOP: the range is above the measured share, and below that of a plain product.
    a10g = share_of("A10G", "model.size=3B")
    assert a10g.low == measured["3B"]
    assert a10g.high == pytest.approx(
        max(one.ceiling for one in measurements() if one.size == "3B")
    )
    assert a10g.high < measured["3B"] * (0.6 / 70) / (4.8 / 989)
    assert set(BANDWIDTHS) == set(PEAK_BF16_FLOPS)


@pytest.mark.parametrize(
    ("gpu", "size", "pytorch", "bionemo"),
    [
        ("A100", "650M", 24_500, 42_900),
        ("A100", "3B", 6_200, 11_000),
        ("H100", "650M", 46_000, 96_000),
        ("H100", "3B", 12_800, 26_800),
    ],
)
def test_scaled_ranges_agree_with_published_rates(
    gpu: str, size: str, pytorch: float, bionemo: float
) -> None:
    """The middle of a range is between plain PyTorch and BioNeMo 2, by NVIDIA's charts in tokens/s."""
    found = share_of(gpu, f"model.size={size}")
    low = published_share(gpu, size, pytorch)
    high = published_share(gpu, size, bionemo)
    assert low < (found.low + found.high) / 2 < high


def test_a_size_between_two_measured_ones_is_between_their_shares() -> None:
    measured = {one.size: one.share for one in measurements() if one.gpu == "H200"}
    found = share_of("H200", "model.family=esmc", "model.size=300M")
    assert (found.low, found.high) == (measured["150M"], measured["650M"])
    assert found.source.startswith("assumed from 150M and 650M") and "not measured" in found.source
    largest = share_of("H200", "model.family=esmc", "model.size=6B")
    assert (largest.low, largest.high) == (measured["3B"], measured["3B"])
    assert share_of("H100", "model.size=15B") == PUBLISHED["H100", "15B"]
    assert share_of("Trainium2") == ASSUMED


def test_only_plain_and_complete_lines_are_measurements(tmp_path: Path) -> None:
    line = {
        "stage": "speed",
        "size": "650M",
        "shape": "tokens_per_pack=16384",
        "verdict": "passed",
        "rehearsal": False,
        "device": "NVIDIA H100 80GB HBM3",
        "commit": "0123456789",
        "figures": {"recipe": {"model_mfu": 0.4, "ceiling_flops_per_second": 791.2e12}},
    }
    better = {"figures": {"recipe": {"model_mfu": 0.5, "ceiling_flops_per_second": 791.2e12}}}
    others = (
        {"verdict": "incomplete"},
        {"rehearsal": True},
        {"stage": "profile"},
        {"shape": "tokens_per_pack=16384,recompute=1"},
        {"shape": "tokens_per_pack=16384,optimizer=muon"},
        {"device": "AMD EPYC"},
    )
    lines = [line, *(line | better | changes for changes in others)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (found,) = measurements(tmp_path)
    assert (found.gpu, found.size, found.share) == ("H100", "650M", 0.4)
    assert found.tokens_per_pack == 16384
    assert found.ceiling == pytest.approx(0.8)
    (tmp_path / "b.jsonl").write_text(json.dumps(line | better))
    assert [one.share for one in measurements(tmp_path)] == [0.5]


def test_the_page_about_cost_has_the_scaled_range() -> None:
    found = share_of("H100")
    range_text = f"{100 * found.low:.0f} to {100 * found.high:.0f} %"
    assert f"For 650M on H100, the scaled range is {range_text}" in Path("docs/cost.md").read_text()


def test_time_follows_from_the_share_of_the_peak() -> None:
    config = load_config(CONFIGS / "esm2_650m.yaml")
    layout = layout_on(config, 64)
    found = speed(layout, gpu="H100", mfu=0.5)
    expected = 0.5 * 64 * 989e12 / flops_per_residue(layout)
    assert (
        found.residues_per_second_low == found.residues_per_second_high == pytest.approx(expected)
    )
    assert found.busy == 1 and found.source == "given by --mfu"
    idle = speed(layout_on(config, 96), gpu="H100", mfu=0.5)
    assert idle.busy == pytest.approx(128 / 192)


def test_recomputed_layers_take_time() -> None:
    """Recomputation takes eight FLOPs per parameter and token instead of the six that MFU counts."""
    rates = []
    for recomputing in ("false", "true"):
        changes = [f"train.activation_checkpointing={recomputing}", "train.precision=fp32"]
        config = load_config(CONFIGS / "esm2_650m.yaml", changes)
        found = speed(layout_on(config, 64), gpu="H100")
        rates.append(found.residues_per_second_low)
        assert ("a quarter less" in found.source) is (recomputing == "true")
        assert "fp32 takes several times as long" in found.source
        given = speed(layout_on(config, 64), gpu="H100", mfu=0.3)
        assert (given.mfu_low, given.source) == (0.3, "given by --mfu")
    assert rates[1] == pytest.approx(rates[0] * 6 / 8)


def test_daly_is_the_best_interval() -> None:
    """A search finds the lowest cost per unit of work (Daly's equation 13, exponential failures)."""
    stall = 60.0
    failures = 3600.0
    restart = 900.0

    def cost(interval: float) -> float:
        work = (
            math.exp(restart / failures) * (math.exp((interval + stall) / failures) - 1) * failures
        )
        return work / interval

    best = min(np.arange(10.0, 4000.0), key=cost)
    assert daly_interval(stall, failures) == pytest.approx(best, rel=0.02)
    assert daly_interval(1.0, 1e6) == pytest.approx(math.sqrt(2e6), rel=0.01)  # Young's
    assert daly_interval(3 * failures, failures) == failures
    assert lost_share(best, stall, failures) < lost_share(best / 3, stall, failures)
    assert lost_share(best, stall, failures) < lost_share(best * 3, stall, failures)


def test_failures_increase_with_the_number_of_gpus() -> None:
    config = load_config(CONFIGS / "esm2_3b.yaml")
    layout = layout_on(config, 8)
    parameters = layout.parameters
    small, large = (
        plan_checkpoints(layout_on(config, gpus), lustre_bytes_per_second=1e9) for gpus in (8, 1024)
    )
    assert small.mean_seconds_between_failures == pytest.approx(
        GPU_HOURS_BETWEEN_FAILURES * 3600 / 8
    )
    assert large.mean_seconds_between_failures == pytest.approx(
        small.mean_seconds_between_failures / 128
    )
    assert small.stall_seconds == pytest.approx(
        checkpoint_bytes(parameters) / 8 / STAGING_BYTES_PER_SECOND
    )
    # With a slow file system, the next checkpoint waits for the last one.
    slow = plan_checkpoints(layout, lustre_bytes_per_second=1e8, failure_hours=1)
    assert (
        slow.interval_seconds
        == slow.write_seconds
        == pytest.approx(checkpoint_bytes(parameters) / 1e8)
    )
    with pytest.raises(
        ValueError, match=r"--failure-hours: 0\.2 hours between failures are less than the time"
    ):
        plan_checkpoints(layout, lustre_bytes_per_second=1e9, failure_hours=0.2)


def test_emissions() -> None:
    assert set(BOARD_WATTS) == set(PEAK_BF16_FLOPS)
    assert energy_kwh("H100", 8, 1) == pytest.approx(10.2 * 1.135)
    assert grid_grams_per_kwh("eu-north-1") == 8.8
    with GRID_FILE.open(newline="") as file:
        assert {row["region"] for row in csv.DictReader(file)} <= set(ZONE_ID_PREFIXES)
    with pytest.raises(
        ValueError, match="--co2: got ap-south-2; figures are known for ap-northeast-1"
    ):
        grid_grams_per_kwh("ap-south-2")


def test_the_group_with_the_most_gpus_is_taken() -> None:
    p5 = load_cluster(Path("clusters/slurm-p5.yaml"))
    assert find_place(p5, None, None).world_size == 64
    assert find_place(p5, "p5", 2).world_size == 16
    for group, nodes, message in (
        ("login", None, "--group: got login; groups of esm2-p5"),
        (None, 9, "--nodes: got 9; p5 has 8"),
        (None, 0, "--nodes: got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            find_place(p5, group, nodes)


def test_plans_with_nodes_of_karpenter() -> None:
    growing = {
        "instance_groups[workers].num_instances": 0,
        "instance_groups[workers].max_instances": 4,
    }
    cluster = EksCluster.model_validate(document("eks", {"autoscaling": "karpenter", **growing}))
    whole = []
    for nodes in (None, 2):
        place = find_place(cluster, None, nodes)
        said = time_and_money(cluster, place, hours_low=1, hours_high=1, co2=False)[1]
        whole.append(float(re.findall(r"([\d.]+) USD for the whole cluster", said)[0]))
    # The file has no nodes, and the price includes the nodes of the run.
    assert whole[0] - whole[1] == pytest.approx(2 * 3.06, abs=1)
    for number in (0, 5):
        with pytest.raises(ValueError, match=f"--nodes: got {number}; workers has 4; set 1 to 4"):
            find_place(cluster, None, number)


def test_a_group_without_nodes_has_no_plan() -> None:
    cluster = EksCluster.model_validate(
        document("eks", {"instance_groups[workers].num_instances": 0})
    )
    with pytest.raises(ValueError, match="--group: workers has no nodes; set num_instances in"):
        find_place(cluster, None, None)


def test_a_measured_run_takes_precedence_over_published_rates(tmp_path: Path, plan: Plan) -> None:
    results = tmp_path / "results.json"
    results.write_text(
        json.dumps({"mfu": 0.44, "environment": {"device": "NVIDIA H100 80GB HBM3"}})
    )
    status, out = plan("esm2_650m", "slurm-p5", "--measured", str(results))
    assert status == 0 and "44 %: measured on H100" in out
    with pytest.raises(ValueError, match="the run was on H100, and the cluster has A10G"):
        plan("esm2_8m", "slurm", "--measured", str(results))
    results.write_text(json.dumps({"mfu": None, "environment": {"device": "AMD EPYC"}}))
    with pytest.raises(ValueError, match="a run on AMD EPYC, whose MFU is unknown"):
        read_measured(results)
    with pytest.raises(ValueError, match="set a run's results"):
        read_measured(tmp_path)


def test_reports_memory_speed_checkpoints_and_cost(plan: Plan) -> None:
    status, out = plan("esm2_650m", "slurm-p5", "--co2")
    assert status == 0
    for part in (
        "fits: ", "32.7 % to 46.8 %: scaled from 650M, measured", "residues/s",
        "days on 8 * ml.p5.48xlarge (64 GPUs)",
        "train.save_every_steps=", "USD for these nodes", "t CO2e with the grid of us-east-1",
    ):  # fmt: skip
        assert part in out
    out = plan("esm2_650m", "slurm-p5", "train.max_steps=5000", "--nodes", "2", "optim.lr=1e-4")[1]
    assert "5,000 steps" in out and "hours on 2 * ml.p5.48xlarge" in out and "CO2" not in out


def test_states_in_memory_count_against_the_nodes(plan: Plan) -> None:
    # 652 million parameters with AdamW's moments have 7.82 GB. Three of them are two states and the copy
    # that is being written; with FSDP a node has an eighth of each, twice, and of the copy once.
    out = plan("esm2_650m", "slurm-p5")[1]
    assert "states in memory: up to 21.8 GiB of the 2048 GiB of each node" in out
    out = plan("esm2_650m", "slurm-p5", "parallel.mode=fsdp")[1]
    assert "states in memory: up to 4.5 GiB of the 2048 GiB of each node" in out
    for none in (["train.memory_checkpoint_steps=0"], ["--nodes", "1"]):
        assert "states in memory" not in plan("esm2_650m", "slurm-p5", *none)[1]
    out = plan("esm2_650m", "slurm-p5", "--nodes", "1", "train.memory_checkpoint_steps=10")[1]
    assert "states in memory: up to 21.8 GiB" in out


@pytest.mark.parametrize(
    ("memory_states", "expected"),
    [
        (None, []),
        ({"storage": "nodes"}, ["states in memory: up to 21.8 GiB of the 2048 GiB of each node"]),
        (
            {"storage": "managed", "percent": 25},
            [
                # Two states of 7.82 GB on eight nodes.
                "states in memory: up to 1.8 GiB of the 512 GiB of each node for HyperPod's managed tier, "
                "whose own copies are not counted"
            ],
        ),
    ],
)
def test_states_in_memory_on_eks_are_those_of_the_cluster_file(
    memory_states: dict[str, Any] | None, expected: list[str]
) -> None:
    cluster = EksCluster.model_validate(document("eks-p5", {"memory_states": memory_states}))
    layout = layout_on(load_config(CONFIGS / "esm2_650m.yaml"), 64)
    found = node_memory(layout, find_place(cluster, None, None), cluster)
    assert node_memory_lines(found) == expected


def test_a_small_plan_shows_no_zeros(plan: Plan) -> None:
    status, out = plan("esm2_8m_sample", "slurm", "--co2")
    assert status == 0 and "seconds on 2 * ml.g5.8xlarge" in out
    assert re.search(r"parameters +29 MiB", out) and "checkpoints of 90.1 MB" in out
    assert (
        re.search(r"[1-9][\d.]* cents for these nodes", out) and "less than 0.1% of the time" in out
    )
    assert not re.search(r"\b0(\.0+)?(%| (hours|USD|GiB|MiB|kWh))", out) and " kg CO2e" in out
    assert "minutes on" in plan("esm2_8m_sample", "slurm", "train.max_steps=20000")[1]


def test_days_and_dollars_follow_from_speed_and_failures(plan: Plan) -> None:
    out = plan("esm2_650m", "slurm-p5", "--mfu", "0.4", "--failure-hours", "1")[1]
    config = load_config(CONFIGS / "esm2_650m.yaml")
    layout = layout_on(config, 64)
    assert residues_of(config) == 0.99 * 500_000 * 2**21
    found = speed(layout, gpu="H100", mfu=0.4)
    # Lustre has 9,600 GiB with 500 MB/s per TiB.
    lustre = lustre_bytes_per_second(load_cluster(Path("clusters/slurm-p5.yaml")))
    assert lustre == 9600 / 1024 * 500e6
    saving = plan_checkpoints(layout, lustre_bytes_per_second=lustre, failure_hours=1)
    assert saving.lost_share > 0.2
    hours = residues_of(config) / found.residues_per_second_low / 3600 / (1 - saving.lost_share)
    assert f"{hours / 24:.3g} days on 8 * ml.p5.48xlarge (64 GPUs)" in out
    usd = float(re.findall(r"([\d,]+) USD for these nodes", out)[0].replace(",", ""))
    price = load_prices("us-east-1").get("hyperpod.ml.p5.48xlarge")
    assert price and usd == pytest.approx(8 * price.usd * hours, rel=0.01)


def test_reports_if_recomputation_is_unnecessary(plan: Plan) -> None:
    hint = "train.activation_checkpointing=false"
    other = "train.activation_checkpointing=true"
    recomputing = plan("esm2_3b", "slurm-p5", other)[1]
    kept = plan("esm2_3b", "slurm-p5")[1]
    told = re.findall(rf"With ([\d.]+ GiB) it may also fit .*: ARGS={hint}", recomputing)
    assert told == re.findall(r"fits: ([\d.]+ GiB) of", kept) and hint not in kept
    # The layers of 15B do not fit with packs of this size.
    assert hint not in plan("esm2_15b", "slurm-p5", other, "train.tokens_per_pack=8192")[1]


@pytest.mark.parametrize(
    ("size", "gpus", "tokens", "gib"),
    [("3b", 8, 8192, 36), ("3b", 1, 4096, 58), ("15b", 8, 2048, 57), ("15b", 16, 4096, 62)],
)
def test_large_models_fit_without_recomputing_layers(
    size: str, gpus: int, tokens: int, gib: int
) -> None:
    """GPUs have 80 GB. The run files state these figures for eight GPUs."""
    path = CONFIGS / f"esm2_{size}.yaml"
    config = load_config(path, [] if gpus == 8 else [f"train.tokens_per_pack={tokens}"])
    assert config.train.tokens_per_pack == tokens and not config.train.activation_checkpointing
    needed = memory(layout_on(config, gpus)).total / GIB
    assert round(needed) == gib < USABLE * 80
    assert (
        f"{gib} GiB" in path.read_text()
        or f"{gib} of {USABLE * 80:.0f} usable GiB" in path.read_text()
    )


def test_a_run_that_does_not_fit_is_rejected_with_changes(plan: Plan) -> None:
    status, out = plan("esm2_650m", "slurm")
    assert status == command.DOES_NOT_FIT and "DOES NOT FIT" in out and "days" not in out
    changes = [line.split('"')[1] for line in out.splitlines() if "ARGS=" in line]
    assert changes
    for change in changes:
        assert plan("esm2_650m", "slurm", *change.split())[0] == 0
    status, out = plan("esm2_15b", "slurm")
    assert status == command.DOES_NOT_FIT and "do not help" in out and "ARGS" not in out


PLANNED = sorted(path for path in CONFIGS.rglob("*.yaml") if path.parent.name != "language")
"""Bundled run files of proteins; no plan exists for a causal language model."""


@pytest.mark.parametrize("path", PLANNED, ids=lambda path: path.stem)
@pytest.mark.parametrize("cluster", ["slurm-p5", "eks-p5"])
def test_every_shipped_run_has_a_plan(path: Path, cluster: str, plan: Plan) -> None:
    name = str(path.relative_to(CONFIGS).with_suffix(""))
    status, out = plan(name, cluster)
    assert status == 0, out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mfu", "1.5"], "--mfu: got 1.5; a number above 0 and at most 1"),
        (["--failure-hours", "0"], "--failure-hours: got 0.0"),
        (
            ["parallel.mode=fsdp", "parallel.shard_size=24"],
            "parallel.shard_size: got 24; it must divide",
        ),
        (
            ["model.init_from=someone/else"],
            "model.init_from: got someone/else, whose size is unknown",
        ),
    ],
)
def test_wrong_options_are_explained(arguments: list[str], message: str, plan: Plan) -> None:
    with pytest.raises(ValueError, match=message):
        plan("esm2_650m", "slurm-p5", *arguments)


def test_the_page_about_models_has_the_planned_memory(tmp_path: Path) -> None:
    tables = re.findall(
        r"^\| (ESM\S+) (\d+\w) \| ([\d.]+) \| ([\d.]+) \|$",
        Path("docs/models.md").read_text(),
        re.M,
    )
    assert len(tables) == 8
    task = "{kind: binary, table: [x.csv], label_columns: [y], split: {column: s, validation: [v]}}"
    (tmp_path / "all.yaml").write_text("{}")
    (tmp_path / "lora.yaml").write_text(f"task: {task}\nlora: {{rank: 16}}\n")
    for family, size, *columns in tables:
        model = [f"model.family={family.replace('-', '').lower()}", f"model.size={size}"]
        for file, column in zip(("all", "lora"), columns, strict=True):
            config = load_config(tmp_path / f"{file}.yaml", [*model, "train.tokens_per_pack=8192"])
            assert f"{memory(layout_on(config, 8)).total / GIB:.1f}" == column, (family, size, file)
