from __future__ import annotations

from pathlib import Path

import pytest

from monitoring.dashboards.selection import Scheduler
from tests.lifecycle.node import StandIns, stand_ins
from tests.lifecycle.slurm_answers import answer_for_slurm
from tests.monitoring import exporters

__all__ = ["stand_ins"]


@pytest.fixture
def emitted(stand_ins: StandIns, tmp_path: Path) -> dict[Scheduler, set[str]]:
    """Names of metrics that there are."""
    answer_for_slurm(stand_ins, tmp_path)
    texts = [exporters.gpus(), exporters.efa(tmp_path / "infiniband"), exporters.training()]
    # Prometheus adds its own for each target.
    common = {"up", *exporters.node_exporter_names()} | {
        name for text in texts for name in exporters.names_in(text)
    }
    return {
        "slurm": common | {*exporters.names_in(exporters.slurm())},
        "eks": common | {*exporters.names_in(exporters.kueue())},
    }
