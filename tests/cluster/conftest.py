"""One cluster for all tests of this folder: brought up from nothing, then set up by the lifecycle scripts."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from config.node_settings import node_settings
from config.reading.loader import load_cluster
from tests.cluster.artifact_bucket import ArtifactBucket
from tests.cluster.cluster import Cluster
from tests.cluster.island import Island
from tests.cluster.lifecycle import Lifecycle
from tests.cluster.metrics_workspace import MetricsWorkspace
from tests.cluster.training import home, uninterrupted
from tests.workloads.conftest import family, prepared, tiny_config, tiny_model

__all__ = ["family", "home", "prepared", "tiny_config", "tiny_model", "uninterrupted"]
NUM_WORKERS = 3
# Whether there is a cluster comes first, and what does harm to it last, though it is repaired each time.
FIRST = ("test_from_nothing.py", "test_second_run.py")
LAST = ("test_failures.py",)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """After tests/conftest.py, which keeps the order of the files' names."""
    yield
    items.sort(key=lambda item: (item.path.name in LAST) - (item.path.name in FIRST))


@pytest.fixture(scope="session")
def island() -> Iterator[Island]:
    assert os.geteuid() == 0, "machines need root: make test-cluster"
    with Island() as island:
        yield island


@pytest.fixture(scope="session")
def settings() -> dict[str, Any]:
    """Settings of the scripts, from the cluster file beside these tests."""
    return node_settings(load_cluster(Path(__file__).with_name("cluster.yaml")))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Consoles and logs, which stay when all else is gone."""
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="session")
def bucket(island: Island, folder: Path) -> ArtifactBucket:
    return ArtifactBucket(island, folder)


@pytest.fixture(scope="session")
def cluster(
    island: Island, folder: Path, settings: dict[str, Any], request: pytest.FixtureRequest
) -> Iterator[Cluster]:
    """Slurm runs on all nodes; no script has."""
    cluster = Cluster(island, settings, folder)
    try:
        cluster.start(num_workers=NUM_WORKERS)
        yield cluster
        if request.session.testsfailed:
            cluster.save_logs()
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def workspace(island: Island, folder: Path) -> MetricsWorkspace:
    """Server that receives the cluster's metrics."""
    workspace = MetricsWorkspace(island, folder)
    workspace.start()
    return workspace


@pytest.fixture(scope="session")
def lifecycle(
    cluster: Cluster, bucket: ArtifactBucket, workspace: MetricsWorkspace, settings: dict[str, Any]
) -> Lifecycle:
    """The scripts have run once on every node, as on a new cluster."""
    prefix = bucket.start(settings)
    bucket.wait_until_ready()
    lifecycle = Lifecycle(prefix)
    lifecycle.first_runs = lifecycle.run_on_all(cluster)
    return lifecycle
