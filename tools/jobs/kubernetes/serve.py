"""Serve a model by pods: ``python -m tools.jobs.kubernetes.serve --endpoint FILE --model /fsx/...``.

The same command again brings what runs to what the file says. ``--to FOLDER`` writes the manifests instead,
``--delete`` takes the pods and their name away.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from config.eks_cluster import EksCluster
from config.endpoint import Endpoint
from config.reading.endpoint_file import load_endpoint
from config.reading.loader import load_eks_cluster
from config.resource_names import LUSTRE_CLAIM, TRAINING_UID
from seqlm.launch.kubernetes_service import SERVICE_PORT, PodService, manifests
from seqlm.launch.pod_job import PodPlacement, PodResources
from seqlm.proteins.serving.settings import ServeSettings
from tools.command_line import cluster_parser, run_command
from tools.jobs.checks import listed
from tools.jobs.code_version import code_revision
from tools.jobs.kubernetes import placement
from tools.jobs.kubernetes.files import to_yaml
from tools.jobs.kubernetes.image import commit_image, image_note
from tools.jobs.kubernetes.job_state import place_problems
from tools.jobs.kubernetes.quotas import PodsRequest, quota_problems
from tools.kubernetes.kubectl import Refused, add_kubeconfig_option, open_kubectl


def main() -> int:
    options = _options()
    cluster = load_eks_cluster(options.cluster)
    image = options.image or commit_image(cluster, options.profile)
    endpoint = load_endpoint(options.endpoint, {"image": image, "model": options.model}, "eks")
    service = pod_service(cluster, endpoint, options, version=code_revision())
    objects = manifests(service)
    is_new = not (options.to or options.delete or options.kubeconfig)
    if options.image and is_new and (note := image_note(cluster, image, options.profile)):
        print(f"note: {note}")
    if options.to:
        options.to.mkdir(parents=True, exist_ok=True)
        path = options.to / f"{service.name}.yaml"
        path.write_text("---\n".join(map(to_yaml, objects)))
        print(f"written  {path}\nnext     kubectl apply --server-side -f {path}")
        return 0
    with open_kubectl(
        cluster, service.namespace, profile=options.profile, kubeconfig=options.kubeconfig
    ) as kubectl:
        if options.delete:
            # Last made, first gone.
            for manifest in reversed(objects):
                if kubectl.delete(manifest["kind"].lower(), manifest["metadata"]["name"]):
                    print(f"deleted  {manifest['kind']} {service.name}")
            return 0
        if problems := place_problems(kubectl, service):
            raise ValueError("\n".join(problems))
        for manifest in objects:
            try:
                kubectl.apply(manifest)
            except Refused as error:
                raise ValueError(f"Kubernetes refuses the {manifest['kind']}: {error}") from None
    print(
        f"pods     {service.replicas} in {service.namespace}, each with {service.resources.gpus_text}"
    )
    print(
        f"address  http://{service.name}.{service.namespace}:{SERVICE_PORT}/invocations, for pods there"
    )
    print(
        f"next     kubectl --namespace {service.namespace} rollout status deployment/{service.name}"
    )
    return 0


def _options() -> argparse.Namespace:
    parser = cluster_parser("Serve a model by pods of the cluster.")
    parser.add_argument("--endpoint", type=Path, required=True, help="endpoint file")
    parser.add_argument(
        "--model",
        help="folder of the model on Lustre; by default that of the endpoint file",
    )
    parser.add_argument("--image", help="image by digest; by default that of this commit")
    parser.add_argument("--team", help="team: its namespace and quota")
    parser.add_argument("--priority", help="priority class of the cluster file, for a team's pods")
    parser.add_argument("--namespace", help="namespace; by default the team's")
    parser.add_argument("--group", help="instance group; by default the first one with GPUs")
    parser.add_argument(
        "--gpu-slice",
        metavar="PROFILE",
        help="serve on one slice of a GPU, for example 1g.10gb, of a group with this mig_profile",
    )
    add_kubeconfig_option(parser)
    parser.add_argument(
        "--to", type=Path, metavar="FOLDER", help="folder for the manifests, instead of serving"
    )
    parser.add_argument("--delete", action="store_true", help="end the service")
    return parser.parse_args()


def pod_service(
    cluster: EksCluster, endpoint: Endpoint, options: argparse.Namespace, *, version: str
) -> PodService:
    """Return the service of the endpoint file on nodes of the cluster.

    Args:
        cluster: cluster file.
        endpoint: endpoint file.
        options: command line, with ``team``, ``priority``, ``namespace``, ``group`` and ``gpu_slice``.
        version: version of the code.

    Raises:
        ValueError: listing everything that does not fit together.
    """
    asked = endpoint.kubernetes
    assert asked is not None  # load_endpoint requires the section
    if problems := list(_problems(cluster, endpoint, options)):
        raise ValueError(listed(problems))
    team = _team(cluster, options)
    queue, priority = placement.queue_names(team, options.priority)
    mount = cluster.storage.shared_path
    model = PurePosixPath(endpoint.model)
    groups = placement.groups_of_type(cluster, options.group, options.gpu_slice)
    limits = ServeSettings.of(endpoint.limits.environment)
    return PodService(
        name=endpoint.name,
        namespace=placement.chosen_namespace(options.namespace, team),
        image=endpoint.image,
        version=version,
        model=str(model.relative_to(mount)),
        claim=LUSTRE_CLAIM,
        environment=endpoint.limits.environment,
        replicas=asked.replicas,
        resources=PodResources(
            num_cpus=asked.cpus,
            memory_gib=asked.memory_gib,
            num_gpus=asked.gpus,
            gpu_slice=options.gpu_slice,
        ),
        placement=PodPlacement(
            node_labels=placement.node_labels(groups, by_name=options.group is not None),
            tolerations=placement.tolerations(groups),
            queue=queue,
            priority=priority,
        ),
        user=TRAINING_UID,
        startup_seconds=endpoint.startup_seconds,
        drain_seconds=limits.drain_seconds,
        timeout_seconds=limits.timeout_seconds,
    )


def _team(cluster: EksCluster, options: argparse.Namespace) -> str | None:
    """Return the team of the pods; None if a namespace is given."""
    return placement.chosen_team(cluster, options.team) if options.namespace is None else None


def _problems(
    cluster: EksCluster, endpoint: Endpoint, options: argparse.Namespace
) -> Iterator[str]:
    """Yield what does not fit together."""
    if options.namespace is None:
        yield from placement.team_problems(cluster, options.team)
    yield from placement.priority_problems(cluster, options.priority, _team(cluster, options))
    mount = cluster.storage.shared_path
    is_mount = PurePosixPath(endpoint.model) == PurePosixPath(mount)
    if is_mount or not placement.shared_files(cluster).has(endpoint.model):
        yield f"MODEL: got {endpoint.model}; pods read folders below {mount}"
    yield from placement.group_problems(cluster, options.group)
    asked = endpoint.kubernetes
    assert asked is not None  # load_endpoint requires the section
    gpus = asked.gpus
    if gpus or options.gpu_slice is not None:
        yield from placement.slice_problems(cluster, options.group, options.gpu_slice)
    if options.gpu_slice is not None and gpus != 1:
        yield (
            f"kubernetes.gpus: got {gpus}; a pod of --gpu-slice {options.gpu_slice} has one slice: set 1"
        )
    groups = placement.groups_of_type(cluster, options.group, options.gpu_slice)
    if groups:
        request = PodsRequest(
            who="each pod requests",
            num_pods=1,  # a queue admits the pods of a service one by one
            cpus=asked.cpus,
            memory_gib=asked.memory_gib,
            has_accelerators=gpus > 0,
            gpu_slice=options.gpu_slice,
            remedy="set lower values in the endpoint file",
        )
        yield from quota_problems(cluster, _team(cluster, options), groups, request)


if __name__ == "__main__":
    run_command(main)
