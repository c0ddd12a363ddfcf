"""Write the least-privilege policies of the role with which CloudFormation deploys a cluster's stacks.

``python -m tools.stacks.execution_policy --cluster FILE --out FOLDER`` reads the templates that `make synth`
wrote to cdk.out. It writes one JSON file per IAM policy and prints the commands that create the policies and
bootstrap the account with them. The actions are those of CloudFormation's resource registry (``handlers`` of
each type's schema, bundled with cfn-lint).
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cfnlint.schema import PROVIDER_SCHEMA_MANAGER, ResourceNotFoundError  # type: ignore[import-untyped]

from config.cluster import Cluster
from config.reading.loader import load_cluster
from config.resource_names import construct_ids, wanted_stacks
from tools.command_line import cluster_parser, run_command
from tools.stacks.diff import ASSEMBLY

MAX_POLICY_CHARACTERS = 6_144
"""Limit of a managed policy, without white space (IAM user guide, "IAM and AWS STS quotas")."""
MAX_POLICIES = 10
"""Default quota of managed policies per role (same page)."""
SERVICES = {"ApplicationAutoScaling": "application-autoscaling", "StepFunctions": "states"}
"""Prefixes of actions that differ from the service's name in resource types."""
ALWAYS = {"iam", "kms"}
"""Services that the types of other services call."""
GLOBAL = {"budgets", "iam"}
"""Services whose requests have no region of the cluster."""
NOT_OURS = re.compile(r"iam:\w+(UserPolicy|GroupPolicy|InstanceProfile)|s3:ListAllMyBuckets")
"""Actions for properties that no stack sets, and that would give access to the whole account."""
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
    print(f'make bootstrap ARGS="--cloudformation-execution-policies {",".join(arns)}"')
    return 0


def execution_policies(cluster: Cluster, resource_types: Iterable[str]) -> list[dict[str, Any]]:
    """Return policies that together allow CloudFormation to create, update and delete the types.

    Raises:
        ValueError: if they are more than a role can have.
    """
    actions = defaultdict[str, set[str]](set)
    for action in _actions(cluster.region, set(resource_types)):
        actions[action.partition(":")[0]].add(action)
    policies: list[list[Statement]] = [[]]
    for service, names in sorted(actions.items()):
        for statement in _statements(cluster, service, names):
            if _size([*policies[-1], statement]) > MAX_POLICY_CHARACTERS:
                policies.append([])
            policies[-1].append(statement)
    if len(policies) > MAX_POLICIES:
        raise ValueError(f"{len(policies)} policies are needed, but a role can have {MAX_POLICIES}")
    return [_policy(statements) for statements in policies]


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


def _actions(region: str, resource_types: set[str]) -> set[str]:
    """Return the actions with which CloudFormation creates, updates and deletes the types."""
    names = {name.split("::")[1] for name in resource_types if name.startswith("AWS::")}
    services = ALWAYS | {SERVICES.get(name, name.lower()) for name in names}
    actions = set(ASSETS)
    if any(name.startswith("Custom::") for name in resource_types):
        actions.update(CUSTOM)
    for resource_type in resource_types:
        actions.update(WITHOUT_HANDLERS.get(resource_type, []))
        try:
            schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema(region, resource_type).schema
        except ResourceNotFoundError:
            continue
        for handler in schema.get("handlers", {}).values():
            actions.update(handler["permissions"])
    return {
        action
        for action in actions
        if re.fullmatch(r"[a-z0-9-]+:\w+", action)
        and action.partition(":")[0] in services
        and not NOT_OURS.fullmatch(action)
    }


def _statements(cluster: Cluster, service: str, actions: set[str]) -> list[Statement]:
    """Return the statements of one service, limited to the cluster's names where it has any."""
    if service == "iam":
        return _iam_statements(cluster, actions)
    statement: Statement = {"Effect": "Allow", "Action": sorted(actions), "Resource": "*"}
    if service == "s3":
        # CloudFormation's own names begin with the stack's, which begins with the cluster's.
        names = (f"sagemaker-{cluster.name}-*", f"{cluster.name}-*", "cdk-*-assets-*")
        statement["Resource"] = [f"arn:aws:s3:::{name}" for name in names]
    if service not in GLOBAL:
        statement["Condition"] = {"StringEquals": {"aws:RequestedRegion": cluster.region}}
    return [statement]


def _iam_statements(cluster: Cluster, actions: set[str]) -> list[Statement]:
    """Return statements for the cluster's roles. A boundary may not be left out of a role, or be removed."""
    iam = cluster.iam
    roles = f"arn:aws:iam::*:role{iam.role_path}{iam.role_name_prefix or ''}{cluster.name}-*"
    linked = "arn:aws:iam::*:role/aws-service-role/*"
    service_linked = {"iam:CreateServiceLinkedRole", "iam:DeleteServiceLinkedRole"} & actions
    actions = actions - service_linked
    statements: list[Statement] = [
        {"Effect": "Allow", "Action": sorted(service_linked), "Resource": linked}
    ]
    if boundary := iam.permissions_boundary:
        limited = LIMITED_BY_BOUNDARY & actions
        condition = {"StringEquals": {"iam:PermissionsBoundary": boundary}}
        statements.append(
            {
                "Effect": "Allow",
                "Action": sorted(limited),
                "Resource": roles,
                "Condition": condition,
            }
        )
        actions -= limited | {"iam:DeleteRolePermissionsBoundary"}
    return [*statements, {"Effect": "Allow", "Action": sorted(actions), "Resource": roles}]


def _policy(statements: list[Statement]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": statements}


def _size(statements: list[Statement]) -> int:
    return len(json.dumps(_policy(statements), separators=(",", ":")))


if __name__ == "__main__":
    run_command(main)
