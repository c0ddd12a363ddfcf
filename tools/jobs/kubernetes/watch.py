"""Status, logs and results of Kubernetes jobs."""

import secrets
import time
from collections.abc import Mapping
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
    pod_problems,
    queue_problems,
    state,
    waiting_problems,
)
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
MOST_LOGS = 768
"""Containers that kubectl follows at once: a pod has three."""
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


def status(kubectl: Kubectl, operator: Operator) -> int:
    """Print the jobs, and the progress of the newest ones."""
    jobs = list_jobs(kubectl, operator, {})
    rows = [
        [
            job["metadata"]["name"],
            job["metadata"]["labels"][STAGE_LABEL],
            job["metadata"]["labels"][RUN_LABEL],
            state(job),
            _age(job["metadata"].get("creationTimestamp")),
        ]
        for job in jobs
    ]
    print(format_table(["JOB", "STAGE", "RUN", "STATE", "AGE"], rows))
    for job in jobs[:NUM_SHOWN]:
        name = job["metadata"]["name"]
        print(f"\njob {name}  run {job['metadata']['labels'][RUN_LABEL]}  {state(job)}")
        waits = [] if has_ended(job) else queue_problems(kubectl, job)
        for message in [*_messages(job), *waits]:
            print(f"  {'why':8} {message}")
        pods = _pods(kubectl, name)
        for pod in pods:
            where = pod["spec"].get("nodeName", "no node yet")
            print(
                f"  {'pod':8} {pod['metadata']['name']}  {pod['status'].get('phase', '')}  {where}"
            )
            for problem in pod_problems(pod):
                print(f"  {'':8} {problem}")
        if line := _last_line(kubectl, pods):
            print(f"  {'log':8} {line}")
    return 0


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
    return sorted(
        kubectl.matching("pod", {JOB_LABEL: name}), key=lambda pod: str(pod["metadata"]["name"])
    )


def _last_line(kubectl: Kubectl, pods: list[dict[str, Any]]) -> str:
    """Return the last log line of the first pod that has one."""
    for pod in pods:
        try:
            lines = kubectl.run("logs", pod["metadata"]["name"], "--tail=1").strip().splitlines()
        except Refused:  # its container has not begun
            continue
        if lines:
            return lines[-1]
    return ""


def tail(kubectl: Kubectl, operator: Operator, name: str) -> int:
    """The logs of a job's pods, until it ends; pods that come in place of others are followed as well."""
    name = name or find_job(kubectl, operator, "")["metadata"]["name"]
    begun, waiting, seen = False, "", ""
    while True:
        jobs = list_jobs(kubectl, operator, {JOB_LABEL: name})
        pods = _pods(kubectl, name)
        if not jobs and not pods:
            if begun:
                print(f"job {name} is gone")
                return 0
            find_job(kubectl, operator, name)
        if any(has_begun(pod) for pod in pods):
            # What pods said before they were followed is not lost, and nothing comes twice.
            lines = ["--tail=-1", f"--since-time={seen}"] if begun else ["--tail=50"]
            begun = True
            kubectl.stream(
                "logs",
                f"--selector={JOB_LABEL}={name}",
                "--follow",
                "--prefix",
                "--all-containers",
                "--ignore-errors",
                f"--max-log-requests={MOST_LOGS}",
                *lines,
                say=_tell,
            )
            seen = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        elif jobs and waiting != (now := _why_not_begun(kubectl, jobs[0], pods)):
            waiting = now
            print(now, flush=True)
        if jobs and has_ended(jobs[0]):
            print(f"job {name}: {state(jobs[0])}")
            return 0
        pause(POLL_SECONDS)


def _tell(line: str) -> None:
    if YET_TO_START not in line:
        print(line, flush=True)


def _why_not_begun(kubectl: Kubectl, job: Mapping[str, Any], pods: list[dict[str, Any]]) -> str:
    problems = [f"  {why}" for why in queue_problems(kubectl, job)]
    problems += [f"  {pod['metadata']['name']}  {why}" for pod in pods for why in pod_problems(pod)]
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
