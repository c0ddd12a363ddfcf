"""Jobs of Kubernetes, by kubectl from anywhere."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager
from dataclasses import fields
from pathlib import Path

from config.eks_cluster import EksCluster
from config.facts.instance_catalogue import instance_type
from config.kubernetes_names import COMMON_NAMESPACE
from config.task_governance import team_namespace
from tools.images.build import DEFAULT_FRAMEWORK, FRAMEWORK_OF, NEURON
from tools.jobs.kubernetes import watch
from tools.jobs.kubernetes.files import write_files
from tools.jobs.kubernetes.image import commit_image, image_note
from tools.jobs.kubernetes.placement import EksWanted, chosen_team, groups_of_type
from tools.jobs.kubernetes.request import bandwidth_job, pod_job
from tools.jobs.kubernetes.submit import check_place, create
from tools.jobs.scheduler import NamedRun, Scheduler, print_found
from tools.kubernetes.kubectl import Kubectl, open_kubectl
from workloads.stages import STAGES


class KubernetesJobs(Scheduler):
    nodes_help = "a number or a range (2-3); else the team's quota, or all of the group, to train; else 1"
    image_help = "by digest; the one of this commit in the cluster's repository"
    hang_seconds = EksWanted.hang_seconds

    def __init__(self, cluster: EksCluster) -> None:
        self._cluster, self._operator = cluster, cluster.training_operator

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--team", help="whose jobs, by their quota, queue and namespace")
        parser.add_argument("--namespace", help="another one than the team's")
        parser.add_argument("--kubeconfig", type=Path, help="instead of the caller's AWS credentials")

    def add_submit_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--folder", help="of runs, data and downloads on the shared file system")
        parser.add_argument("--priority", help="one of the cluster file's priority_classes")
        parser.add_argument(
            "--preferred-topology",
            metavar="LABEL",
            help="of nodes near each other, if there are: as hyp has it",
        )
        parser.add_argument(
            "--required-topology", metavar="LABEL", help="the same; without them the job waits"
        )
        parser.add_argument("--group", help="instance group; the first one with GPUs")
        parser.add_argument("--service-account", help="whose rights to AWS the pods have (pod identity)")
        parser.add_argument(
            "--max-retries", type=int, help="by the operator; 10 of what goes on where it was"
        )
        parser.add_argument("--to", type=Path, metavar="FOLDER", help="write the manifests there instead")

    def submit(self, run: NamedRun | None, options: argparse.Namespace, *, version: str) -> int:
        """With ``--to`` it writes the manifests, for kubectl and for HyperPod's own command line (hyp)."""
        cluster = self._cluster
        framework = framework_of(cluster, options.stage, options.group)
        image = options.image or commit_image(cluster, options.profile, framework)
        given = vars(options) | {"image": image}
        wanted = EksWanted(**{field.name: given[field.name] for field in fields(EksWanted)})
        if run is None:
            job = bandwidth_job(cluster, options.overrides, wanted, version=version)
        else:
            job = pod_job(cluster, *run, options.overrides, wanted, version=version)
        if options.to:
            for line in write_files(job, options.to):
                print(line)
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
                **STAGES[job.stage].results(job.run_dir, job.output),
            },
            follow=f"make tail {target}, make status TARGET=eks, make fetch {target}",
        )
        return 0

    def status(self, options: argparse.Namespace) -> int:
        with self._kubectl(options) as kubectl:
            return watch.status(kubectl, self._operator)

    def tail(self, options: argparse.Namespace) -> int:
        with self._kubectl(options) as kubectl:
            return watch.tail(kubectl, self._operator, options.job)

    def cancel(self, options: argparse.Namespace) -> int:
        with self._kubectl(options) as kubectl:
            job = watch.find_job(kubectl, self._operator, options.job)
            return watch.cancel(kubectl, self._operator, job)

    def fetch(self, options: argparse.Namespace, to: Path) -> int:
        with self._kubectl(options) as kubectl:
            return watch.fetch(kubectl, watch.find_job(kubectl, self._operator, options.job), to)

    def _kubectl(self, options: argparse.Namespace, namespace: str = "") -> AbstractContextManager[Kubectl]:
        return open_kubectl(
            self._cluster,
            namespace or options.namespace or self._namespace(options.team),
            profile=options.profile,
            kubeconfig=options.kubeconfig,
        )

    def _namespace(self, wanted: str | None) -> str:
        problems: list[str] = []
        team = chosen_team(self._cluster, wanted, problems)
        if problems:
            raise ValueError(problems[0])
        return team_namespace(team) if team else COMMON_NAMESPACE


def framework_of(cluster: EksCluster, stage: str, group: str | None) -> str:
    """Key of ``FRAMEWORKS``: whose image a stage takes, by the nodes that it runs on."""
    groups = groups_of_type(cluster, group, [])
    is_neuron = bool(groups) and instance_type(groups[0].instance_type).is_neuron
    return FRAMEWORK_OF.get(stage, NEURON if is_neuron else DEFAULT_FRAMEWORK)
