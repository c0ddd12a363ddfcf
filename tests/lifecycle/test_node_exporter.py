"""The exporter runs in the table's version, on the node's address, and answers."""

from __future__ import annotations

import configparser
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from node_setup import downloads
from node_setup.failure import SetupError
from node_setup.node import Node
from node_setup.service import TEXT_FILES
from node_setup.steps import exporters
from tests.lifecycle.https_server import body, served
from tests.lifecycle.node import SCRIPTS, StandIns, node_of
from tests.lifecycle.services import Services, services

__all__ = ["services"]
METRIC_UNITS = (
    "discover-nodes",
    "efa-metrics",
    "node-exporter",
    "prometheus-agent",
    "slurm-metrics",
)
METRIC = 'node_exporter_build_info{goarch="amd64",version="1.9.1"} 1\n'


@pytest.fixture
def node(tmp_path: Path, services: Services, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node on 127.0.0.1, where the program comes from nowhere."""

    def install(node: Node, name: str, binaries: tuple[str, ...]) -> bool:
        assert (name, binaries) == ("node_exporter", ("node_exporter",))
        return node.install("/usr/local/bin/node_exporter", "1.9.1")

    monkeypatch.setattr(exporters, "install_binaries", install)
    made = node_of(tmp_path, "controller")
    made.facts = replace(made.facts, address="127.0.0.1")
    return made


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """Answers of the exporter; the last item of the list counts."""
    answers = [METRIC.encode()]

    def answer(request: BaseHTTPRequestHandler) -> None:
        assert request.path == "/metrics"
        body(answers[-1])(request)

    with served(answer) as url:
        monkeypatch.setattr(exporters, "NODE_PORT", int(url.rsplit(":", 1)[1]))
        yield answers


def test_it_is_installed_started_and_asked(
    node: Node, services: Services, exporter: list[bytes]
) -> None:
    exporters.run_node_exporter(node)
    unit = node.host.path("/etc/systemd/system/node-exporter.service").read_text()
    assert f"--web.listen-address=127.0.0.1:{exporters.NODE_PORT} " in unit
    assert services.restarts == ["node-exporter.service"]
    assert "\nUser=node_exporter\n" in unit and "user node_exporter" in node.changes
    assert node.host.path(TEXT_FILES).is_dir()
    assert "node-exporter.service started" in node.changes


def test_a_second_run_changes_nothing(
    node: Node, services: Services, stand_ins: StandIns, exporter: list[bytes]
) -> None:
    exporters.run_node_exporter(node)
    node.changes = []
    stand_ins.forget_calls()
    exporters.run_node_exporter(node)
    assert node.changes == [] and services.restarts == []


def test_a_new_version_restarts_it(node: Node, services: Services, exporter: list[bytes]) -> None:
    exporters.run_node_exporter(node)
    node.host.path("/usr/local/bin/node_exporter").write_text("1.8.2")
    exporters.run_node_exporter(node)
    assert services.restarts == ["node-exporter.service"] * 2
    assert node.changes[-1] == "node-exporter.service restarted"


def test_another_version_that_still_answers_is_no_success(
    node: Node, exporter: list[bytes]
) -> None:
    exporter.append(METRIC.replace("1.9.1", "1.8.2").encode())
    with pytest.raises(
        SetupError, match=r"node-exporter.service gives no metrics after 60 s.*has no metric"
    ):
        exporters.run_node_exporter(node)


def test_one_that_does_not_answer_fails(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporters, "NODE_PORT", 1)
    with pytest.raises(
        SetupError, match=r"127.0.0.1:1/metrics does not answer: .*Connection refused"
    ):
        exporters.run_node_exporter(node)


def test_one_that_does_not_start_shows_its_log(node: Node, services: Services) -> None:
    services.break_starts()
    with pytest.raises(
        SetupError, match=r"Job for node-exporter.service failed.; its log ends with: the last"
    ):
        exporters.run_node_exporter(node)


@pytest.mark.parametrize("address", ["*", "0.0.0.0", "[::]", "127.0.0.1"])
def test_a_port_that_somebody_else_has_is_named(
    node: Node, services: Services, stand_ins: StandIns, address: str
) -> None:
    line = f'LISTEN 0 4096 {address}:9100 *:* users:(("node_exporter",pid=7,fd=3))'
    stand_ins.command("ss", f"echo '{line}'")
    with pytest.raises(SetupError) as caught:
        exporters.run_node_exporter(node)
    assert f"is taken: {line}" in str(caught.value)
    assert "stop and disable it" in str(caught.value)
    assert services.restarts == []


def test_a_port_of_another_address_is_free(
    node: Node, stand_ins: StandIns, exporter: list[bytes]
) -> None:
    stand_ins.command("ss", "echo 'LISTEN 0 4096 127.0.0.53%lo:9100 *:*'")
    exporters.run_node_exporter(node)


def test_the_version_that_is_waited_for_is_the_tables(node: Node) -> None:
    assert f'version="{downloads.find_download(node, "node_exporter").version}"' in METRIC


@pytest.mark.parametrize("name", METRIC_UNITS)
def test_services_of_metrics_have_none_of_roots_powers(name: str) -> None:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.read(SCRIPTS / "units" / f"{name}.service")
    service = parser["Service"]
    assert service["NoNewPrivileges"] == "yes"
    # Otherwise, each file system would be reported as read-only.
    assert service.get("ProtectSystem") == (None if name == "node-exporter" else "strict")
    assert service["CapabilityBoundingSet"] == ""
    assert service["Restart"] == "always" and service["MemoryMax"]
    assert parser["Install"]["WantedBy"] == "multi-user.target"
