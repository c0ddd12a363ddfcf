"""make logs on EKS: setup of nodes by on_create.sh, and the control plane's log."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.tools.answering_aws import AnsweringAws, Parameters, Refusal
from tests.tools.nodes.sleeping import only_sleep
from tests.tools.nodes.slurm_nodes import node, running_cluster
from tools.nodes import logs

NOW_MS = 1_795_000_000_000
MINUTE_MS = 60_000
GROUPS = [{"InstanceGroupName": "workers", "CurrentCount": 1, "TargetCount": 1}]
FIRST = node("workers", 1)
CONTROL_PLANE = "/aws/eks/esm2-eks/cluster"
NODES = "/aws/sagemaker/Clusters/esm2-eks/abc123def456"
SETUP = f"LifecycleConfig/workers/{FIRST['InstanceId']}"
BEGUN = "2026-11-21T10:00:00Z on_create: start on ip-10-0-0-31"
ERROR = "2026-11-21T10:00:02Z on_create: ERROR: container storage is still on the root volume"
FAILED = "2026-11-21T10:00:02Z on_create: failed; the lines above say where; log: /var/log/provision/x.log"
DONE = "2026-11-21T10:00:03Z on_create: done"
Show = Callable[..., str]


class Logs:
    """Log groups with streams of (minutes ago, line)."""

    def __init__(self, aws: AnsweringAws) -> None:
        self.groups: dict[str, dict[str, list[tuple[float, str]]]] = {CONTROL_PLANE: {}, NODES: {}}
        self.read: set[str] = set()
        for operation, answer in {
            "DescribeLogGroups": self._groups,
            "DescribeLogStreams": self._streams,
            "FilterLogEvents": self._events,
        }.items():
            aws.answer("logs", operation, answer)

    def _groups(self, parameters: Parameters) -> dict[str, Any]:
        names = [name for name in self.groups if name.startswith(parameters["logGroupNamePrefix"])]
        return {"logGroups": [{"logGroupName": name, "creationTime": 1} for name in names]}

    def _streams(self, parameters: Parameters) -> dict[str, Any]:
        """The service lists by one order or another, never by both."""
        assert ("orderBy" in parameters) != ("logStreamNamePrefix" in parameters)
        if parameters["logGroupName"] not in self.groups:
            raise Refusal("ResourceNotFoundException")
        streams = self.groups[parameters["logGroupName"]]
        found = [
            {
                "logStreamName": name,
                "creationTime": self._ms(lines[0][0]),
                "lastEventTimestamp": self._ms(lines[-1][0]),
            }
            for name, lines in streams.items()
        ]
        return {
            "logStreams": sorted(found, key=lambda stream: -int(str(stream["lastEventTimestamp"])))
        }

    def _events(self, parameters: Parameters) -> dict[str, Any]:
        self.read |= set(parameters["logStreamNames"])
        streams = self.groups[parameters["logGroupName"]]
        return {
            "events": [
                {
                    "logStreamName": name,
                    "eventId": f"{name} {minutes} {text}",
                    "timestamp": self._ms(minutes),
                    "message": f"{text}\n",
                }
                for name in parameters["logStreamNames"]
                for minutes, text in streams[name]
                if self._ms(minutes) >= parameters["startTime"]
            ]
        }

    @staticmethod
    def _ms(minutes_ago: float) -> int:
        return NOW_MS - int(minutes_ago * MINUTE_MS)


@pytest.fixture
def aws() -> AnsweringAws:
    return running_cluster("esm2-eks", GROUPS, [FIRST])


@pytest.fixture
def cloud(aws: AnsweringAws) -> Logs:
    return Logs(aws)


@pytest.fixture
def show(
    aws: AnsweringAws, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Show:
    def command(*arguments: str) -> str:
        monkeypatch.setattr(logs, "open_session", lambda region, profile: aws.session)
        monkeypatch.setattr(logs, "_now_ms", lambda: NOW_MS)
        monkeypatch.setattr(sys, "argv", ["logs", "--cluster", "clusters/eks.yaml", *arguments])
        assert logs.main() == 0
        return capsys.readouterr().out

    return command


@pytest.mark.parametrize(
    ("lines", "shown", "outcome"),
    [
        ([BEGUN, DONE], [BEGUN, DONE], "done"),
        ([BEGUN, ERROR, FAILED], [BEGUN, ERROR, FAILED], ERROR.partition("on_create: ")[2]),
        ([BEGUN, ERROR, FAILED, BEGUN, DONE], [BEGUN, DONE], "done"),
        ([BEGUN, "install: cannot stat", FAILED], [BEGUN, "install: cannot stat", FAILED], FAILED),
        ([BEGUN, DONE, BEGUN], [BEGUN], "not at its end yet"),
    ],
)
def test_the_newest_run_and_what_became_of_it(
    lines: list[str], shown: list[str], outcome: str, cloud: Logs, show: Show
) -> None:
    cloud.groups[NODES][SETUP] = [(10 - index, line) for index, line in enumerate(lines)]
    told = show(f"hyperpod-{FIRST['InstanceId']}").splitlines()
    assert told == [f"=== workers-1 {FIRST['InstanceId']}", *shown, f"=== workers-1: {outcome}", ""]


def test_the_control_plane_without_its_audit_log(cloud: Logs, show: Show) -> None:
    cloud.groups[CONTROL_PLANE] = {
        "kube-apiserver-0a1b": [(50, "long ago"), (20, "second")],
        "authenticator-2c3d": [(25, "access denied"), (10, "third")],
        "kube-apiserver-audit-4e5f": [(1, "GET /api/v1/pods")],
        "kube-scheduler-6a7b": [(3000, "of an instance that is gone")],
    }
    assert show("control-plane") == (
        "authenticator: access denied\nkube-apiserver: second\nauthenticator: third\n"
    )
    assert cloud.read == {"kube-apiserver-0a1b", "authenticator-2c3d"}
    assert show("control-plane", "--since", "1h").startswith("kube-apiserver: long ago\n")
    cloud.groups[CONTROL_PLANE] = {}
    assert "logged nothing in that time" in show("control-plane")


def test_following_the_control_plane(
    cloud: Logs, show: Show, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = cloud.groups[CONTROL_PLANE]["kube-scheduler-6a7b"] = [(5, "first")]
    rounds = iter([(4.5, "late"), (4, "second"), None])

    def wait(seconds: float) -> None:
        line = next(rounds)
        if line is None:
            raise KeyboardInterrupt
        stream.append(line)

    monkeypatch.setattr(logs, "time", only_sleep(wait))
    with pytest.raises(KeyboardInterrupt):
        show("control-plane", "--follow")
    told = capsys.readouterr().out
    assert told == "kube-scheduler: first\nkube-scheduler: late\nkube-scheduler: second\n"


def test_without_a_control_plane(cloud: Logs, show: Show) -> None:
    del cloud.groups[CONTROL_PLANE]
    with pytest.raises(
        ValueError, match=f"there is no log group {CONTROL_PLANE}; make deploy creates it"
    ):
        show("control-plane")


def test_on_slurm_it_is_a_node_like_any_other(
    aws: AnsweringAws, cloud: Logs, show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.groups["/aws/sagemaker/Clusters/esm2-slurm/abc123def456"] = {}
    with pytest.raises(ValueError, match="no node control-plane"):
        show("--cluster", "clusters/slurm.yaml", "control-plane")
