"""Stand-in for HyperPod's operator, which gives each agent its rank and polls its state."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.error import URLError

POLL_SECONDS = 0.5
FIRST_PORT = 1024


def wait_for(
    ports: Sequence[int], wanted: Sequence[str], *, seconds: float, alive: Callable[[], bool]
) -> str:
    """The first of the wanted states that every agent is in.

    Raises:
        TimeoutError: if that does not come, or the agents have ended.
    """
    deadline = time.monotonic() + seconds
    states: list[str] = []
    while time.monotonic() < deadline and alive():
        states = [status(port) for port in ports]
        for state in wanted:
            if set(states) == {state}:
                return state
        time.sleep(POLL_SECONDS)
    raise TimeoutError(f"agents are {states}, wanted {wanted}")


def status(port: int) -> str:
    """Return the state of an agent; empty while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=5) as answer:
            return str(json.load(answer)["status"])
    except (URLError, ConnectionError, TimeoutError):
        return ""


def start(ports: Sequence[int], master_port: int, manifest: Mapping[str, Any]) -> None:
    """Give agents their identity, with the job's own rules for logs."""
    rules = manifest["spec"]["runPolicy"].get("logMonitoringConfiguration")
    for rank, port in enumerate(ports):
        body = {
            "rank": rank,
            "nnodes": len(ports),
            "faultCount": 0,
            "master_addr": "127.0.0.1",
            "master_port": master_port,
            "log_monitoring_configuration": rules,
        }
        post(port, "start", body)


def stop(ports: Sequence[int], seconds: int) -> None:
    """Before another number of pods: the processes are to save and end, for which they have this time."""
    for port in ports:
        post(port, "stop", {"is_graceful": True, "timeout": seconds})


def post(port: int, what: str, body: Mapping[str, Any] | None = None) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/{what}",
        data=json.dumps(body or {}).encode(),
        headers={"Content-Type": "application/json"},
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=30):
        pass
