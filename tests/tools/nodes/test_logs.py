"""make logs: what nodes said, by name, also of nodes and clusters that are gone."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.tools.answering_aws import AnsweringAws, Parameters, Refusal
from tests.tools.json_documents import RunJson
from tests.tools.nodes.sleeping import only_sleep
from tests.tools.nodes.slurm_nodes import group, node, running_cluster
from tools.nodes import logs

CLUSTER = "esm2-slurm"
LOG_GROUP = f"/aws/sagemaker/Clusters/{CLUSTER}/abc123def456"
NOW_MS = 1_795_000_000_000
HOUR_MS = 3_600_000
GROUPS = [group("controller", "Controller", 1), group("workers", "Compute", 2)]
CONTROLLER = node("controller", 1)
FIRST = node("workers", 1)
SECOND = node("workers", 2)
GONE = "i-0fffffffffffffff0"
IMAGE = "mounting /fsx"
BEGUN = (
    "2026-11-21T10:00:00Z bootstrap: esm2-slurm: worker ip-10-0-0-31 (10.0.0.31) of group workers"
)
DONE = "2026-11-21T10:00:09Z bootstrap: done: 9 steps, 4 changes, 0 warnings"
FAILED = "2026-11-21T10:00:09Z bootstrap: ERROR: step lustre-mount failed: it is no mount. What to do: look"
LAST = "on_init_complete: failed; the lines above say which step, and what to do"


class Logs:
    """CloudWatch Logs of one log group: lines by stream, each at its time in milliseconds."""

    def __init__(self, aws: AnsweringAws) -> None:
        self.streams: dict[str, list[tuple[int, str]]] = {}
        self.groups = {LOG_GROUP: 1}
        self.asked: set[str] = set()
        for operation, answer in {
            "DescribeLogGroups": self._groups,
            "DescribeLogStreams": self._streams,
            "FilterLogEvents": self._events,
        }.items():
            aws.answer("logs", operation, answer)

    def say(self, group_name: str, instance_id: str, *lines: str, hours_ago: float = 1) -> None:
        start = NOW_MS - int(hours_ago * HOUR_MS)
        stream = self.streams.setdefault(f"LifecycleConfig/{group_name}/{instance_id}", [])
        stream += [(start + index, line) for index, line in enumerate(lines)]

    def _groups(self, parameters: Parameters) -> dict[str, Any]:
        prefix = parameters["logGroupNamePrefix"]
        found = [name for name in self.groups if name.startswith(prefix)]
        return {
            "logGroups": [
                {"logGroupName": name, "creationTime": self.groups[name]} for name in found
            ]
        }

    def _streams(self, parameters: Parameters) -> dict[str, Any]:
        assert parameters["logGroupName"] in self.groups
        self.asked.add(parameters["logGroupName"])
        assert parameters["logStreamNamePrefix"] == "LifecycleConfig/"
        found = [
            {
                "logStreamName": name,
                "creationTime": events[0][0],
                "lastEventTimestamp": events[-1][0],
            }
            for name, events in self.streams.items()
        ]
        return {"logStreams": found}

    def _events(self, parameters: Parameters) -> dict[str, Any]:
        names = parameters.get("logStreamNames")
        if names is None:
            prefix = parameters["logStreamNamePrefix"]
            names = [name for name in self.streams if name.startswith(prefix)]
        found = [
            {
                "logStreamName": name,
                "eventId": f"{name}{time}",
                "timestamp": time,
                "message": f"{text}\n",
            }
            for name in names
            for time, text in self.streams[name]
            if time >= parameters["startTime"]
        ]
        return {"events": sorted(found, key=lambda event: event["timestamp"])}


@pytest.fixture
def aws() -> AnsweringAws:
    return running_cluster(CLUSTER, GROUPS, [CONTROLLER, FIRST, SECOND])


@pytest.fixture
def cloud(aws: AnsweringAws) -> Logs:
    return Logs(aws)


Show = Callable[..., str]


@pytest.fixture
def show(
    aws: AnsweringAws, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Show:
    def command(*arguments: str) -> str:
        monkeypatch.setattr(logs, "open_session", lambda region, profile: aws.session)
        monkeypatch.setattr(logs, "_now_ms", lambda: NOW_MS)
        monkeypatch.setattr(sys, "argv", ["logs", "--cluster", "clusters/slurm.yaml", *arguments])
        assert logs.main() == 0
        return capsys.readouterr().out

    return command


def test_all_nodes_by_name_the_last_one_at_the_end(cloud: Logs, show: Show) -> None:
    cloud.say("workers", FIRST["InstanceId"], IMAGE, BEGUN, DONE, hours_ago=1)
    cloud.say("controller", CONTROLLER["InstanceId"], IMAGE, BEGUN, DONE, hours_ago=2)
    assert show() == (
        f"=== controller-1 {CONTROLLER['InstanceId']}\n{IMAGE}\n{BEGUN}\n{DONE}\n"
        "=== controller-1: done: 9 steps, 4 changes, 0 warnings\n\n"
        f"=== workers-1 {FIRST['InstanceId']}\n{IMAGE}\n{BEGUN}\n{DONE}\n"
        "=== workers-1: done: 9 steps, 4 changes, 0 warnings\n\n"
    )


def test_logs_as_json(
    cloud: Logs, aws: AnsweringAws, monkeypatch: pytest.MonkeyPatch, run_json: RunJson
) -> None:
    cloud.say("workers", FIRST["InstanceId"], IMAGE, BEGUN, DONE, hours_ago=1)
    cloud.say("controller", CONTROLLER["InstanceId"], IMAGE, BEGUN, hours_ago=2)
    monkeypatch.setattr(logs, "open_session", lambda region, profile: aws.session)
    monkeypatch.setattr(logs, "_now_ms", lambda: NOW_MS)
    result = run_json(logs.main, "--cluster", "clusters/slurm.yaml")["result"]
    states = {node["name"]: node["state"] for node in result["nodes"]}
    assert states == {"controller-1": "unfinished", "workers-1": "done"}
    assert DONE in result["lines"]
    followed = run_json(logs.main, "--cluster", "clusters/slurm.yaml", "--follow")
    assert followed["exit_status"] == 2 and "--follow" in followed["error"]


def test_a_node_of_many(cloud: Logs, show: Show) -> None:
    for each in (CONTROLLER, FIRST, SECOND):
        cloud.say(each["InstanceGroupName"], each["InstanceId"], f"this is {each['InstanceId']}")
    for wanted in ("workers-2", SECOND["InstanceId"], "ip-10-0-119-2"):
        output = show(wanted)
        assert f"this is {SECOND['InstanceId']}\n" in output
        assert output.count("this is") == 1
    assert show("workers").count("this is") == 2


@pytest.mark.parametrize("last", [LAST, f"{LAST}\nlifecycle script ended with 1"])
def test_of_several_runs_the_newest(cloud: Logs, show: Show, last: str) -> None:
    cloud.say(
        "workers",
        FIRST["InstanceId"],
        IMAGE,
        BEGUN,
        DONE,
        "said between",
        BEGUN,
        FAILED,
        *last.split("\n"),
    )
    assert show() == (
        f"=== workers-1 {FIRST['InstanceId']}\n{BEGUN}\n{FAILED}\n{last}\n"
        "=== workers-1: ERROR: step lustre-mount failed: it is no mount. What to do: look\n\n"
    )


def test_a_run_in_progress_is_the_newest(cloud: Logs, show: Show) -> None:
    cloud.say("workers", FIRST["InstanceId"], BEGUN, FAILED, LAST, BEGUN)
    assert show().splitlines()[1:3] == [BEGUN, "=== workers-1: not at its end yet"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "ERROR: pip's dependency resolver does not take into account all packages",
            "shipping logs",
        ),
        (
            IMAGE,
            "2026-11-21T11:00:00Z apply: ip-10-0-0-31: NOT DONE: ERROR: step accounting failed",
        ),
    ],
    ids=["the image's", "another node's"],
)
def test_errors_of_others_are_not_the_outcome(
    cloud: Logs, show: Show, before: str, after: str
) -> None:
    cloud.say("controller", CONTROLLER["InstanceId"], before, BEGUN, DONE, after)
    assert show().splitlines()[-2] == "=== controller-1: done: 9 steps, 4 changes, 0 warnings"


def test_a_run_that_fails_without_a_message_has_failed(cloud: Logs, show: Show) -> None:
    cloud.say("workers", FIRST["InstanceId"], BEGUN, DONE, BEGUN, "Killed", LAST)
    assert show().splitlines()[-2] == f"=== workers-1: {LAST}"
    assert show("--since", "1d").splitlines()[-2] == f"=== workers-1: {LAST}"


def test_since_shows_all_from_then(cloud: Logs, show: Show) -> None:
    cloud.say("workers", FIRST["InstanceId"], "old", DONE, hours_ago=30)
    cloud.say("workers", FIRST["InstanceId"], BEGUN, DONE, hours_ago=20)
    cloud.say("workers", FIRST["InstanceId"], BEGUN, "the third", hours_ago=1)
    output = show("--since", "1d")
    assert "old" not in output and output.count(BEGUN) == 2
    assert "the third" in show("--since", "90m") and show("--since", "90m").count(BEGUN) == 1


def test_errors_stand_out_on_a_terminal_alone(
    cloud: Logs, show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.say("workers", FIRST["InstanceId"], BEGUN, FAILED, LAST)
    assert "\x1b" not in show()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    output = show()
    assert f"\x1b[1;31m{FAILED}\x1b[0m\n" in output
    assert f"\n{BEGUN}\n" in output


def test_nodes_that_failed_and_are_gone(aws: AnsweringAws, cloud: Logs, show: Show) -> None:
    """A creation that fails leaves a cluster without nodes; those that are replaced are not listed either."""
    cloud.say("workers", GONE, BEGUN, FAILED, LAST, hours_ago=3)
    cloud.say("workers", "i-0eeeeeeeeeeeeeee0", "long ago", hours_ago=72)
    for nodes in ([], [CONTROLLER, FIRST, SECOND]):
        aws.answer("sagemaker", "ListClusterNodes", {"ClusterNodeSummaries": nodes})
        output = show()
        assert output.startswith(f"=== workers {GONE} (gone)\n{BEGUN}\n{FAILED}\n")
        assert "long ago" not in output
        assert FAILED in show(GONE) and FAILED in show("workers")
    assert "long ago" in show("i-0eeeeeeeeeeeeeee0")


def test_a_cluster_that_is_gone(aws: AnsweringAws, cloud: Logs, show: Show) -> None:
    aws.answer("sagemaker", "DescribeCluster", Refusal("ResourceNotFound"))
    aws.answer("sagemaker", "ListClusters", {"ClusterSummaries": []})
    # The last one is where CloudWatch's agent writes.
    times = {"b": 2, "a": 1, "nodes": 3}
    cloud.groups = {
        f"/aws/sagemaker/Clusters/{CLUSTER}/{name}": time for name, time in times.items()
    }
    cloud.say("workers", GONE, FAILED)
    assert FAILED in show()
    assert cloud.asked == {f"/aws/sagemaker/Clusters/{CLUSTER}/b"}


def test_no_log_group_yet(cloud: Logs, show: Show) -> None:
    cloud.groups = {f"/aws/sagemaker/Clusters/{CLUSTER}/earlier00000": 1}
    with pytest.raises(
        ValueError, match=f"there is no log group {LOG_GROUP} yet; HyperPod creates it"
    ):
        show()


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("workers-2", "workers-2 has logged nothing yet; events arrive a minute or two late"),
        ("gpu", f"no node gpu; there are logs of workers-1, {GONE} of workers, gone"),
    ],
)
def test_a_node_without_a_log(cloud: Logs, show: Show, wanted: str, message: str) -> None:
    cloud.say("workers", FIRST["InstanceId"], DONE)
    cloud.say("workers", GONE, DONE)
    with pytest.raises(ValueError, match=message):
        show(wanted)


@pytest.mark.parametrize("text", ["2", "2w", "h", "-1h", "1.5h"])
def test_since_takes_a_number_and_a_unit(
    show: Show, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    with pytest.raises(SystemExit):
        show(f"--since={text}")
    assert "a number and m, h or d, such as 30m, 2h, 1d" in capsys.readouterr().err


def test_following_tells_what_comes_once_and_of_new_nodes(
    aws: AnsweringAws,
    cloud: Logs,
    show: Show,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cloud.say("workers", FIRST["InstanceId"], BEGUN, hours_ago=0.1)
    rounds = iter(range(3))

    def wait(seconds: float) -> None:
        turn = next(rounds, None)
        if turn == 0:
            cloud.say("workers", FIRST["InstanceId"], FAILED, hours_ago=0.05)
        elif turn == 1:
            new = node("workers", 3)
            aws.answer(
                "sagemaker", "ListClusterNodes", {"ClusterNodeSummaries": [FIRST, SECOND, new]}
            )
            cloud.say("workers", new["InstanceId"], BEGUN, hours_ago=0.04)
        elif turn is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(logs, "time", only_sleep(wait))
    with pytest.raises(KeyboardInterrupt):
        show("--follow")
    told = capsys.readouterr().out.partition("not at its end yet\n\n")[2]
    assert told == f"workers-1: {FAILED}\nworkers-3: {BEGUN}\n"


def _many(aws: AnsweringAws, cloud: Logs, count: int, *, failed: int) -> list[dict[str, Any]]:
    """Workers that have ended their setup, of which the first have failed."""
    nodes = [node("workers", number) for number in range(1, count + 1)]
    aws.answer("sagemaker", "ListClusterNodes", {"ClusterNodeSummaries": nodes})
    for number, described in enumerate(nodes):
        last = FAILED if number < failed else DONE
        cloud.say("workers", described["InstanceId"], BEGUN, last)
    return nodes


def test_many_nodes_are_counts_and_the_first_failed_ones(
    aws: AnsweringAws, cloud: Logs, show: Show
) -> None:
    nodes = _many(aws, cloud, 1000, failed=30)
    cloud.say("workers", nodes[-1]["InstanceId"], BEGUN, hours_ago=0.5)
    lines = show().splitlines()
    assert lines[0] == "1000 node(s): 969 done, 30 failed, 1 not at their end yet"
    error = FAILED.partition("bootstrap: ")[2]
    assert lines[1:21] == [f"  workers-{number}: {error}" for number in range(1, 21)]
    assert lines[21] == "  and 10 more failed nodes"
    assert len(lines) == 23 and "make logs NODE=<node>" in lines[22]
    assert len(show("--all").splitlines()) == 1002
    assert FAILED in show("workers-7") and BEGUN in show("workers-7")


def test_up_to_twenty_nodes_have_their_whole_logs(
    aws: AnsweringAws, cloud: Logs, show: Show
) -> None:
    _many(aws, cloud, 20, failed=1)
    assert show().count(BEGUN) == 20
    assert BEGUN not in show("--all")


def test_the_events_of_many_nodes_are_compared_once_each(
    aws: AnsweringAws, cloud: Logs, show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = {"stream": 0}

    class Counted(logs.Event):
        def __getattribute__(self, name: str) -> Any:
            if name == "stream":
                reads["stream"] += 1
            return super().__getattribute__(name)

    real = logs.read_events

    def counted(*arguments: Any, **named: Any) -> Any:
        for event in real(*arguments, **named):
            yield Counted(event.stream, event.id, event.time_ms, event.text)

    monkeypatch.setattr(logs, "read_events", counted)
    per_event = []
    for count in (50, 500):
        cloud.streams.clear()
        _many(aws, cloud, count, failed=0)
        reads["stream"] = 0
        show()
        per_event.append(reads["stream"] / (2 * count))
    assert per_event[0] == per_event[1] == 1


@pytest.mark.parametrize("wanted", ["workers-7", "workers"])
def test_the_nodes_are_searched_as_often_for_many_logs(
    wanted: str, aws: AnsweringAws, cloud: Logs, show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[str] = []
    search = logs.nodes_meant

    def counted(nodes: logs.ClusterNodes, name: str) -> tuple[Any, ...]:
        searched.append(name)
        return search(nodes, name)

    monkeypatch.setattr(logs, "nodes_meant", counted)
    for count in (30, 300):
        cloud.streams.clear()
        _many(aws, cloud, count, failed=0)
        searched.clear()
        show(wanted)
        assert searched == [wanted], count


def test_a_name_without_a_log_lists_few_of_many(aws: AnsweringAws, cloud: Logs, show: Show) -> None:
    _many(aws, cloud, 300, failed=0)
    with pytest.raises(ValueError, match=r"workers-10, and 290 more \(ARGS=--all lists them\)$"):
        show("gpu")


def test_each_look_of_following_takes_as_many_calls_for_many_nodes(
    aws: AnsweringAws, cloud: Logs, show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    for count in (10, 1000):
        cloud.streams.clear()
        _many(aws, cloud, count, failed=0)
        rounds = iter(range(3))
        at_start: list[int] = []

        def wait(seconds: float, rounds: Any = rounds, at_start: list[int] = at_start) -> None:
            at_start.append(len(aws.calls))
            if next(rounds, None) is None:
                raise KeyboardInterrupt

        monkeypatch.setattr(logs, "time", only_sleep(wait))
        with pytest.raises(KeyboardInterrupt):
            show("--follow")
        made.append(Counter(aws.calls[at_start[0] : at_start[-1]]))
    # Every answer has two pages here.
    assert made[0] == made[1] == {("logs", "FilterLogEvents"): 2 * 3}
