"""Status, logs and results of Kubernetes jobs."""

import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile
from time import sleep as pause
from typing import Any

from seqlm.launch.pod_job import (
    JOB_LABEL,
    RUN_DIR_ANNOTATION,
    RUN_LABEL,
    SAVE_SECONDS,
    STAGE_LABEL,
    Operator,
)
from tools.command_line import format_table
from tools.jobs.delivery import Delivery
from tools.jobs.kubernetes.job_state import (
    KINDS,
    has_begun,
    has_ended,
    list_jobs,
    pod_failures,
    pod_problems,
    queue_problems,
    state,
    waiting_problems,
)
from tools.json_output import publish
from tools.kubernetes.kubectl import Kubectl, Manifest, Refused

FETCH = Path(__file__).parents[1] / "fetch_run.sh"
POD_SECONDS = 3600
"""Time after which Kubernetes ends a pod that was not removed."""
START_SECONDS = 600
"""An image of this size takes minutes to a node that has not had it."""
LARGEST_MIB = 16 << 10
"""Largest model or table; ESM-2 3B has 11 GiB. It comes through the API server at tens of MB/s."""
STAYS = "it stays on the shared file system, where pods with the claim fsx read it (docs/training-on-eks.md)"
NUM_SHOWN = 5
"""Jobs of which status shows the log's last line."""
POLL_SECONDS = 5.0
FEW_PODS = 8
"""Most pods that are all followed, and listed one by one. Of more pods, the first and failing ones are."""
MOST_JOBS = 25
"""Most jobs that status lists without --all."""
MOST_PROBLEMS = 8
"""Most different problems that status prints for a job with many pods."""
MOST_FAILED_LOGS = 5
"""Most failed pods of a large job whose last lines tail prints."""
FAILED_LINES = 20
"""Last lines of a failed pod."""
FAILURE_SECONDS = 15.0
"""Time between two looks for failed pods; the list of 512 pods has megabytes."""
MOST_LOGS = 768
"""Containers that kubectl follows at once."""
CONTAINERS_PER_POD = 3
MOST_PODS = MOST_LOGS // CONTAINERS_PER_POD
"""Most pods that kubectl follows at once."""
YET_TO_START = "is waiting to start"
"""kubectl's message about a container that has not started."""


def find_job(kubectl: Kubectl, operator: Operator, name: str) -> dict[str, Any]:
    """Return the job of that name, or the last one.

    Raises:
        ValueError: if the job does not exist.
    """
    jobs = list_jobs(kubectl, operator, {JOB_LABEL: name} if name else {})
    if not jobs:
        which = f"no job {name} is" if name else "no job is"
        raise ValueError(
            f"{which} in namespace {kubectl.namespace}; make status TARGET=eks lists them"
        )
    return jobs[0]


def status(kubectl: Kubectl, operator: Operator, *, everything: bool) -> int:
    """Print the jobs, and the progress of the newest ones.

    Args:
        kubectl: access to the jobs' namespace.
        operator: operator of the jobs.
        everything: whether to print a line for each job and pod, also of many.
    """
    jobs = list_jobs(kubectl, operator, {})
    listed = jobs if everything else jobs[:MOST_JOBS]
    rows = [
        [
            job["metadata"]["name"],
            job["metadata"]["labels"][STAGE_LABEL],
            job["metadata"]["labels"][RUN_LABEL],
            state(job),
            _age(job["metadata"].get("creationTimestamp")),
        ]
        for job in listed
    ]
    publish(
        jobs=[
            {"job": name, "name": stage, "state": state_, "time": age, "nodes": None, "where": None}
            for name, stage, _, state_, age in rows
        ]
    )
    print(format_table(["JOB", "STAGE", "RUN", "STATE", "AGE"], rows))
    if len(jobs) > len(listed):
        print(f"and {len(jobs) - len(listed)} older jobs: make status TARGET=eks ARGS=--all")
    runs: list[dict[str, Any]] = []
    publish(runs=runs)
    for job in jobs[:NUM_SHOWN]:
        name = job["metadata"]["name"]
        print(f"\njob {name}  run {job['metadata']['labels'][RUN_LABEL]}  {state(job)}")
        waits = [] if has_ended(job) else queue_problems(kubectl, job)
        for message in [*_messages(job), *waits]:
            print(f"  {'why':8} {message}")
        pods = _pods(kubectl, name)
        if everything or len(pods) <= FEW_PODS:
            _print_pods(pods)
        else:
            _print_counts(pods)
        line = _last_line(kubectl, pods)
        if line:
            print(f"  {'log':8} {line}")
        runs.append(
            {
                "job": name,
                "run": job["metadata"]["labels"][RUN_LABEL],
                "state": state(job),
                "log": line or None,
                "metrics": None,
            }
        )
    return 0


def _print_pods(pods: Sequence[Mapping[str, Any]]) -> None:
    for pod in pods:
        where = pod["spec"].get("nodeName", "no node yet")
        print(f"  {'pod':8} {pod['metadata']['name']}  {pod['status'].get('phase', '')}  {where}")
        for problem in pod_problems(pod):
            print(f"  {'':8} {problem}")


def _print_counts(pods: Sequence[Mapping[str, Any]]) -> None:
    """Print the problems of many pods, each once with the number of its pods, and the pods by phase."""
    pods_of: dict[str, list[str]] = {}
    for pod in pods:
        for problem in dict.fromkeys(pod_problems(pod)):
            where = pod["spec"].get("nodeName", "no node yet")
            pods_of.setdefault(problem, []).append(f"{pod['metadata']['name']} on {where}")
    most_common = sorted(pods_of.items(), key=lambda item: len(item[1]), reverse=True)
    for problem, names in most_common[:MOST_PROBLEMS]:
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        print(f"  {'problem':8} {names[0]}{others}: {problem}")
    if len(most_common) > MOST_PROBLEMS:
        print(f"  {'':8} and {len(most_common) - MOST_PROBLEMS} more problems (ARGS=--all)")
    phases = Counter(pod["status"].get("phase", "Unknown") for pod in pods)
    counts = ", ".join(f"{number} {phase}" for phase, number in sorted(phases.items()))
    print(f"  {'pods':8} {len(pods)}: {counts}")


def _messages(job: Mapping[str, Any]) -> list[str]:
    """Return the messages of the job's current condition."""
    conditions = job.get("status", {}).get("conditions") or []
    return [
        found["message"]
        for found in conditions
        if found["type"] == state(job) and found.get("message")
    ]


def _age(created: str | None) -> str:
    if not created:
        return ""
    minutes = int((datetime.now(UTC) - datetime.fromisoformat(created)).total_seconds() // 60)
    hours = minutes // 60
    if hours >= 48:
        return f"{hours // 24}d{hours % 24}h"
    return f"{hours}h{minutes % 60}m" if hours else f"{minutes}m"


def _pods(kubectl: Kubectl, name: str) -> list[dict[str, Any]]:
    """Return the pods of a job by their numbers, so that the first one is number 0."""

    def order(pod: Mapping[str, Any]) -> list[tuple[int, str]]:
        parts = re.findall(r"\d+|\D+", pod["metadata"]["name"])
        return [(int(part), "") if part.isdigit() else (0, part) for part in parts]

    return sorted(kubectl.matching("pod", {JOB_LABEL: name}), key=order)


def _last_line(kubectl: Kubectl, pods: list[dict[str, Any]]) -> str:
    """Return the last log line of the first pod that has one, of the first few that have begun."""
    for pod in [pod for pod in pods if has_begun(pod)][:FEW_PODS]:
        try:
            lines = kubectl.run("logs", pod["metadata"]["name"], "--tail=1").strip().splitlines()
        except Refused:  # its container has not begun
            continue
        if lines:
            return lines[-1]
    return ""


def tail(kubectl: Kubectl, operator: Operator, name: str, *, everything: bool) -> int:
    """Print the logs of a job's pods until it ends, also of pods that replace others.

    Of a job with many pods, the first pod's log is printed, and the last lines of pods that fail.

    Args:
        kubectl: access to the job's namespace.
        operator: operator of the job.
        name: name of the job; empty for the last one.
        everything: whether to follow all pods, also many.

    Raises:
        ValueError: if the job does not exist, or has more pods than kubectl follows.
    """
    name = name or find_job(kubectl, operator, "")["metadata"]["name"]
    begun = False
    waiting = ""
    seen = ""
    failures = _Failures(kubectl, name)
    while True:
        jobs = list_jobs(kubectl, operator, {JOB_LABEL: name})
        pods = _pods(kubectl, name)
        if not jobs and not pods:
            if begun:
                print(f"job {name} is gone")
                return 0
            find_job(kubectl, operator, name)
        follows_all = everything or len(pods) <= FEW_PODS
        if follows_all and len(pods) > MOST_PODS:
            raise ValueError(
                f"job {name} has {len(pods)} pods, and kubectl follows at most {MOST_PODS}; without --all, "
                "tail follows the first pod and prints the last lines of pods that fail"
            )
        if not follows_all:
            failures.tell(pods)
        if any(has_begun(pod) for pod in (pods if follows_all else pods[:1])):
            # What pods said before they were followed is not lost, and nothing comes twice.
            lines = ["--tail=-1", f"--since-time={seen}"] if begun else ["--tail=50"]
            if not begun and not follows_all:
                print(
                    f"job {name} has {len(pods)} pods; this is the log of {pods[0]['metadata']['name']}, and "
                    "failures of the others",
                    flush=True,
                )
            begun = True
            if follows_all:
                selection = [f"--selector={JOB_LABEL}={name}", f"--max-log-requests={MOST_LOGS}"]
                _stream(kubectl, selection, lines)
            else:
                with failures:
                    _stream(kubectl, [pods[0]["metadata"]["name"]], lines)
            seen = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        elif jobs and waiting != (now := _why_not_begun(kubectl, jobs[0], pods)):
            waiting = now
            print(now, flush=True)
        if jobs and has_ended(jobs[0]):
            print(f"job {name}: {state(jobs[0])}")
            return 0
        pause(POLL_SECONDS)


def _stream(kubectl: Kubectl, selection: Sequence[str], lines: Sequence[str]) -> None:
    options = ["--follow", "--prefix", "--all-containers", "--ignore-errors"]
    kubectl.stream("logs", *selection, *options, *lines, say=_tell)


class _Failures:
    """Last lines of the pods of a large job that fail. In its context, a thread looks for them."""

    def __init__(self, kubectl: Kubectl, name: str) -> None:
        self._kubectl = kubectl
        self._name = name
        self._told: set[tuple[str, str]] = set()
        """Pods with their problems that have been printed."""
        self._num_logs = 0

    def __enter__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="failed-pods", daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(FAILURE_SECONDS):
            try:
                pods = _pods(self._kubectl, self._name)
            except ValueError:  # the server does not answer; the next look may succeed
                continue
            self.tell(pods)

    def tell(self, pods: Sequence[Mapping[str, Any]]) -> None:
        """Print new failures: the last lines of the first pods, and one line for all others."""
        new = []
        for pod in pods:
            problem = "; ".join(pod_failures(pod))
            key = (pod["metadata"]["name"], problem)
            if problem and key not in self._told:
                self._told.add(key)
                new.append(key)
        with_logs = new[: MOST_FAILED_LOGS - self._num_logs]
        self._num_logs += len(with_logs)
        for pod_name, problem in with_logs:
            print(f"[{pod_name}] {problem}", flush=True)
            for line in self._last_lines(pod_name):
                print(f"[{pod_name}] {line}", flush=True)
        others = new[len(with_logs) :]
        if others:
            pod_name, problem = others[0]
            more = f" and {len(others) - 1} more" if len(others) > 1 else ""
            print(f"[{pod_name}]{more}: {problem}", flush=True)

    def _last_lines(self, pod_name: str) -> list[str]:
        """Return the last lines of a failed pod; of a container that started again, those before it did."""
        for previous in (["--previous"], []):
            try:
                said = self._kubectl.run("logs", pod_name, f"--tail={FAILED_LINES}", *previous)
            except Refused:  # no container has ended before, or its log is gone
                continue
            if said.strip():
                return said.strip().splitlines()
        return []


def _tell(line: str) -> None:
    if YET_TO_START not in line:
        print(line, flush=True)


def _why_not_begun(kubectl: Kubectl, job: Mapping[str, Any], pods: list[dict[str, Any]]) -> str:
    problems = [f"  {why}" for why in queue_problems(kubectl, job)]
    of_pods = [f"  {pod['metadata']['name']}  {why}" for pod in pods for why in pod_problems(pod)]
    problems += of_pods[:FEW_PODS]
    if len(of_pods) > FEW_PODS:
        problems.append(f"  and {len(of_pods) - FEW_PODS} more: make status TARGET=eks")
    return "\n".join([f"the job has not begun: {state(job)}", *problems])


def cancel(kubectl: Kubectl, operator: Operator, job: Mapping[str, Any]) -> int:
    """Have its processes save and end: Kubernetes sends SIGTERM, and waits for them."""
    name = job["metadata"]["name"]
    kubectl.delete(KINDS[operator], name)
    if has_ended(job):
        print(f"job {name} had ended ({state(job)}) and is removed, with its pods' logs")
        return 0
    print(f"job {name} saves and ends within {SAVE_SECONDS} s: make tail TARGET=eks JOB={name}")
    print(
        f"at once, without saving: kubectl delete pod --selector={JOB_LABEL}={name} --grace-period=0 --force"
    )
    return 0


def fetch(kubectl: Kubectl, job: Mapping[str, Any], to: Path) -> int:
    """Bring report, results and metrics, and of models and tables those that are not too large.

    Raises:
        ValueError: if there is nothing to bring, it came damaged, or the pod does not start.
    """
    run_dir = job["metadata"]["annotations"][RUN_DIR_ANNOTATION]
    pod = fetch_pod(job)
    name = pod["metadata"]["name"]
    kubectl.create(pod)
    try:
        _wait(kubectl, name)
        program = [
            "bash",
            "-c",
            f'{FETCH.read_text()}fetch_run "$@"',
            FETCH.name,
            run_dir,
            str(LARGEST_MIB),
        ]
        with TemporaryFile() as archive:
            delivery = Delivery(archive)
            status = kubectl.stream("exec", name, "--", *program, say=delivery.take)
            return delivery.unpack(to, status=status, instead=STAYS)
    finally:
        kubectl.delete("pod", name)


def fetch_pod(job: Mapping[str, Any]) -> Manifest:
    """With the job's own image and nodes, which have it already, and next to nothing of them."""
    spec = job["spec"]
    replicas = spec.get("replicaSpecs") or list(spec["pytorchReplicaSpecs"].values())
    template = replicas[0]["template"]["spec"]
    [container] = template["containers"]
    sizes = {"cpu": "250m", "memory": "512Mi"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"fetch-{secrets.token_hex(4)}",
            "namespace": job["metadata"]["namespace"],
            "labels": {"app.kubernetes.io/name": "esm2-fetch"},
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": POD_SECONDS,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": template["securityContext"],
            "nodeSelector": template["nodeSelector"],
            "tolerations": template["tolerations"],
            "containers": [
                {
                    "name": "fetch",
                    "image": container["image"],
                    "command": ["sleep", str(POD_SECONDS)],
                    "securityContext": container["securityContext"],
                    "resources": {"requests": sizes, "limits": sizes},
                    "volumeMounts": [m for m in container["volumeMounts"] if m["name"] == "shared"],
                }
            ],
            "volumes": [volume for volume in template["volumes"] if volume["name"] == "shared"],
        },
    }


def _wait(kubectl: Kubectl, name: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        status = (kubectl.find("pod", name) or {}).get("status", {})
        if status.get("phase") == "Running":
            return
        bad = [
            why for found in status.get("containerStatuses", []) for why in waiting_problems(found)
        ]
        if status.get("phase") in ("Failed", "Succeeded"):
            bad.append(status.get("message", status["phase"]))
        if bad:
            raise ValueError(f"the pod that fetches does not start: {bad[0]}")
        time.sleep(2.0)
    raise ValueError(
        f"the pod that fetches has not started in {START_SECONDS} s: no node has room for it, or the image "
        "is long in coming; try again, kubectl describe pod says more"
    )
