"""Jobs of Kubernetes, by kubectl from anywhere."""

import argparse
import hashlib
import re
import secrets
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from config.eks_cluster import EksCluster
from config.resource_names import (
    JOB_SERVICE_ACCOUNT,
    LUSTRE_CLAIM,
    NODE_MEMORY_CLAIM,
    TRAINING_UID,
    job_namespaces,
)
from seqlm.launch.kubernetes_job import config_map, job_manifest
from seqlm.launch.pod_job import (
    RUN_LABEL,
    STAGE_LABEL,
    PodJob,
    PodPlacement,
    PodResources,
    RunFiles,
)
from seqlm.runs.stages import STAGES
from tools.images.build import DEFAULT_FRAMEWORK, NEURON
from tools.jobs.checks import listed
from tools.jobs.kubernetes import placement, watch
from tools.jobs.kubernetes.files import write_files
from tools.jobs.kubernetes.image import FILL_IN, commit_image, image_note, image_or_placeholder
from tools.jobs.kubernetes.job_state import KINDS, has_ended, list_jobs, place_problems
from tools.jobs.kubernetes.placement import EksWanted
from tools.jobs.scheduler import Scheduler, print_found
from tools.jobs.work import NamedRun, Order, work_of, work_problems
from tools.json_output import publish, publish_lines
from tools.kubernetes.kubectl import Kubectl, Refused, add_kubeconfig_option, open_kubectl
from tools.nodes.activity import print_activity
from tools.training_plans.used_plans import print_plans

MAX_NAME = 40
"""Operators append to a job's name, and the result is a label with 63 characters at most."""
MAX_LABEL = 63
LONGEST_STAGE = max(map(len, STAGES))


class KubernetesJobs(Scheduler):
    nodes_help = (
        "number or range of nodes (2-3); by default the team's quota or the group to train, else 1"
    )
    image_help = "image by digest; by default that of this commit"
    hang_seconds = EksWanted.hang_seconds

    def __init__(self, cluster: EksCluster) -> None:
        self._cluster = cluster
        self._operator = cluster.training_operator

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--team", help="team of the jobs: its quota, queue and namespace")
        parser.add_argument("--namespace", help="namespace; by default the team's")
        add_kubeconfig_option(parser)

    def add_follow_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--all",
            action="store_true",
            help="status: a line for each job and pod; tail: the logs of all pods, "
            f"at most {watch.MOST_PODS}",
        )

    def add_submit_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--folder", help="folder of runs, data and downloads on the shared file system"
        )
        parser.add_argument("--priority", help="one of the cluster file's priority_classes")
        parser.add_argument(
            "--preferred-topology",
            metavar="LABEL",
            help="prefer nodes that share this topology label, as with hyp",
        )
        parser.add_argument(
            "--required-topology",
            metavar="LABEL",
            help="wait for nodes that share this topology label",
        )
        parser.add_argument("--group", help="instance group; by default the first one with GPUs")
        parser.add_argument(
            "--gpu-slice",
            metavar="PROFILE",
            help="run on one slice of a GPU, for example 1g.10gb, of a group with this mig_profile",
        )
        parser.add_argument(
            "--service-account", help="service account with the pods' permissions in AWS"
        )
        parser.add_argument(
            "--max-retries",
            type=int,
            help="restarts by the operator; by default 10 for stages that resume",
        )
        parser.add_argument(
            "--to",
            type=Path,
            metavar="FOLDER",
            help="folder for the manifests, instead of submitting",
        )

    def submit(self, run: NamedRun | None, options: argparse.Namespace, *, version: str) -> int:
        """Submit a stage, or with ``--to`` write its manifests for kubectl and HyperPod's hyp."""
        cluster = self._cluster
        framework = framework_of(cluster, options.stage, options.group, gpu_slice=options.gpu_slice)
        find_image = image_or_placeholder if options.to else commit_image
        image = options.image or find_image(cluster, options.profile, framework)
        wanted = EksWanted.of(options, image=image)
        job = pod_job(cluster, run, options.overrides, wanted, version=version)
        if options.to:
            written = list(write_files(job, options.to))
            publish(written=written)
            for line in written:
                print(line)
            if image.startswith(FILL_IN):
                print(
                    f"first    replace {image} in these files by the image that `make push` prints"
                )
            return 0
        if options.kubeconfig is None and (note := image_note(cluster, image, options.profile)):
            print(f"note: {note}")
        with self._kubectl(options, job.namespace) as kubectl:
            check_place(kubectl, job)
            create(kubectl, job)
        size = f"{job.min_pods} to {job.num_pods}" if job.is_elastic else str(job.num_pods)
        target = f"TARGET=eks JOB={job.name}"
        print_found(
            {
                "job": job.name,
                "pods": f"{size} in {job.namespace}, of {job.operator}'s operator",
                **STAGES[job.stage].results(job.files.run_dir, job.files.output),
            },
            follow=(f"make tail {target}", "make status TARGET=eks", f"make fetch {target}"),
        )
        return 0

    def follow_up(self, command: str, options: argparse.Namespace) -> int:
        if not options.namespace:
            for problem in placement.team_problems(self._cluster, options.team):
                raise ValueError(problem)
        team = placement.chosen_team(self._cluster, options.team)
        namespace = placement.chosen_namespace(options.namespace, team)
        with self._kubectl(options, namespace) as kubectl:
            match command:
                case "status":
                    status = watch.status(kubectl, self._operator, everything=options.all)
                    # A kubeconfig of its own is for users without AWS credentials.
                    if options.kubeconfig is None:
                        print_activity(self._cluster, options.profile)
                        print_plans(self._cluster, options.profile)
                    return status
                case "tail":
                    status = watch.tail(
                        kubectl, self._operator, options.job, everything=options.all
                    )
                    publish_lines("lines")
                    return status
            job = watch.find_job(kubectl, self._operator, options.job)
            if command == "cancel":
                status = watch.cancel(kubectl, self._operator, job)
                publish_lines("lines")
                return status
            return watch.fetch(kubectl, job, options.to)

    def _kubectl(
        self, options: argparse.Namespace, namespace: str
    ) -> AbstractContextManager[Kubectl]:
        return open_kubectl(
            self._cluster, namespace, profile=options.profile, kubeconfig=options.kubeconfig
        )


def framework_of(
    cluster: EksCluster, stage: str, group: str | None, *, gpu_slice: str | None = None
) -> str:
    """Return the framework of the image that a stage needs on its nodes, a key of ``FRAMEWORKS``."""
    groups = placement.groups_of_type(cluster, group, gpu_slice)
    is_neuron = bool(groups) and groups[0].hardware.is_neuron
    return STAGES[stage].framework or (NEURON if is_neuron else DEFAULT_FRAMEWORK)


def check_place(kubectl: Kubectl, job: PodJob) -> None:
    """Check that the cluster has what the job needs, and no job that trains the same run.

    Raises:
        ValueError: listing what is missing.
    """
    problems = place_problems(kubectl, job)
    if job.memory_claim and kubectl.find("persistentvolumeclaim", job.memory_claim) is None:
        problems.append(
            f"claim {job.memory_claim} is not in {job.namespace}; make deploy makes it for memory_states. "
            "ARGS=train.memory_checkpoint_steps=0 does without"
        )
    if job.service_account and kubectl.find("serviceaccount", job.service_account) is None:
        problems.append(
            f"service account {job.service_account} is not in {job.namespace}; make deploy makes the one of "
            "jobs, --service-account names another"
        )
    training = [name for name, stage in STAGES.items() if stage.trains]
    same_run = (
        list_jobs(kubectl, job.operator, {RUN_LABEL: job.run}) if job.stage in training else []
    )
    for found in same_run:
        name = found["metadata"]["name"]
        if found["metadata"]["labels"].get(STAGE_LABEL) in training and not has_ended(found):
            problems.append(
                f"run {job.run} is being trained by job {name}; make cancel TARGET=eks JOB={name}, or give "
                "another name="
            )
    if problems:
        raise ValueError("\n".join(problems))


def create(kubectl: Kubectl, job: PodJob) -> None:
    """Create the job, and a ConfigMap with its run file that the job owns.

    Raises:
        ValueError: if the cluster refuses one of them; then neither exists.
    """
    manifest = job_manifest(job)
    kind = KINDS[job.operator]
    try:
        if unknown := dropped(
            manifest["spec"], kubectl.create(manifest, dry_run=True)["spec"], "spec"
        ):
            raise Refused(
                f"{manifest['kind']} has no {', '.join(unknown)} there; the training operator is of another "
                "version than the one that make deploy brings"
            )
        uid = kubectl.create(manifest)["metadata"]["uid"]
    except Refused as error:
        raise ValueError(f"Kubernetes refuses the job: {error}") from None
    owner = {
        "apiVersion": manifest["apiVersion"],
        "kind": manifest["kind"],
        "name": job.name,
        "uid": uid,
    }
    run_file = config_map(job)
    run_file["metadata"]["ownerReferences"] = [owner]
    try:
        kubectl.create(run_file)
    except Refused as error:
        kubectl.delete(kind, job.name)
        raise ValueError(
            f"Kubernetes refuses the run file, and the job is gone again: {error}"
        ) from None


def dropped(sent: Any, kept: Any, path: str) -> list[str]:
    """Return the fields that the API server dropped silently because the resource does not define them."""
    if isinstance(sent, list) and isinstance(kept, list) and len(sent) == len(kept):
        pairs = [(f"{path}[{n}]", *pair) for n, pair in enumerate(zip(sent, kept, strict=True))]
    elif isinstance(sent, dict) and isinstance(kept, dict):
        # An empty field is equal to a missing one.
        if lost := [f"{path}.{name}" for name, value in sent.items() if value and name not in kept]:
            return lost
        pairs = [(f"{path}.{name}", value, kept.get(name)) for name, value in sent.items()]
    else:
        return []
    return [name for inner, one, other in pairs for name in dropped(one, other, inner)]


def pod_job(
    cluster: EksCluster,
    run: NamedRun | None,
    overrides: Sequence[str],
    wanted: EksWanted,
    *,
    version: str,
) -> PodJob:
    """Return a job with a unique name.

    Args:
        cluster: cluster file.
        run: run of the stage; None for a bandwidth job.
        overrides: overrides of the run, or settings of a bandwidth job.
        wanted: options of the job.
        version: version of the code.

    Raises:
        ValueError: listing everything that does not fit together.
    """
    problems = list(placement.placement_problems(cluster, wanted))
    groups = placement.groups_of_type(cluster, wanted.group, wanted.gpu_slice)
    if not groups:
        raise ValueError(listed(problems))
    place = placement.placement(cluster, groups, wanted)
    order = Order(
        run=run,
        settings=overrides,
        wanted=wanted,
        place=place,
        folder=place.folder,
        shared=placement.shared_files(cluster),
    )
    problems += work_problems(order)
    if problems:
        raise ValueError(listed(problems))
    work = work_of(order)
    share = place.share(wanted.stage)
    has_account = cluster.mlflow and place.namespace in job_namespaces(cluster)
    storage = _memory_storage(cluster, order)
    if storage == "nodes" and place.namespace not in job_namespaces(cluster):
        storage = None  # other namespaces have no claim
    queue, priority = placement.queue_names(place.team, place.priority)
    run_name = _slug(work.run)
    return PodJob(
        # Short enough for what operators append, and never the same twice.
        name=f"{wanted.stage}-{run_name[: MAX_NAME - LONGEST_STAGE - 8].strip('-')}-{secrets.token_hex(3)}",
        namespace=place.namespace,
        operator=cluster.training_operator,
        stage=wanted.stage,
        run=run_name,
        image=str(wanted.image),
        version=version,
        num_pods=place.sizes[-1],
        min_pods=place.sizes[0],
        resources=PodResources(
            num_cpus=share.cpus,
            memory_gib=share.memory_gib,
            num_gpus=place.gpus,
            gpu_slice=wanted.gpu_slice,
            num_efa=place.num_efa,
            num_neuron_devices=place.neuron_devices,
        ),
        placement=PodPlacement(
            node_labels=placement.node_labels(place.groups, by_name=wanted.group is not None),
            tolerations=placement.tolerations(place.groups),
            preferred_groups=placement.preferred_groups(place.groups),
            queue=queue,
            priority=priority,
            preferred_topology=wanted.preferred_topology,
            required_topology=wanted.required_topology,
        ),
        files=RunFiles(
            config=work.config,
            overrides=work.overrides,
            mount=cluster.storage.shared_path,
            work_folder=place.folder,
            run_dir=work.run_dir,
            output=work.output,
        ),
        processes_per_device=place.hardware.processes_per_accelerator,
        memory_claim=NODE_MEMORY_CLAIM if storage == "nodes" else None,
        has_managed_memory=storage == "managed",
        claim=LUSTRE_CLAIM,
        user=TRAINING_UID,
        service_account=wanted.service_account or (JOB_SERVICE_ACCOUNT if has_account else None),
        hang_seconds=wanted.hang_seconds,
        max_retries=wanted.num_retries,
    )


def _memory_storage(cluster: EksCluster, order: Order) -> str | None:
    """Return where a job keeps its newest states in memory; None if it keeps none.

    On Neuron devices, states are copied to the host of the first process alone.
    """
    is_kept = (
        order.run is not None
        and order.stage.trained_by == "seqlm"
        and order.run.config.train.memory_checkpoint_steps != 0
        and not order.place.neuron_devices
    )
    return cluster.memory_states.storage if cluster.memory_states and is_kept else None


def _slug(name: str) -> str:
    """Return a DNS label of a run's name: of a long name, the beginning and a hash of the rest."""
    label = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "run"
    if len(label) <= MAX_LABEL:
        return label
    rest = hashlib.sha256(label.encode()).hexdigest()[:8]
    return f"{label[: MAX_LABEL - 9].strip('-')}-{rest}"
