"""Docker's data on a local disk: images and containers, in its own folder or in containerd's."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from node_setup.disks import INSTANCE_STORE, INSTANCE_STORE_SERVICE, is_on_root_volume
from node_setup.failure import SetupError
from node_setup.node import Node
from node_setup.root_folder import make_root_folder

DAEMON_CONFIG = "/etc/docker/daemon.json"
CONTAINERD_CONFIG = "/etc/containerd/config.toml"
SECONDS_TO_START = 120
OURS = frozenset({"gpu-exporter"})
"""Containers that restart automatically, because their units require Docker."""
LOOK = "see `journalctl --unit docker.service --unit containerd.service` on the node"


@dataclass(frozen=True)
class DockerState:
    data_root: str
    images_in_containerd: bool
    """Docker 29 and later keep images and layers in containerd's folder, unless set otherwise."""


def place_docker(node: Node, disk: str) -> None:
    """Move Docker's data root from the root volume to ``disk``; a data root on another disk stays.

    Raises:
        SetupError: if Docker does not answer, its configuration is unreadable, or the move has no effect.
    """
    state = _running_state(node)
    if state is None:
        return
    config: dict[str, str] = {}
    if is_on_root_volume(node.host, state.data_root):
        config["docker"] = f"{disk}/docker"
    if state.images_in_containerd and is_on_root_volume(node.host, _containerd_root(node)):
        config["containerd"] = f"{disk}/containerd"
    if not config or not _may_restart(node, state):
        return
    for path in config.values():
        make_root_folder(node.host, path)
    if disk == INSTANCE_STORE:
        _start_after_instance_store(node, config)
    if "containerd" in config:
        _set_containerd_root(node, config["containerd"])
        node.host.run(
            "systemctl",
            "restart",
            "containerd.service",
            timeout_seconds=SECONDS_TO_START,
            remedy=LOOK,
        )
    if "docker" in config:
        _set_data_root(node, config["docker"])
    node.host.run(
        "systemctl", "restart", "docker.service", timeout_seconds=SECONDS_TO_START, remedy=LOOK
    )
    _verify(node, config)


def _running_state(node: Node) -> DockerState | None:
    """Return the state that Docker reports; None if Docker is not installed or not enabled."""
    enabled = node.host.try_run("systemctl", "is-enabled", "docker.service")
    if enabled.output.strip() not in ("enabled", "static"):
        return None
    return node.host.wait_for(
        lambda: _state(node),
        timeout_seconds=SECONDS_TO_START,
        what="Docker does not answer",
        remedy=LOOK,
    )


def _state(node: Node) -> DockerState:
    text = node.host.run(
        "docker", "info", "--format", "{{json .DockerRootDir}} {{json .DriverStatus}}", remedy=LOOK
    )
    root, _, status = text.partition(" ")
    try:
        return DockerState(
            data_root=json.loads(root),
            images_in_containerd="io.containerd.snapshotter.v1" in str(json.loads(status)),
        )
    except ValueError:
        raise SetupError(
            f"`docker info` prints {text.strip()!r}, which is not JSON", LOOK
        ) from None


def _may_restart(node: Node, state: DockerState) -> bool:
    """Return whether Docker can be restarted now. That ends containers, and its flags override the file."""
    running = set(node.host.run("docker", "ps", "--format", "{{.Names}}").split()) - OURS
    if running:
        node.warn(
            f"Docker's data stay on the root volume in {state.data_root} while containers run: "
            f"{', '.join(sorted(running))}. Stop them, and apply the scripts again"
        )
        return False
    command = node.host.run("systemctl", "show", "--property=ExecStart", "docker.service")
    if re.search(r"\s(--data-root|--graph|-g)[\s=]", command):
        node.warn(
            f"Docker's data stay on the root volume: its service names {state.data_root} on its command line"
        )
        return False
    images = node.host.run("docker", "image", "ls", "--quiet").split()
    if images:
        node.warn(
            f"{len(set(images))} Docker images stay behind on the root volume in {state.data_root}: pull "
            "those in use again, then remove that folder"
        )
    return True


def _start_after_instance_store(node: Node, services: Iterable[str]) -> None:
    """Start services after the instance store, which is mounted late; earlier they would write below it."""
    text = f"[Unit]\nAfter={INSTANCE_STORE_SERVICE}\n"
    for service in services:
        node.install(f"/etc/systemd/system/{service}.service.d/50-instance-store.conf", text)
    node.host.run("systemctl", "daemon-reload")


def _set_data_root(node: Node, path: str) -> None:
    file = node.host.path(DAEMON_CONFIG)
    try:
        config: Any = json.loads(file.read_text()) if file.exists() else {}
    except ValueError as error:
        raise SetupError(
            f"{DAEMON_CONFIG} is not JSON: {error}", "repair it; Docker needs it too"
        ) from None
    if not isinstance(config, dict):
        raise SetupError(
            f"{DAEMON_CONFIG} has a JSON {type(config).__name__}, expected an object", "repair it"
        )
    # "graph" is the older name of the same setting. Docker refuses both at once.
    config.pop("graph", None)
    node.install(DAEMON_CONFIG, json.dumps({**config, "data-root": path}, indent=4) + "\n")


def _containerd_root(node: Node) -> str:
    # Versions before 2 print nothing without a configuration file, and use the default.
    shown = node.host.try_run("containerd", "config", "dump").output
    found = re.search(r"""^root = ["'](.+)["']$""", shown, re.MULTILINE)
    return found.group(1) if found else "/var/lib/containerd"


def _set_containerd_root(node: Node, path: str) -> None:
    """Set the key ``root`` of the top level, which ends where the first table begins."""
    file = node.host.path(CONTAINERD_CONFIG)
    lines = file.read_text().splitlines() if file.exists() else ["version = 2"]
    end_of_top = len(lines)
    for number, line in enumerate(lines):
        if line.lstrip().startswith("["):
            end_of_top = number
            break
    top = [line for line in lines[:end_of_top] if not re.match(r"\s*root\s*=", line)]
    new_lines = [*top, f'root = "{path}"', *lines[end_of_top:]]
    node.install(CONTAINERD_CONFIG, "\n".join(new_lines) + "\n")


def _verify(node: Node, config: dict[str, str]) -> None:
    state = _running_state(node)
    assert state is not None
    if "docker" in config and state.data_root != config["docker"]:
        raise SetupError(
            f"Docker's data root is still {state.data_root}, not {config['docker']}", LOOK
        )
    if "containerd" in config and not any(
        node.host.path(config["containerd"]).glob("io.containerd.*")
    ):
        raise SetupError(f"containerd does not use {config['containerd']}", LOOK)
