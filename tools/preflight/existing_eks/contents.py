"""Checks of add-ons, HyperPod's chart and objects in an existing EKS cluster."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from config.eks_cluster import EksCluster, has_slices
from config.facts import addons
from config.facts.addons import addon_version
from config.facts.known_bad import known_fault
from config.resource_names import stack_names
from manifests.charts import load_charts
from manifests.gpu_operator import CHART as GPU_OPERATOR
from tools.preflight.existing_eks.control_plane import find_existing, subject_of
from tools.preflight.existing_eks.kubernetes import Workload, read_same_objects, read_workloads
from tools.preflight.finding import Finding, Subject
from tools.preflight.planned import Planned
from tools.preflight.read_only_aws import ReadOnlyAws
from tools.preflight.stacks import is_deployed

OLDEST_CNI = (1, 18, 3)
"""First version of the VPC CNI that HyperPod supports (SageMaker developer guide, "Prerequisites for using
Amazon EKS")."""
PRUNE_LABEL = "aws.cdk.eks/prune-"
"""Beginning of the label that the CDK gives to the objects of a stack."""


@dataclass(frozen=True)
class Needed:
    """Add-on that pods and nodes need, and the workload of an installation without EKS."""

    name: str
    why: str
    workload: Workload
    account: str | None = None
    """Service account of its controller, which reads the region from the instance metadata unless the account
    has a role."""


CNI = Needed(
    addons.VPC_CNI, "nodes get no network", Workload("DaemonSet", "kube-system", "aws-node")
)
OF_ALL = (
    CNI,
    Needed(
        addons.KUBE_PROXY,
        "pods do not reach services",
        Workload("DaemonSet", "kube-system", "kube-proxy"),
    ),
    Needed(
        addons.POD_IDENTITY_AGENT,
        "pods get no credentials of AWS",
        Workload("DaemonSet", "kube-system", "eks-pod-identity-agent"),
    ),
    Needed(
        addons.COREDNS,
        "pods resolve no names",
        Workload("Deployment", "kube-system", "coredns"),
    ),
    Needed(
        addons.LUSTRE_DRIVER,
        "pods cannot mount the file system",
        Workload("DaemonSet", "kube-system", "fsx-csi-node"),
        account="fsx-csi-controller-sa",
    ),
)
CERTIFICATES = Needed(
    addons.CERT_MANAGER,
    "the training operator gets no certificates",
    Workload("Deployment", "cert-manager", "cert-manager"),
)
OPERATOR = Needed(
    addons.TRAINING_OPERATOR,
    "no operator starts HyperPodPyTorchJobs",
    Workload("Deployment", "aws-hyperpod", "hp-training-operator-controller-manager"),
)
GOVERNANCE = Needed(
    addons.TASK_GOVERNANCE,
    "SageMaker refuses quotas of teams",
    Workload("Deployment", "kueue-system", "kueue-controller-manager"),
)
METRICS = Needed(
    addons.OBSERVABILITY,
    "Prometheus gets the metrics of trainings, but none of nodes and pods",
    Workload("Deployment", "hyperpod-observability", "hyperpod-observability-controller-manager"),
)


def needed_addons(cluster: EksCluster) -> list[Needed]:
    """Return the add-ons without which something in the file does not work."""
    needed = list(OF_ALL)
    if cluster.training_operator == "hyperpod":
        needed += [CERTIFICATES, OPERATOR]
    if cluster.task_governance:
        needed.append(GOVERNANCE)
    return needed


class Reader:
    """Workloads of the cluster, read at the first use; the reason if Kubernetes cannot be read."""

    def __init__(self, aws: ReadOnlyAws, cluster: EksCluster) -> None:
        self.workloads: Sequence[Workload] = ()
        self.problem = ""
        try:
            self.workloads = read_workloads(aws, cluster)
        except ValueError as error:
            self.problem = str(error)


def check_contents(planned: Planned, aws: ReadOnlyAws, cluster: EksCluster) -> Iterator[Finding]:
    found = find_existing(aws, cluster)
    if found is None or found["status"] != "ACTIVE":
        return  # the check of the control plane reports it
    reader = Reader(aws, cluster)
    for needed in needed_addons(cluster):
        yield from _addon(aws, cluster, found, needed, reader)
    if cluster.prometheus:
        yield _metrics(aws, cluster, found["name"])
    yield from _chart(cluster, reader)
    if not is_deployed(aws, cluster, "hyperpod"):
        yield from _objects(planned, aws, cluster)


def _addon(
    aws: ReadOnlyAws, cluster: EksCluster, found: dict[str, Any], needed: Needed, reader: Reader
) -> Iterator[Finding]:
    subject = Subject(f"add-on {needed.name}")
    described = aws.find("eks", "describe_addon", clusterName=found["name"], addonName=needed.name)
    if described:
        yield from _installed(subject, found, needed, described["addon"])
        if needed.account and not cluster.kubernetes.pod_metadata_access:
            yield from _role(aws, found["name"], subject, needed, described["addon"])
        return
    wanted = addon_version(found["version"], needed.name)
    version = f" --addon-version {wanted}" if wanted else ""
    command = (
        f"`aws eks create-addon --cluster-name {found['name']} --addon-name {needed.name}{version} "
        f"--region {cluster.region}`"
    )
    if reader.problem:
        yield subject.unknown(
            f"it is no EKS add-on, and Kubernetes cannot be read: {reader.problem}",
            f"unless it is installed otherwise, {command}",
        )
    elif needed.workload in reader.workloads:
        kind = needed.workload.kind
        yield subject.ok(
            f"is no EKS add-on, but {kind} {needed.workload.name} exists; its version is not checked"
        )
    else:
        yield subject.fail(f"is missing, so {needed.why}", command)


def _installed(
    subject: Subject, found: dict[str, Any], needed: Needed, addon: dict[str, Any]
) -> Iterator[Finding]:
    version = addon["addonVersion"]
    wanted = addon_version(found["version"], needed.name)
    update = (
        f"`aws eks update-addon --cluster-name {found['name']} --addon-name {needed.name}"
        + (f" --addon-version {wanted}" if wanted else "")
        + "`"
    )
    bad = known_fault(needed.name, version)
    if needed is CNI and _numbers(version) < OLDEST_CNI:
        oldest = ".".join(map(str, OLDEST_CNI))
        yield subject.fail(f"is {version}, and HyperPod needs {oldest} or later", update)
    elif bad:
        yield subject.fail(f"{version} {bad.fault} ({bad.source}, {bad.published})", update)
    elif addon["status"] != "ACTIVE":
        issues = "; ".join(issue["message"] for issue in addon.get("health", {}).get("issues", []))
        yield subject.warn(
            f"{version} is {addon['status']}{f': {issues}' if issues else ''}",
            "if the cluster has no nodes yet, it waits for HyperPod's; otherwise repair it",
        )
    else:
        yield subject.ok(f"{version} is installed")


def _role(
    aws: ReadOnlyAws, name: str, subject: Subject, needed: Needed, addon: dict[str, Any]
) -> Iterator[Finding]:
    """Check that an add-on's controller has a role, because pods on HyperPod's nodes reach no metadata."""
    associated = aws.items(
        "eks",
        "list_pod_identity_associations",
        "associations",
        clusterName=name,
        namespace=needed.workload.namespace,
        serviceAccount=needed.account,
    )
    if associated or addon.get("serviceAccountRoleArn"):
        return
    yield subject.warn(
        "its controller has no role, and would read the region from the instance metadata, which pods on the "
        "new nodes cannot reach",
        f"`aws eks create-pod-identity-association --cluster-name {name} --namespace "
        f"{needed.workload.namespace} --service-account {needed.account} --role-arn <role>`, with a role "
        "that pods.eks.amazonaws.com may assume and that allows fsx:DescribeFileSystems; or keep it on other "
        "nodes",
    )


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, which are 1, 21 and 1 in v1.21.1-eksbuild.1."""
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("-")[0]))


def _metrics(aws: ReadOnlyAws, cluster: EksCluster, name: str) -> Finding:
    subject = Subject(f"add-on {METRICS.name}")
    if aws.find("eks", "describe_addon", clusterName=name, addonName=METRICS.name):
        return subject.warn(
            "is installed; this check does not see to which workspace it writes",
            "if it writes to another one than this cluster's, set prometheus: false",
        )
    return subject.warn(
        f"is missing: {METRICS.why}",
        "after the deployment, run the command in the output ObservabilityAddonCommand of stack "
        f"{stack_names(cluster).hyperpod}",
    )


def _chart(cluster: EksCluster, reader: Reader) -> Iterator[Finding]:
    """Check the parts of HyperPod's chart, which other charts may also have installed."""
    subject = Subject("HyperPod's chart")
    git = load_charts()["hyperpod"].git
    folder = git.folder.rpartition("/")[2]
    install = (
        f"`git clone {git.repository} && cd sagemaker-hyperpod-cli && git checkout {git.commit[:12]} && "
        f"helm dependency update {git.folder} && helm install hyperpod-dependencies {git.folder} "
        "--namespace kube-system`"
    )
    if reader.problem:
        yield subject.unknown(
            f"Kubernetes cannot be read: {reader.problem}",
            f"`helm list --all-namespaces --filter hyperpod` must list {folder}; otherwise {install}",
        )
        return
    names = [item.name for item in reader.workloads if item.kind == "DaemonSet"]
    missing = [part for part in _parts(cluster) if not any(part in name for name in names)]
    if missing:
        yield subject.fail(
            f"no DaemonSet has the name of {', '.join(missing)}, and CreateCluster refuses an EKS cluster "
            "without the chart",
            install,
        )
    else:
        yield subject.ok("its DaemonSets for the types of the file exist")
    if has_slices(cluster):
        yield _gpu_operator(reader)


def _gpu_operator(reader: Reader) -> Finding:
    """Check that the operator exists which divides the GPUs of groups with ``mig_profile``."""
    subject = Subject("NVIDIA's GPU Operator")
    if any(item.kind == "Deployment" and item.name == GPU_OPERATOR for item in reader.workloads):
        return subject.ok("exists; its values are not checked")
    return subject.fail(
        f"no Deployment has the name {GPU_OPERATOR}, so no GPU of a group with mig_profile would be divided",
        "install it with mig.strategy mixed (docs/gpu-shares.md)",
    )


def _parts(cluster: EksCluster) -> list[str]:
    """Return parts of the names of the DaemonSets that the instance types need."""
    types = [group.hardware for group in cluster.instance_groups]
    parts = ["health-monitoring-agent"]
    if any(found.num_gpus for found in types):
        parts.append("nvidia-device-plugin")
    if any(found.num_neuron_devices for found in types):
        parts.append("neuron-device-plugin")
    if any(found.num_efa for found in types):
        parts.append("efa-k8s-device-plugin")
    return parts


def _objects(planned: Planned, aws: ReadOnlyAws, cluster: EksCluster) -> Iterator[Finding]:
    """Check that the stack would change no object: those with its names carry its label, or do not exist."""
    subject = subject_of(cluster)
    try:
        same = read_same_objects(aws, cluster, planned.objects)
    except ValueError as error:
        yield subject.unknown(
            f"Kubernetes cannot be read: {error}",
            "make sure that namespaces and volumes of docs/existing-resources.md do not exist",
        )
        return
    is_new_storage = not is_deployed(aws, cluster, "storage")
    for item in same:
        metadata = item["metadata"]
        if any(label.startswith(PRUNE_LABEL) for label in metadata.get("labels", {})):
            if is_new_storage and item["kind"] == "PersistentVolume":
                yield from _kept_volume(subject, cluster, item)
            continue
        place = f"{metadata['namespace']}/" if "namespace" in metadata else ""
        yield subject.fail(
            f"has a {item['kind']} {place}{metadata['name']} of others, which the stack would change",
            "rename it, or use another EKS cluster",
        )


def _kept_volume(
    subject: Subject, cluster: EksCluster, volume: dict[str, Any]
) -> Iterator[Finding]:
    """Check that a volume that an earlier stack left is of the file's file system: it cannot be changed."""
    lustre = cluster.storage.lustre
    existing = lustre.existing.file_system_id if lustre and lustre.existing else None
    file_system = volume["spec"]["csi"]["volumeHandle"].partition("/")[0]
    if file_system == existing:
        return
    name = volume["metadata"]["name"]
    claim = volume["spec"]["claimRef"]
    yield subject.fail(
        f"still has PersistentVolume {name} of an earlier deployment, for {file_system}",
        f"`kubectl delete persistentvolumeclaim {claim['name']} --namespace {claim['namespace']}` and "
        f"`kubectl delete persistentvolume {name}`, as `make teardown` says, or set storage.lustre.existing "
        "to that file system",
    )
