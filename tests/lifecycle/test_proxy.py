"""Node setup that reaches the world only through an HTTP proxy on the loopback interface."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from config.cluster import ExistingVpc
from config.proxy import Proxy
from config.proxy_environment import proxy_environment
from node_setup import downloads
from node_setup.failure import SetupError
from node_setup.steps import managed_mlflow, proxy
from tests.lifecycle.connect_proxy import ConnectProxy, connect_proxy
from tests.lifecycle.https_server import body, served, write_certificate
from tests.lifecycle.node import Bundle, StandIns, node_of, settings_document
from tests.lifecycle.test_pinned_downloads import CONTENT, FILE, node_with_table
from tests.stacks.synthesized import load
from tests.stacks.test_shared_vpc import NETWORK

WORLD = "releases.world.invalid"
"""Name that no DNS server resolves."""
URL = "http://proxy.example.com:3128"


def variables(url: str, *no_proxy: str) -> dict[str, str]:
    settings = {"url": url, "no_proxy": list(no_proxy)}
    return proxy_environment(load("clusters/slurm.yaml", network=NETWORK | {"proxy": settings}))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ConnectProxy]:
    """A proxy that alone leads to a server of downloads."""
    certificate = tmp_path / "certificate.pem"
    write_certificate(certificate, names=(WORLD,))
    monkeypatch.setenv("CURL_CA_BUNDLE", str(certificate))
    for name in variables(URL):
        monkeypatch.delenv(name, raising=False)
    with served(body(CONTENT), certificate) as url:
        place = urlsplit(url)
        assert place.hostname and place.port
        with connect_proxy({WORLD: (place.hostname, place.port)}) as found:
            yield found


def test_downloads_come_through_the_proxy_alone(
    tmp_path: Path, world: ConnectProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = node_with_table(tmp_path, f"https://{WORLD}")
    with pytest.raises(SetupError, match=f"https://{WORLD}/releases/{FILE} cannot be reached"):
        downloads.install_binaries(node, "tool", ("tool",))
    for name, value in variables(world.url).items():
        monkeypatch.setenv(name, value)
    assert downloads.install_binaries(node, "tool", ("tool",))
    assert world.connected == [WORLD]
    assert (tmp_path / "root/usr/local/bin/tool").read_bytes() == b"#!/bin/sh\necho 1.0\n"


STEPS = """
from node_setup.step import Step

def fetch(node):
    node.host.run("curl", "--silent", "--fail", "--cacert", "%s", "--output", "/dev/null", "%s")

STEPS = (Step("fetch", fetch),)
"""


def test_a_whole_setup_reaches_the_world(tmp_path: Path, world: ConnectProxy) -> None:
    """The program that HyperPod starts, without variables of its own."""
    node = Bundle(
        tmp_path / "node", STEPS % (os.environ["CURL_CA_BUNDLE"], f"https://{WORLD}/file")
    )
    assert node.run().status == 1
    settings = settings_document(proxy=variables(world.url))
    (node.folder / "settings.json").write_text(json.dumps(settings))
    result = node.run()
    assert result.status == 0, result.output
    assert world.connected == [WORLD]


def test_sessions_reach_the_world(tmp_path: Path, world: ConnectProxy, stand_ins: StandIns) -> None:
    """A shell that reads the profile and nothing else."""
    stand_ins.command("systemctl", "[[ $1 != is-enabled ]]")
    proxy.apply(node_of(tmp_path, "login", proxy=variables(world.url)))
    profile = tmp_path / "root" / proxy.LOGIN_SHELLS.lstrip("/")
    script = f"source {profile}; curl --silent --fail --output /dev/null https://{WORLD}/file"
    environment = {"PATH": os.environ["PATH"], "CURL_CA_BUNDLE": os.environ["CURL_CA_BUNDLE"]}
    assert subprocess.run(["bash", "-euc", script], env=environment).returncode == 0
    assert world.connected == [WORLD]


def test_the_proxy_is_written_once_and_taken_back(tmp_path: Path, stand_ins: StandIns) -> None:
    stand_ins.command("systemctl", '[[ "$1" != is-enabled ]] || echo enabled')
    stand_ins.command("docker", "echo gpu-exporter")
    etc = tmp_path / "root/etc"
    etc.mkdir(parents=True)
    (etc / "environment").write_text('PATH="/usr/bin"\n')
    proxied = variables(URL)

    def changes(settings: dict[str, str]) -> list[str]:
        node = node_of(tmp_path, proxy=settings)
        proxy.apply(node)
        managed_mlflow.apply(node)
        assert node.warnings == []
        return node.changes

    assert len(changes(proxied)) == 5
    assert "systemctl daemon-reexec" in stand_ins.calls
    assert "systemctl try-restart docker.service" in stand_ins.calls
    lines = (etc / "environment").read_text().splitlines()
    assert lines[0] == 'PATH="/usr/bin"' and f"https_proxy={URL}" in lines
    services = (tmp_path / "root" / proxy.SERVICES.lstrip("/")).read_text()
    assert f'"HTTPS_PROXY={URL}"' in services
    jobs = tmp_path / "root" / managed_mlflow.ENVIRONMENT.lstrip("/")
    assert json.loads(jobs.read_text()) == proxied
    assert changes(proxied) == []
    assert len(changes({})) == 5
    assert (etc / "environment").read_text() == 'PATH="/usr/bin"\n'
    assert changes({}) == []


def test_running_containers_keep_docker_up(tmp_path: Path, stand_ins: StandIns) -> None:
    stand_ins.command("systemctl", '[[ "$1" != is-enabled ]] || echo enabled')
    stand_ins.command("docker", "echo training")
    node = node_of(tmp_path, proxy=variables(URL))
    proxy.apply(node)
    assert "containers run: training" in node.warnings[0]
    assert not [call for call in stand_ins.calls if "try-restart" in call]


def test_the_cluster_and_aws_are_reached_directly() -> None:
    excluded = variables(URL, ".example.com")["no_proxy"].split(",")
    assert {"127.0.0.1", "169.254.169.254", ".amazonaws.com", ".example.com"} <= set(excluded)
    network = ExistingVpc.model_validate(NETWORK)
    assert network.cidr in excluded and Proxy.model_validate({"url": URL}).no_proxy == []
