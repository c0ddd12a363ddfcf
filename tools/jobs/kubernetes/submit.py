"""Create a job of Kubernetes, once the cluster is found to have what it needs."""

from __future__ import annotations

from typing import Any

from tools.jobs.kubernetes.job_state import active_jobs, kind_of
from tools.kubernetes.kubectl import Kubectl, Refused
from workloads.launch.kubernetes_job import config_map, job_manifest
from workloads.launch.pod_job import RUN_LABEL, PodJob
from workloads.stages import STAGES

QUEUE_KIND = "localqueues.kueue.x-k8s.io"


def check_place(kubectl: Kubectl, job: PodJob) -> None:
    """Whether the cluster has what the job needs, and nothing that is in its way.

    Raises:
        ValueError: listing what is missing.
    """
    if kubectl.find("namespace", job.namespace) is None:
        comes = "with the team's quota (make deploy)" if job.queue else "with the cluster (make deploy)"
        raise ValueError(f"namespace {job.namespace} is not there; it comes {comes}, or name another one")
    problems = []
    claim = kubectl.find("persistentvolumeclaim", job.claim)
    phase = claim.get("status", {}).get("phase") if claim else None
    if phase != "Bound":
        problems.append(
            f"claim {job.claim}: {phase or 'not there'}; pods get the Lustre file system by it. make deploy "
            "makes it, kubectl describe pvc says why it is not bound"
        )
    if job.queue and kubectl.find(QUEUE_KIND, job.queue) is None:
        problems.append(f"queue {job.queue} is not there; it comes with the team's quota (make deploy)")
    if job.service_account and kubectl.find("serviceaccount", job.service_account) is None:
        problems.append(
            f"service account {job.service_account} is not in {job.namespace}; make deploy makes the one of "
            "jobs, --service-account names another"
        )
    training = [name for name, stage in STAGES.items() if stage.trains]
    if job.stage in training:
        problems += [
            f"run {job.run} is being trained by job {name}; make cancel TARGET=eks JOB={name}, or give "
            "another name="
            for name in active_jobs(kubectl, job.operator, {RUN_LABEL: job.run}, stages=training)
        ]
    if problems:
        raise ValueError("\n".join(problems))


def create(kubectl: Kubectl, job: PodJob) -> None:
    """Make the job and its run file, which goes when the job goes.

    Raises:
        ValueError: if the cluster refuses one of them; then neither is there.
    """
    manifest, kind = job_manifest(job), kind_of(job.operator)
    try:
        if unknown := dropped(manifest["spec"], kubectl.create(manifest, dry_run=True)["spec"], "spec"):
            raise Refused(
                f"{manifest['kind']} has no {', '.join(unknown)} there; the training operator is of another "
                "version than the one that make deploy brings"
            )
        uid = kubectl.create(manifest)["metadata"]["uid"]
    except Refused as error:
        raise ValueError(f"Kubernetes refuses the job: {error}") from None
    owner = {"apiVersion": manifest["apiVersion"], "kind": manifest["kind"], "name": job.name, "uid": uid}
    run_file = config_map(job)
    run_file["metadata"]["ownerReferences"] = [owner]
    try:
        kubectl.create(run_file)
    except Refused as error:
        kubectl.delete(kind, job.name)
        raise ValueError(f"Kubernetes refuses the run file, and the job is gone again: {error}") from None


def dropped(sent: Any, kept: Any, path: str) -> list[str]:
    """Fields that Kubernetes has left out without a word, as it does those that a kind has not."""
    if isinstance(sent, list) and isinstance(kept, list) and len(sent) == len(kept):
        pairs = [(f"{path}[{n}]", *pair) for n, pair in enumerate(zip(sent, kept, strict=True))]
    elif isinstance(sent, dict) and isinstance(kept, dict):
        # What is empty is as good as not there.
        if lost := [f"{path}.{name}" for name, value in sent.items() if value and name not in kept]:
            return lost
        pairs = [(f"{path}.{name}", value, kept.get(name)) for name, value in sent.items()]
    else:
        return []
    return [name for inner, one, other in pairs for name in dropped(one, other, inner)]
