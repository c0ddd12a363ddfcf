"""A real helm on a chart and values, as the cluster's installer would run it, without a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from manifests.charts import CACHE
from tools.kubernetes.kubectl import find_program, run_helm

STAND_INS = Path(__file__).parent / "stand_ins"
IMAGE_REPOSITORY = "123456789012.dkr.ecr.us-west-2.amazonaws.com/esm2-eks/training"
NAMESPACE = "kube-system"
"""Namespace of the release; parts of HyperPod's chart name their own."""


class HelmRefusedError(Exception):
    """helm's message about the chart or the values."""


@cache
def helm() -> Path:
    """Skips the test where none runs."""
    found = find_program("helm", CACHE)
    if found is None:
        pytest.skip(
            "no helm runs here: the Python package's is for Linux on x86-64, and none is on the PATH"
        )
    return found


def lint(chart: Path, values: Mapping[str, Any]) -> None:
    """Raise HelmRefusedError if `helm lint` finds an error, as a value that is not in the chart's schema."""
    _run("lint", str(chart), values=values)


def render(
    chart: Path, values: Mapping[str, Any], *, release: str = "hyperpod"
) -> list[dict[str, Any]]:
    """The Kubernetes objects in the order in which helm installs them, without the CRDs of a crds folder.

    Raises:
        HelmRefusedError: if there are none for these values.
    """
    printed = _run("template", release, str(chart), f"--namespace={NAMESPACE}", values=values)
    return [document for document in yaml.safe_load_all(printed) if document]


def _run(*arguments: str, values: Mapping[str, Any]) -> str:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "values.yaml"
        file.write_text(yaml.safe_dump(dict(values)))
        done = run_helm(helm(), *arguments, f"--values={file}")
    if done.returncode != 0:
        raise HelmRefusedError(done.stdout + done.stderr)
    return done.stdout
