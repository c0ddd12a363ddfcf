"""Checks of security groups and IAM roles that the cluster file names instead of new ones."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from config.cluster import Cluster, ExistingVpc, existing_security_groups
from config.eks_cluster import EksCluster
from config.resource_names import artifact_bucket, existing_roles
from tools.preflight.finding import Finding, Subject
from tools.preflight.read_only_aws import ReadOnlyAws

ALL_PROTOCOLS = "-1"
ANYWHERE = "0.0.0.0/0"
SERVICES = {
    "kubernetes.role": "eks.amazonaws.com",
    "autoscaling_role": "hyperpod.sagemaker.amazonaws.com",
}
"""Services that assume the roles of these places; SageMaker assumes those of nodes."""
NODE_SERVICE = "sagemaker.amazonaws.com"


def check_security_groups(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    """Check that the groups are in the VPC and admit what the stacks' own group would admit."""
    network = cluster.network
    ids = existing_security_groups(cluster)
    if not ids or not isinstance(network, ExistingVpc):
        return
    found = {}
    for group_id in ids:
        subject = Subject(f"security group {group_id}")
        answer = aws.find("ec2", "describe_security_groups", GroupIds=[group_id])
        if answer is None:
            yield subject.fail(
                f"does not exist in {cluster.region}",
                "set network.security_group_ids to groups of the VPC",
            )
            continue
        group = answer["SecurityGroups"][0]
        found[group_id] = group
        if group["VpcId"] != network.vpc_id:
            yield subject.fail(
                f"is in {group['VpcId']}, the cluster in {network.vpc_id}",
                "set one of the cluster's VPC",
            )
    if len(found) == len(ids):
        yield from _check_members(cluster, found)


def _check_members(cluster: Cluster, found: dict[str, dict[str, Any]]) -> Iterator[Finding]:
    """Check that members reach each other. EFA requires rules that name the group itself, in each group."""
    has_efa = any(group.hardware.num_efa for group in cluster.instance_groups)
    admitting = 0
    for group_id, group in found.items():
        subject = Subject(f"security group {group_id}")
        comes_in = _names_itself(group_id, group.get("IpPermissions", []))
        goes_out = _names_itself(group_id, group.get("IpPermissionsEgress", []))
        admitting += comes_in
        if has_efa and not (comes_in and goes_out):
            command = (
                "authorize-security-group-egress"
                if comes_in
                else "authorize-security-group-ingress"
            )
            yield subject.fail(
                "EFA needs rules for all protocols from and to the group itself, and one is missing",
                f"`aws ec2 {command} --group-id {group_id} --ip-permissions "
                f"IpProtocol=-1,UserIdGroupPairs=[{{GroupId={group_id}}}]`",
            )
        elif comes_in:
            yield subject.ok("admits all traffic between its members")
        if not goes_out and not _goes_anywhere(group.get("IpPermissionsEgress", [])):
            yield subject.warn(
                "its rules let members connect to some addresses only",
                "let them connect to each other, to S3 and by HTTPS to AWS's services",
            )
    if not admitting and not has_efa:
        first = next(iter(found))
        yield Subject("security groups").fail(
            f"none of {', '.join(found)} admits all protocols from its own members, which Slurm or pods, "
            "Lustre and NCCL need",
            f"`aws ec2 authorize-security-group-ingress --group-id {first} --ip-permissions "
            f"IpProtocol=-1,UserIdGroupPairs=[{{GroupId={first}}}]`",
        )


def _names_itself(group_id: str, permissions: list[dict[str, Any]]) -> bool:
    return any(
        permission["IpProtocol"] == ALL_PROTOCOLS
        and any(pair.get("GroupId") == group_id for pair in permission.get("UserIdGroupPairs", []))
        for permission in permissions
    )


def _goes_anywhere(permissions: list[dict[str, Any]]) -> bool:
    return any(
        permission["IpProtocol"] == ALL_PROTOCOLS
        and any(found.get("CidrIp") == ANYWHERE for found in permission.get("IpRanges", []))
        for permission in permissions
    )


def check_roles(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    """Check that each role exists, that its service may assume it, and what nodes may do with it."""
    places: dict[str, list[str]] = {}
    for place, role in existing_roles(cluster).items():
        places.setdefault(role, []).append(place)
    for role, using in places.items():
        yield from _check_role(aws, cluster, role, using)


def _check_role(
    aws: ReadOnlyAws, cluster: Cluster, role: str, places: list[str]
) -> Iterator[Finding]:
    subject = Subject(f"role {role.rpartition('/')[2]}")
    if role.startswith("arn:") and role.split(":")[4] != aws.account:
        yield subject.fail(
            f"is of account {role.split(':')[4]}, the cluster in {aws.account}",
            f"set {places[0]} to a role of this account",
        )
        return
    answer = aws.find("iam", "get_role", RoleName=role.rpartition("/")[2])
    if answer is None:
        yield subject.fail("does not exist", f"set {places[0]} to an existing role, or remove it")
        return
    found = answer["Role"]
    if role != found["Arn"] and (role.startswith("arn:") or found["Path"] != "/"):
        yield subject.fail(f"has the ARN {found['Arn']}", f"set {places[0]} to this ARN")
        return
    services = {SERVICES.get(place, NODE_SERVICE) for place in places}
    missing = sorted(services - _trusted(found["AssumeRolePolicyDocument"]))
    if missing:
        yield subject.fail(
            f"its trust policy does not name {' and '.join(missing)}",
            "allow sts:AssumeRole to this service in the trust policy",
        )
        return
    denied = sorted(_denied(aws, cluster, found["Arn"])) if NODE_SERVICE in services else []
    if denied:
        yield subject.fail(
            f"may not use {', '.join(denied)}",
            "give it the statements of the policy HyperPodNode, which `make synth` writes for a file without "
            "the role",
        )
    else:
        yield subject.ok("exists, and its service may assume it")


def _trusted(document: str | dict[str, Any]) -> set[str]:
    """Return the services that may assume a role. botocore decodes the document of a real response."""
    policy = json.loads(unquote(document)) if isinstance(document, str) else document
    found: set[str] = set()
    for statement in policy["Statement"]:
        principal = statement.get("Principal", {})
        services = principal.get("Service", []) if isinstance(principal, dict) else []
        if statement["Effect"] == "Allow":
            found.update([services] if isinstance(services, str) else services)
    return found


def _denied(aws: ReadOnlyAws, cluster: Cluster, role_arn: str) -> Iterator[str]:
    """Yield actions that nodes need and the role's policies do not allow.

    They are one action of each kind of statement that has no conditions, because IAM's simulation lacks the
    values of conditions.
    """
    bucket = f"arn:aws:s3:::{artifact_bucket(cluster, aws.account)}"
    here = f"{cluster.region}:{aws.account}"
    log_group = f"/aws/sagemaker/Clusters/{cluster.name}/id"
    needed = {
        "*": [
            "ssmmessages:CreateControlChannel",
            "ecr:GetAuthorizationToken",
            "ec2:DescribeSubnets",
        ],
        bucket: ["s3:ListBucket"],
        f"{bucket}/lifecycle/version/script": ["s3:GetObject"],
        f"arn:aws:logs:{here}:log-group:{log_group}:log-stream:node": ["logs:PutLogEvents"],
        f"arn:aws:ec2:{here}:network-interface/eni-0": ["ec2:CreateNetworkInterface"],
    }
    if isinstance(cluster, EksCluster):
        needed["*"].append("ec2:DescribeInstances")
    data = cluster.storage.data_bucket
    if data.mount_path and data.existing:
        needed[f"arn:aws:s3:::{data.existing}"] = ["s3:ListBucket"]
        needed[f"arn:aws:s3:::{data.existing}/file"] = ["s3:GetObject", "s3:PutObject"]
    for resource, actions in needed.items():
        results = aws.items(
            "iam",
            "simulate_principal_policy",
            "EvaluationResults",
            PolicySourceArn=role_arn,
            ActionNames=actions,
            ResourceArns=[resource],
        )
        for result in results:
            if result["EvalDecision"] != "allowed":
                yield result["EvalActionName"]
