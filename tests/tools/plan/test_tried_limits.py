"""Warnings of make plan about numbers that were never run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from config.reading.loader import load_cluster
from seqlm.runs.run_file import load_config
from seqlm.training.data.manifest import Manifest, Settings, Split
from tools.plan import __main__ as command
from tools.plan import tried
from tools.plan.placement import find_place

CONFIGS = Path("workloads/seqlm/configs")
P5 = Path("clusters/slurm-p5.yaml")
SMALL = Path("clusters/slurm.yaml")
Plan = Callable[..., list[str]]


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Plan:
    """Return a function that plans a run and returns the lines of warnings."""

    def run(config: str, cluster: Path, *arguments: str) -> list[str]:
        given = ["--config", str(CONFIGS / f"{config}.yaml"), "--cluster", str(cluster)]
        monkeypatch.setattr(sys, "argv", ["plan", *given, *arguments])
        command.main()
        lines = capsys.readouterr().out.splitlines()
        return [line for line in lines if line.startswith("warning: ")]

    return run


def test_each_number_beyond_what_was_run_is_a_warning(plan: Plan) -> None:
    proteins, gpus, nodes = plan("esm2_650m", P5)
    assert proteins.startswith(
        "warning: this run has 70,000,000 proteins, and the most that was run is 10,000,000 proteins ("
    )
    assert gpus.startswith("warning: this run has 64 GPUs, and the most that was run is 1 GPU (")
    assert nodes.startswith("warning: this run has 8 nodes, and the most that was run is 3 nodes (")
    assert all(line.endswith(f"see {tried.PAGE}") for line in (proteins, gpus, nodes))


def test_a_given_number_replaces_that_of_the_source(plan: Plan) -> None:
    most = tried.PROTEINS.most
    lines = plan("esm2_650m", P5, "--nodes=3", f"--proteins={most}")
    assert [line.split()[4:6] for line in lines] == [["24", "GPUs,"]]
    assert len(plan("esm2_650m", P5, "--nodes=3", f"--proteins={most + 1}")) == 2


def test_a_number_below_one_is_refused(plan: Plan) -> None:
    with pytest.raises(ValueError, match="--proteins: got 0; a number above 0"):
        plan("esm2_650m", P5, "--proteins=0")


def test_prepared_data_have_precedence_over_the_source(tmp_path: Path) -> None:
    sizes = {"train": 90, "validation": 5, "test": 5}
    Manifest(
        sources=(),
        settings=Settings(0, 0.05, 0.05, members=False),
        duplicates_dropped=0,
        splits={name: Split(number, number, number, {}, ()) for name, number in sizes.items()},
        vocabulary=(),
    ).save(tmp_path)
    config = load_config(CONFIGS / "esm2_650m.yaml", [f"data.path={tmp_path}"])
    assert tried.num_proteins(config, None) == 100


def test_nothing_is_said_about_an_unknown_number(tmp_path: Path) -> None:
    changes = [f"data.path={tmp_path}", "data.source=[own.fasta]"]
    config = load_config(CONFIGS / "esm2_650m.yaml", changes)
    assert tried.num_proteins(config, None) is None
    place = find_place(load_cluster(SMALL), None, 1)
    assert place.world_size <= tried.GPUS.most
    assert tried.warnings(None, place) == []
