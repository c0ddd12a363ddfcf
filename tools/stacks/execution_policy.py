"""Write the least-privilege policies of the role with which CloudFormation deploys a cluster's stacks.

``python -m tools.stacks.execution_policy --cluster FILE --out FOLDER`` reads the templates that `make synth`
wrote to cdk.out. It writes one JSON file per IAM policy and prints the commands that create the policies and
bootstrap the account with them. The actions are those of CloudFormation's resource registry (``handlers`` of
each type's schema, bundled with cfn-lint), except those for features that no stack uses (``NOT_NEEDED``).
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cfnlint.schema import PROVIDER_SCHEMA_MANAGER, ResourceNotFoundError  # type: ignore[import-untyped]

from config.cluster import Cluster
from config.eks_cluster import EksCluster
from config.reading.loader import load_cluster
from config.resource_names import construct_ids, existing_roles, stack_names, wanted_stacks
from tools.command_line import cluster_parser, run_command
from tools.stacks.diff import ASSEMBLY

MAX_POLICY_CHARACTERS = 6_144
"""Limit of a managed policy, without white space (IAM user guide, "IAM and AWS STS quotas")."""
MAX_POLICIES = 10
"""Default quota of managed policies per role (same page)."""
GLOBAL = {"billing", "budgets", "iam", "identitystore", "organizations", "sso"}
"""Services whose requests have no region, or another region than the cluster's. IAM Identity Center has its
own region."""
NOT_NEEDED: Mapping[str, str] = {
    r"iam:\w+(UserPolicy|GroupPolicy)": "no stack has users or groups",
    r"iam:\w+InstanceProfile": "for nodes of EKS Auto Mode, which no stack turns on",
    r"s3:ListAllMyBuckets": "lists all buckets of the account; a deployment names its own",
    r"s3:REST\.PUT\.OBJECT": "no action of IAM, but an operation in S3's access logs",
    r"s3tables:\w+": "for tables of S3 Metadata, which no bucket has",
    r"autoscaling:\w+": "for flow logs of Auto Scaling groups",
    r"firehose:\w+": "for deliveries of logs to Firehose",
    r"vpc-lattice:\w+": "for endpoints of service networks",
    r"vpce:\w+": "for endpoints of services in other regions",
    r"(elasticfilesystem|s3files):\w+": "functions mount no file system",
    r"(docdb-elastic|redshift|redshift-serverless):\w+": "for secrets of databases other than RDS",
}
"""Permissions of handlers that no deployment of the stacks uses, as patterns with the reason."""
ONLY_FOR_EKS = (r"eks:\w+", "for HyperPod clusters with Kubernetes")
ONLY_FOR_IDENTITY_CENTER = (
    r"(identitystore|organizations|sso):\w+",
    "for sign-in through IAM Identity Center",
)
ONLY_WITHOUT_BOUNDARY = (
    r"iam:DeleteRolePermissionsBoundary",
    "would remove the boundary that the cluster file requires",
)
LINK = "AWS::FSx::DataRepositoryAssociation"
WITHOUT_HANDLERS = {
    "AWS::FSx::FileSystem": [
        "fsx:CreateFileSystem",
        "fsx:DeleteFileSystem",
        "fsx:DescribeFileSystems",
        "fsx:ListTagsForResource",
        "fsx:TagResource",
        "fsx:UntagResource",
        "fsx:UpdateFileSystem",
        "iam:CreateServiceLinkedRole",
    ],
}
"""Actions of types for which the registry lists none."""
SERVICE_LINKED_ROLES = "arn:aws:iam::*:role/aws-service-role/*"
ROLE_OF_LINK = "arn:aws:iam::*:role/aws-service-role/s3.data-source.lustre.fsx.amazonaws.com/*"
"""Service-linked role that FSx creates with the caller's permissions for each linked file system (FSx for
Lustre user guide, "Adding permissions to use data repositories in Amazon S3")."""
POLICIES_OF_LINK = ["iam:AttachRolePolicy", "iam:PutRolePolicy"]
"""Actions that set up that role. It has no permissions boundary."""
BUCKET_OF_LINK = ["s3:Get*", "s3:List*", "s3:PutBucketPolicy", "s3:PutObject"]
"""Actions with which FSx examines the linked bucket as the caller. FSx's refusal names the first two and
s3:PutObject, CloudFormation's registry s3:PutBucketPolicy."""
ASSET_ACTIONS = {"s3:GetBucketLocation", "s3:GetObject", "s3:GetObjectVersion", "s3:ListBucket"}
"""Actions on the bucket of `cdk bootstrap`, from which functions and layers get their code."""
UNSCOPED_IAM = {"iam:ListRoles"}
"""Actions of IAM without resource-level permissions."""
LIMITED_BY_BOUNDARY = {
    "iam:AttachRolePolicy",
    "iam:CreateRole",
    "iam:PutRolePermissionsBoundary",
    "iam:PutRolePolicy",
}
"""Actions that are allowed only on roles with the permissions boundary."""
CUSTOM = ["lambda:InvokeFunction"]
"""Action of resources that a function of the stack handles."""
ASSETS = ["s3:GetObject", "ssm:GetParameters"]
"""Actions that read the CDK's uploads and the version of its bootstrap stack."""
Statement = dict[str, Any]


def main() -> int:
    parser = cluster_parser(__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="folder of the JSON files"
    )
    options = parser.parse_args()
    cluster = load_cluster(options.cluster)
    policies = execution_policies(cluster, _resource_types(cluster))
    options.out.mkdir(parents=True, exist_ok=True)
    arns = []
    for number, policy in enumerate(policies, 1):
        name = f"{cluster.name}-cloudformation-{number}"
        path = options.out / f"{name}.json"
        path.write_text(json.dumps(policy, indent=2) + "\n")
        print(f"aws iam create-policy --policy-name {name} --policy-document file://{path}")
        arns.append(f"arn:aws:iam::$ACCOUNT:policy/{name}")
    options_of_policies = f"--cloudformation-execution-policies {','.join(arns)}"
    # `make bootstrap` itself adds the file's permissions boundary.
    print(f'make bootstrap CLUSTER={options.cluster} ARGS="{options_of_policies}"')
    return 0


def execution_policies(cluster: Cluster, resource_types: Iterable[str]) -> list[dict[str, Any]]:
    """Return policies that together allow CloudFormation to create, update and delete the types.

    Raises:
        ValueError: if they are more than a role can have.
    """
    types = set(resource_types)
    actions = defaultdict[str, set[str]](set)
    for action in _actions(cluster, types):
        actions[action.partition(":")[0]].add(action)
    policies: list[list[Statement]] = [[]]
    for service, names in sorted(actions.items()):
        for statement in _statements(cluster, service, names, has_link=LINK in types):
            if _size([*policies[-1], statement]) > MAX_POLICY_CHARACTERS:
                policies.append([])
            policies[-1].append(statement)
    if len(policies) > MAX_POLICIES:
        raise ValueError(f"{len(policies)} policies are needed, but a role can have {MAX_POLICIES}")
    return [_policy(statements) for statements in policies]


def not_needed(cluster: Cluster) -> dict[str, str]:
    """Return patterns of permissions that the cluster's stacks do not need, each with its reason."""
    patterns = dict(NOT_NEEDED)
    sign_ins = {part.sign_in for part in (cluster.grafana, cluster.studio) if part}
    if not isinstance(cluster, EksCluster):
        patterns.update([ONLY_FOR_EKS])
    if "identity_center" not in sign_ins:
        patterns.update([ONLY_FOR_IDENTITY_CENTER])
    if cluster.iam.permissions_boundary:
        patterns.update([ONLY_WITHOUT_BOUNDARY])
    return patterns


def _resource_types(cluster: Cluster) -> set[str]:
    """Return the resource types in the synthesized templates of the cluster."""
    files = [
        ASSEMBLY / f"{stack}.template.json"
        for stack in wanted_stacks(cluster, construct_ids(cluster))
    ]
    if missing := [str(file) for file in files if not file.is_file()]:
        raise ValueError(
            f"{missing[0]} does not exist; run `make synth` with this cluster file first"
        )
    resources = [json.loads(file.read_text())["Resources"].values() for file in files]
    return {resource["Type"] for found in resources for resource in found}


def _actions(cluster: Cluster, resource_types: set[str]) -> set[str]:
    """Return the actions with which CloudFormation creates, updates and deletes the types."""
    actions = set(ASSETS)
    if any(name.startswith("Custom::") for name in resource_types):
        actions.update(CUSTOM)
    for resource_type in resource_types:
        actions.update(WITHOUT_HANDLERS.get(resource_type, []))
        try:
            found = PROVIDER_SCHEMA_MANAGER.get_resource_schema(cluster.region, resource_type)
        except ResourceNotFoundError:
            continue
        for handler in found.schema.get("handlers", {}).values():
            actions.update(handler["permissions"])
    dropped = re.compile("|".join(f"(?:{pattern})" for pattern in not_needed(cluster)))
    return {action for action in actions if not dropped.fullmatch(action)}


def _statements(
    cluster: Cluster, service: str, actions: set[str], *, has_link: bool
) -> list[Statement]:
    """Return the statements of one service, limited to the cluster's names if the service has names.

    Args:
        cluster: cluster file.
        service: prefix of the actions.
        actions: actions of the service.
        has_link: whether the storage stack links a bucket to Lustre.
    """
    if service == "iam":
        return _iam_statements(cluster, actions, has_link=has_link)
    if service == "s3":
        statements = _bucket_statements(cluster, actions, has_link=has_link)
    else:
        statements = [_allow(sorted(actions), "*")]
    if service not in GLOBAL:
        for statement in statements:
            statement["Condition"] = {"StringEquals": {"aws:RequestedRegion": cluster.region}}
    return statements


def _bucket_statements(cluster: Cluster, actions: set[str], *, has_link: bool) -> list[Statement]:
    """Return statements for the stacks' buckets, the CDK's bucket, and the bucket that FSx links."""
    # CloudFormation's own names begin with the stack's, which begins with the cluster's.
    own = [f"arn:aws:s3:::{name}" for name in (f"sagemaker-{cluster.name}-*", f"{cluster.name}-*")]
    statements = [
        _allow(sorted(actions), own),
        _allow(sorted(ASSET_ACTIONS), "arn:aws:s3:::cdk-*-assets-*"),
    ]
    if has_link:
        existing = cluster.storage.data_bucket.existing
        bucket = f"arn:aws:s3:::{existing or f'{stack_names(cluster).storage}-*'}"
        statements.append(_allow(BUCKET_OF_LINK, [bucket, f"{bucket}/*"] if existing else bucket))
    return statements


def _iam_statements(cluster: Cluster, actions: set[str], *, has_link: bool) -> list[Statement]:
    """Return statements for the cluster's roles. A boundary may not be left out of a role, or be removed."""
    iam = cluster.iam
    roles = f"arn:aws:iam::*:role{iam.role_path}{iam.role_name_prefix or ''}{cluster.name}-*"
    service_linked = {"iam:CreateServiceLinkedRole", "iam:DeleteServiceLinkedRole"} & actions
    unscoped = UNSCOPED_IAM & actions
    # Services look their own roles up before they create them.
    looked_up = {"iam:GetRole"} & actions
    statements = [_allow(sorted(service_linked | looked_up), SERVICE_LINKED_ROLES)]
    if has_link:
        statements.append(_allow(POLICIES_OF_LINK, ROLE_OF_LINK))
    if unscoped:
        statements.append(_allow(sorted(unscoped), "*"))
    actions = actions - service_linked - unscoped
    if boundary := iam.permissions_boundary:
        limited = LIMITED_BY_BOUNDARY & actions
        with_boundary = _allow(sorted(limited), roles)
        with_boundary["Condition"] = {"StringEquals": {"iam:PermissionsBoundary": boundary}}
        statements.append(with_boundary)
        actions -= limited
    if existing := _existing_roles(cluster):
        statements.append(_allow(["iam:GetRole", "iam:PassRole"], existing))
    return [*statements, _allow(sorted(actions), roles)]


def _existing_roles(cluster: Cluster) -> list[str]:
    """Return the ARNs of the roles that the file names, which CloudFormation only passes to services."""
    return [
        role if role.startswith("arn:") else f"arn:aws:iam::*:role/{role}"
        for role in dict.fromkeys(existing_roles(cluster).values())
    ]


def _allow(actions: list[str], resources: str | list[str]) -> Statement:
    return {"Effect": "Allow", "Action": actions, "Resource": resources}


def _policy(statements: list[Statement]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": statements}


def _size(statements: list[Statement]) -> int:
    return len(json.dumps(_policy(statements), separators=(",", ":")))


if __name__ == "__main__":
    run_command(main)
