"""Plans of runs on slices of GPUs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.config.cluster_documents import document
from tools.plan import __main__ as command

CONFIGS = Path("workloads/seqlm/configs")


@pytest.fixture
def divided(tmp_path: Path) -> Path:
    """The P5 cluster with slices of 10 GB."""
    changes: dict[Any, Any] = {
        "kubernetes.access": [],
        "task_governance": None,
        "instance_groups[p5].mig_profile": "1g.10gb",
    }
    path = tmp_path / "divided.yaml"
    path.write_text(yaml.safe_dump(document("eks-p5", changes)))
    return path


def plan(monkeypatch: pytest.MonkeyPatch, run: str, cluster: Path, *arguments: str) -> int:
    given = ["--config", str(CONFIGS / f"{run}.yaml"), "--cluster", str(cluster)]
    monkeypatch.setattr(sys, "argv", ["plan", *given, *arguments])
    return command.main()


def test_a_small_model_fits_a_slice(
    divided: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(monkeypatch, "esm2_8m_sample", divided) == 0
    out = capsys.readouterr().out
    for part in (
        "memory of a slice",
        "9.2 GiB usable (10 GiB slice 1g.10gb of H100",
        "not measured on a slice of a GPU",
        "on one slice 1g.10gb of H100 of ml.p5.48xlarge",
        "for this share of a node on demand",
        "Scaling: none, because NCCL connects no slices",
    ):
        assert part in out


def test_a_large_model_does_not_fit_a_slice(
    divided: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(monkeypatch, "esm2_3b", divided) == command.DOES_NOT_FIT
    out = capsys.readouterr().out
    assert "DOES NOT FIT" in out and "Use a group with larger slices or whole GPUs" in out


def test_a_run_has_one_slice(divided: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="--nodes: got 2; the GPUs of p5 are divided"):
        plan(monkeypatch, "esm2_8m_sample", divided, "--nodes", "2")
