"""A cluster of Kubernetes for the commands with TARGET=eks: the real kubectl, a stand-in of its server."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from tests.tools.jobs.kubernetes.eks_jobs_made import CLUSTERS
from tests.tools.jobs.kubernetes.submissions import SPACE, Run
from tests.tools.kubernetes_api import Objects
from tools.jobs import __main__ as jobs


@pytest.fixture
def objects(server: tuple[Objects, Path]) -> Objects:
    """A cluster as it is deployed: namespace, claim."""
    found, _ = server
    found.add("namespaces", "", SPACE)
    found.add("persistentvolumeclaims", SPACE, "fsx", status={"phase": "Bound"})
    return found


@pytest.fixture
def run(
    server: tuple[Objects, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Run:
    def command(
        *arguments: str, cluster: str | Path = "eks", kubeconfig: Path = server[1]
    ) -> tuple[int, str]:
        path = cluster if isinstance(cluster, Path) else CLUSTERS / f"{cluster}.yaml"
        options = ["--cluster", str(path), "--kubeconfig", str(kubeconfig)]
        monkeypatch.setattr(sys, "argv", ["jobs", *arguments, *options])
        status = jobs.main()
        printed = capsys.readouterr()
        return status, printed.out + printed.err

    return command


@pytest.fixture(params=["hyperpod", pytest.param("kubeflow", marks=pytest.mark.long)])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A cluster file for each operator."""
    content = yaml.safe_load((CLUSTERS / "eks.yaml").read_text()) | {
        "training_operator": request.param
    }
    path = tmp_path / f"{request.param}.yaml"
    path.write_text(yaml.safe_dump(content))
    return path
