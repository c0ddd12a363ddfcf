"""A stage of a run as a job of Kubernetes: ``python -m tools.eks_submit STAGE --config RUN [key=value ...]``.

Prints the job and where its metrics and report are, as ``tools.submit`` does on Slurm. ``--to FOLDER`` writes
the manifests instead, for kubectl and for HyperPod's own command line (hyp).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from config.eks_cluster import EksCluster
from config.loader import load_eks_cluster
from tools.command_line import cluster_parser, run_command
from tools.eks_files import write_files
from tools.eks_image import commit_image, image_note
from tools.eks_request import EksWanted, bandwidth_job, pod_job
from tools.kind_of_job import active_jobs, kind_of
from tools.kubectl import Kubectl, Refused, open_kubectl
from tools.submit import code_revision
from workloads.esm2.config import load_config
from workloads.esm2.launch.job_file import STAGES
from workloads.esm2.launch.kubernetes_job import RUN_LABEL, STAGE_LABEL, PodJob, config_map, job_manifest

QUEUE_KIND = "localqueues.kueue.x-k8s.io"


def main() -> int:
    options = _options()
    cluster = load_eks_cluster(options.cluster)
    image = options.image or commit_image(cluster, options.profile)
    wanted = EksWanted(
        stage=options.stage,
        image=image,
        nodes=options.nodes,
        team=options.team,
        namespace=options.namespace,
        priority=options.priority,
        group=options.group,
        gpus_per_node=options.gpus_per_node,
        folder=options.folder,
        service_account=options.service_account,
        hang_seconds=options.hang_seconds,
        max_retries=options.max_retries,
    )
    job = _job(cluster, options.config, options.overrides, wanted)
    if options.to:
        for line in write_files(job, options.to):
            print(line)
        return 0
    if options.kubeconfig is None and (note := image_note(cluster, image, options.profile)):
        print(f"note: {note}")
    with open_kubectl(
        cluster, job.namespace, profile=options.profile, kubeconfig=options.kubeconfig
    ) as kubectl:
        check_place(kubectl, job)
        create(kubectl, job)
    is_run = job.stage != "bandwidth"
    found = {
        "job": job.name,
        "pods": f"{job.num_pods} in {job.namespace}, of {job.operator}'s operator",
        **(
            {"metrics": f"{job.run_dir}/metrics.jsonl"}
            if is_run
            else {"results": f"{job.run_dir}/bandwidth.json"}
        ),
        "report": f"{job.run_dir}/report.html",
    }
    for name, value in found.items():
        print(f"{name:8} {value}")
    target = f"TARGET=eks JOB={job.name}"
    print(f"next     make tail {target}, make status TARGET=eks, make fetch {target}")
    return 0


def _options() -> argparse.Namespace:
    parser = cluster_parser("Submit a stage of a run to the cluster's Kubernetes.")
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--config", type=Path, help="YAML file of the run; bandwidth has none")
    parser.add_argument("--image", help="by digest; the one of this commit in the cluster's repository")
    parser.add_argument("--nodes", help="how many; else the team's quota, or all of the group; 1 to evaluate")
    parser.add_argument("--team", help="whose quota, queue and namespace")
    parser.add_argument("--namespace", help="another one than the team's")
    parser.add_argument("--priority", help="one of the cluster file's priority_classes")
    parser.add_argument("--group", help="instance group; the first one with GPUs")
    parser.add_argument("--gpus-per-node", type=int, help="all that there are; 0 trains on CPUs")
    parser.add_argument("--folder", help="of runs, data and downloads on the shared file system")
    parser.add_argument("--service-account", help="whose rights to AWS the pods have (pod identity)")
    parser.add_argument(
        "--hang-seconds", type=int, default=EksWanted.hang_seconds, help="without an advance: it has hung"
    )
    parser.add_argument(
        "--max-retries", type=int, default=EksWanted.max_retries, help="of a job by its operator"
    )
    parser.add_argument("--kubeconfig", type=Path, help="instead of the caller's AWS credentials")
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="write the manifests there instead")
    parser.add_argument("overrides", nargs="*", metavar="section.field=value")
    # Options may stand between the overrides.
    return parser.parse_intermixed_args()


def _job(cluster: EksCluster, config: Path | None, overrides: list[str], wanted: EksWanted) -> PodJob:
    if wanted.stage == "bandwidth":
        if config:
            raise ValueError(f"--config: got {config}; the bandwidth job runs no training")
        return bandwidth_job(cluster, overrides, wanted, version=code_revision())
    if not config:
        raise ValueError(f"--config: name the YAML file of the run to {wanted.stage}")
    run = load_config(config, overrides)
    return pod_job(cluster, run, config.read_text(), overrides, wanted, version=code_revision())


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
        problems.append(f"--service-account: {job.service_account} is not in {job.namespace}")
    if job.stage == "train":
        same = active_jobs(kubectl, job.operator, {RUN_LABEL: job.run, STAGE_LABEL: "train"})
        problems += [
            f"run {job.run} is being trained by job {name}; make cancel TARGET=eks JOB={name}, or give "
            "another name="
            for name in same
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
        kubectl.create(manifest, dry_run=True)
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


if __name__ == "__main__":
    run_command(main)
