"""Checks of an existing EKS cluster: what HyperPod requires of its control plane."""

from collections.abc import Collection, Iterator
from ipaddress import IPv4Network
from typing import Any, get_args

from config.cluster import ExistingVpc, existing_security_groups
from config.eks_cluster import EksCluster
from config.kubernetes import KUBERNETES_VERSIONS, LogKind
from tools.preflight.finding import Finding, Subject
from tools.preflight.read_only_aws import ReadOnlyAws

HTTPS_PORT = 443
"""Port of the API server."""
KUBELET_PORT = 10250
"""Port of the nodes to which the control plane connects (EKS user guide, "View Amazon EKS security group
requirements for clusters")."""
INSTALLER = "1.33 to 1.35"
"""Versions that the kubectl of the stack's installer supports."""
ANYWHERE = "0.0.0.0/0"


def find_existing(aws: ReadOnlyAws, cluster: EksCluster) -> dict[str, Any] | None:
    """Return EKS's description of the existing cluster; None if the file names none, or it does not exist."""
    name = cluster.kubernetes.existing
    found = aws.find("eks", "describe_cluster", name=name) if name else None
    return found["cluster"] if found else None


def subject_of(cluster: EksCluster) -> Subject:
    return Subject(f"EKS cluster {cluster.kubernetes.existing}")


def check_control_plane(aws: ReadOnlyAws, cluster: EksCluster) -> Iterator[Finding]:
    name = cluster.kubernetes.existing
    if name is None:
        return
    subject = subject_of(cluster)
    found = find_existing(aws, cluster)
    if found is None:
        yield subject.fail(
            f"does not exist in {cluster.region} in account {aws.account}",
            "set kubernetes.existing to one that `aws eks list-clusters` lists in this region",
        )
        return
    if found["status"] != "ACTIVE":
        yield subject.fail(f"is {found['status']}", "wait until it is ACTIVE")
        return
    yield from _version(subject, found)
    yield _authentication(subject, found)
    yield from _place(subject, found, cluster)
    yield from _groups(aws, subject, found, cluster)
    yield from _endpoint(subject, found)
    yield from _secrets(subject, found, cluster)
    yield from _logs(subject, found)
    yield from _other_hyperpod(aws, subject, found, cluster)


def _version(subject: Subject, found: dict[str, Any]) -> Iterator[Finding]:
    running = found["version"]
    if running in KUBERNETES_VERSIONS:
        yield subject.ok(f"runs Kubernetes {running}")
        return
    known = " and ".join(KUBERNETES_VERSIONS)
    yield subject.warn(
        f"runs Kubernetes {running}. This project knows {known} on HyperPod, and its kubectl supports "
        f"{INSTALLER}",
        'look for it in the SageMaker developer guide, "Getting started with Amazon EKS support"',
    )


def _authentication(subject: Subject, found: dict[str, Any]) -> Finding:
    """Check the authentication mode.

    HyperPod admits its nodes by access entries (SageMaker developer guide, "Prerequisites for using Amazon
    EKS"), and the stack admits its installer.
    """
    mode = found.get("accessConfig", {}).get("authenticationMode", "CONFIG_MAP")
    if mode != "CONFIG_MAP":
        return subject.ok(f"accepts access entries (authentication mode {mode})")
    return subject.fail(
        "has the authentication mode CONFIG_MAP, and HyperPod and the stack need access entries",
        f"`aws eks update-cluster-config --name {found['name']} --access-config "
        "authenticationMode=API_AND_CONFIG_MAP`, which cannot be undone and keeps the present access",
    )


def _place(subject: Subject, found: dict[str, Any], cluster: EksCluster) -> Iterator[Finding]:
    network = cluster.network
    assert isinstance(network, ExistingVpc), "a rule of cluster files requires it"
    vpc_id = found["resourcesVpcConfig"]["vpcId"]
    if vpc_id != network.vpc_id:
        yield subject.fail(
            f"is in {vpc_id}, the nodes in {network.vpc_id}",
            f"set network.vpc_id to {vpc_id}, with subnets of that VPC",
        )
    if found.get("kubernetesNetworkConfig", {}).get("ipFamily") == "ipv6":
        yield subject.fail(
            "gives pods IPv6 addresses, and the subnets of the file have IPv4 ranges only",
            "set kubernetes.existing to a cluster with ipFamily ipv4",
        )


def _groups(
    aws: ReadOnlyAws, subject: Subject, found: dict[str, Any], cluster: EksCluster
) -> Iterator[Finding]:
    """Check that nodes and control plane reach each other: by a common group, or by rules."""
    place = found["resourcesVpcConfig"]
    of_plane = [place["clusterSecurityGroupId"], *place.get("securityGroupIds", [])]
    of_nodes = existing_security_groups(cluster)
    if common := [group for group in of_nodes if group in of_plane]:
        yield subject.ok(f"shares security group {common[0]} with the nodes")
        return
    network = cluster.network
    assert isinstance(network, ExistingVpc), "a rule of cluster files requires it"
    node_ranges = [subnet.cidr for subnet in network.private_subnets]
    vpc_ranges = [network.cidr, *network.other_cidrs]
    to_plane = _admits(aws, of_plane, HTTPS_PORT, of_nodes, node_ranges)
    to_nodes = _admits(aws, of_nodes, KUBELET_PORT, of_plane, vpc_ranges)
    if to_plane and to_nodes:
        yield subject.ok("its security groups and those of the nodes admit each other")
        return
    if not to_plane:
        yield _closed(subject, "its API server", of_plane[0], HTTPS_PORT, of_nodes[0], of_plane[0])
    if not to_nodes:
        yield _closed(
            subject, "the nodes' kubelet", of_nodes[0], KUBELET_PORT, of_plane[0], of_plane[0]
        )


def _closed(
    subject: Subject, target: str, group: str, port: int, source: str, of_plane: str
) -> Finding:
    return subject.fail(
        f"no rule admits {source} to {target} (TCP {port})",
        f"add {of_plane} to network.security_group_ids, or `aws ec2 authorize-security-group-ingress "
        f"--group-id {group} --ip-permissions IpProtocol=tcp,FromPort={port},ToPort={port},"
        f"UserIdGroupPairs=[{{GroupId={source}}}]`",
    )


def _admits(
    aws: ReadOnlyAws,
    groups: Collection[str],
    port: int,
    sources: Collection[str],
    ranges: Collection[str],
) -> bool:
    """Return whether one of the groups admits the port from one of the sources, or from all the ranges."""
    for group in groups:
        answer = aws.find("ec2", "describe_security_groups", GroupIds=[group])
        for permission in answer["SecurityGroups"][0]["IpPermissions"] if answer else []:
            if not _covers_port(permission, port):
                continue
            pairs = {pair.get("GroupId") for pair in permission.get("UserIdGroupPairs", [])}
            open_to = [IPv4Network(found["CidrIp"]) for found in permission.get("IpRanges", [])]
            if pairs & {*sources} or all(
                any(IPv4Network(cidr).subnet_of(wider) for wider in open_to) for cidr in ranges
            ):
                return True
    return False


def _covers_port(permission: dict[str, Any], port: int) -> bool:
    if permission["IpProtocol"] == "-1":
        return True
    return permission["IpProtocol"] == "tcp" and permission.get(
        "FromPort", 0
    ) <= port <= permission.get("ToPort", 0)


def _endpoint(subject: Subject, found: dict[str, Any]) -> Iterator[Finding]:
    """Check the endpoint. Without a private one, nodes reach the API server through the internet only."""
    place = found["resourcesVpcConfig"]
    if place["endpointPrivateAccess"]:
        public = place["endpointPublicAccess"]
        yield subject.ok(f"has a private endpoint{' and a public one' if public else ''}")
        return
    ranges = place.get("publicAccessCidrs", [ANYWHERE])
    admitted = "" if ANYWHERE in ranges else f", and only from {', '.join(ranges)}"
    yield subject.warn(
        f"nodes reach its API server through the internet only{admitted}",
        f"`aws eks update-cluster-config --name {found['name']} --resources-vpc-config "
        "endpointPrivateAccess=true`, or make sure that the addresses of the NAT gateways are admitted",
    )


def _secrets(subject: Subject, found: dict[str, Any], cluster: EksCluster) -> Iterator[Finding]:
    """Check that Kubernetes secrets have a key of the account if the file has one."""
    has_key = any("secrets" in one["resources"] for one in found.get("encryptionConfig", []))
    if has_key or cluster.storage.kms == "aws":
        return
    yield subject.warn(
        f"encrypts secrets with EKS's own key, and storage.kms is {cluster.storage.kms}",
        f"`aws eks associate-encryption-config --cluster-name {found['name']} --encryption-config "
        '\'[{"resources":["secrets"],"provider":{"keyArn":"<ARN of the key>"}}]\'`, which cannot be '
        "undone, or accept it",
    )


def _logs(subject: Subject, found: dict[str, Any]) -> Iterator[Finding]:
    kinds = get_args(LogKind)
    enabled = {
        kind
        for setup in found.get("logging", {}).get("clusterLogging", [])
        if setup["enabled"]
        for kind in setup["types"]
    }
    missing = [kind for kind in kinds if kind not in enabled]
    if not missing:
        yield subject.ok("logs all parts of its control plane")
        return
    listed = ",".join(f'"{kind}"' for kind in missing)
    yield subject.warn(
        f"does not log {', '.join(missing)}, which `make logs` and investigations need",
        f"`aws eks update-cluster-config --name {found['name']} --logging "
        f'\'{{"clusterLogging":[{{"types":[{listed}],"enabled":true}}]}}\'`, or accept it',
    )


def _other_hyperpod(
    aws: ReadOnlyAws, subject: Subject, found: dict[str, Any], cluster: EksCluster
) -> Iterator[Finding]:
    """Check that no other HyperPod cluster has this control plane.

    HyperPod maps one cluster to one control plane (SageMaker developer guide, "Orchestrating SageMaker
    HyperPod clusters with Amazon EKS").
    """
    for summary in aws.items("sagemaker", "list_clusters", "ClusterSummaries"):
        name = summary["ClusterName"]
        if name == cluster.name:
            continue
        described = aws.find("sagemaker", "describe_cluster", ClusterName=name) or {}
        orchestrator = described.get("Orchestrator", {}).get("Eks", {})
        if orchestrator.get("ClusterArn") == found["arn"]:
            yield subject.fail(
                f"orchestrates HyperPod cluster {name}, and HyperPod allows one per EKS cluster",
                "set kubernetes.existing to another cluster, or remove it to create one",
            )
