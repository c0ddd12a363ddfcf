"""Policies of CloudFormation's role: enough for every resource of the templates, and no more."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cfnlint.schema import PROVIDER_SCHEMA_MANAGER, ResourceNotFoundError  # type: ignore[import-untyped]

from config.cluster_kinds import AnyCluster
from config.resource_names import construct_ids, stack_names
from tests.local_aws.permissions import holds
from tests.stacks.intrinsics import ACCOUNT, Evaluator
from tests.stacks.studios import STUDIOS, studio_templates
from tests.stacks.synthesized import (
    CLUSTER_FILES,
    EKS_FILES,
    REPOSITORY,
    Templates,
    load,
    read_templates,
    synthesize,
    templates,
)
from tools.stacks import execution_policy
from tools.stacks.execution_policy import (
    MAX_POLICY_CHARACTERS,
    execution_policies,
    not_needed,
)

BOUNDARY = "arn:aws:iam::123456789012:policy/platform/hpc-boundary"
KEY = "arn:aws:kms:us-west-2:210987654321:key/1234abcd-12ab-34cd-56ef-1234567890ab"
OTHER_REGION = "eu-central-1"
"""Region of global services and of IAM Identity Center in these tests."""
LINK_ROLE = (
    f"arn:aws:iam::{ACCOUNT}:role/aws-service-role/s3.data-source.lustre.fsx.amazonaws.com/"
    "AWSServiceRoleForFSxS3Access_fs-0123456789abcdef0"
)
LINKED_ROLE = f"arn:aws:iam::{ACCOUNT}:role/aws-service-role/ops.amazonaws.com/AWSServiceRoleForOps"
ASSETS = f"arn:aws:s3:::cdk-hnb659fds-assets-{ACCOUNT}-us-west-2"
DOCUMENTED = {
    "AWS::FSx::DataRepositoryAssociation": {
        "iam:AttachRolePolicy",
        "s3:GetBucketLocation",
        "s3:PutObject",
    }
}
"""Permissions that FSx's documents and refusals name and the registry does not."""
TO_BUCKETS_ONLY = {"AWS::EC2::FlowLog": {"s3:GetBucketPolicy", "s3:PutBucketPolicy"}}
"""Permissions for flow logs in buckets; ours are in CloudWatch."""


class Request(NamedTuple):
    """Action of CloudFormation's role on a resource, with the condition keys that the service sends."""

    action: str
    arn: str
    context: dict[str, str]


def types_of(name: str) -> set[str]:
    return types_in(templates(f"clusters/{name}.yaml"))


def types_in(stacks: Templates) -> set[str]:
    return {
        resource["Type"] for stack in stacks.values() for resource in stack["Resources"].values()
    }


def statements(policies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [statement for policy in policies for statement in policy["Statement"]]


def is_allowed(policies: list[dict[str, Any]], request: Request) -> bool:
    for statement in statements(policies):
        resource = statement["Resource"]
        patterns = [resource] if isinstance(resource, str) else resource
        if (
            any(fnmatchcase(request.action, action) for action in statement["Action"])
            and any(fnmatchcase(request.arn, pattern) for pattern in patterns)
            and holds(statement.get("Condition", {}), request.context)
        ):
            return True
    return False


class Deployment:
    """Requests that CloudFormation sends to deploy the templates of a cluster."""

    def __init__(self, cluster: AnyCluster, stacks: Templates) -> None:
        self.cluster = cluster
        self.types = types_in(stacks)
        self.policies = execution_policies(cluster, self.types)
        self._evaluate = Evaluator(stacks, cluster.region)
        self._resources = [
            (names[stack], logical_id, resource)
            for names in [dict(zip(construct_ids(cluster), stack_names(cluster), strict=True))]
            for stack, template in stacks.items()
            for logical_id, resource in template["Resources"].items()
        ]
        self._roles = [
            self._role(stack, logical_id, resource["Properties"])
            for stack, logical_id, resource in self._resources
            if resource["Type"] == "AWS::IAM::Role"
        ]

    def requests(self) -> Iterator[Request]:
        """Yield every permission of each resource's handlers, on the resources that the request names."""
        dropped = re.compile("|".join(f"(?:{part})" for part in not_needed(self.cluster)))
        for stack, logical_id, resource in self._resources:
            kind = resource["Type"]
            actions = {*DOCUMENTED.get(kind, ()), *execution_policy.WITHOUT_HANDLERS.get(kind, ())}
            try:
                schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema(self.cluster.region, kind)
            except ResourceNotFoundError:
                assert kind.startswith("Custom::"), kind
                actions.add("lambda:InvokeFunction")
            else:
                for handler in schema.schema.get("handlers", {}).values():
                    actions.update(handler["permissions"])
            for action in actions - TO_BUCKETS_ONLY.get(kind, set()):
                if not dropped.fullmatch(action):
                    for arn in self._arns(stack, logical_id, resource, action):
                        yield Request(action, arn, self._context(action))

    def _arns(
        self, stack: str, logical_id: str, resource: dict[str, Any], action: str
    ) -> list[str]:
        kind = resource["Type"]
        properties = resource.get("Properties", {})
        service, _, operation = action.partition(":")
        if action == "iam:ListRoles":
            return ["*"]
        if operation.endswith("ServiceLinkedRole"):
            return [LINKED_ROLE]
        if service == "iam" and kind == "AWS::FSx::DataRepositoryAssociation":
            return [LINK_ROLE]
        if service == "iam" and kind == "AWS::IAM::Role":
            return [self._role(stack, logical_id, properties)]
        if service == "iam":
            return self._roles
        if service == "s3":
            return self._buckets(stack, logical_id, resource, action)
        if service == "kms" and self.cluster.storage.kms.startswith("arn:"):
            return [self.cluster.storage.kms]
        return [f"arn:aws:{service}:{self.cluster.region}:{ACCOUNT}:some/resource"]

    def _role(self, stack: str, logical_id: str, properties: dict[str, Any]) -> str:
        name = properties.get("RoleName", f"{stack}-{logical_id}-ABCDEFGHIJKL")
        return f"arn:aws:iam::{ACCOUNT}:role{properties.get('Path', '/')}{self._evaluate(name)}"

    def _buckets(
        self, stack: str, logical_id: str, resource: dict[str, Any], action: str
    ) -> list[str]:
        kind = resource["Type"]
        properties = resource.get("Properties", {})
        match kind:
            case "AWS::S3::Bucket":
                name = properties.get("BucketName", f"{stack}-{logical_id}-abcdefgh".lower())
                bucket = f"arn:aws:s3:::{self._evaluate(name)}"
            case "AWS::S3::BucketPolicy":
                name = self._evaluate(properties["Bucket"])
                own = name.startswith("sagemaker-") or stack in name
                bucket = f"arn:aws:s3:::{name}" if own else f"arn:aws:s3:::{stack}-{name}".lower()
            case "AWS::FSx::DataRepositoryAssociation":
                existing = self.cluster.storage.data_bucket.existing
                bucket = f"arn:aws:s3:::{existing or f'{stack}-data0123-abcdefgh'}"
            case _:
                bucket = ASSETS
        return [f"{bucket}/a/b" if action.endswith(("Object", "ObjectVersion")) else bucket]

    def _context(self, action: str) -> dict[str, str]:
        region = self.cluster.region
        if action.partition(":")[0] in execution_policy.GLOBAL:
            region = OTHER_REGION
        context = {"aws:RequestedRegion": region}
        boundary = self.cluster.iam.permissions_boundary
        if action in execution_policy.LIMITED_BY_BOUNDARY and boundary:
            context["iam:PermissionsBoundary"] = boundary
        return context


@cache
def deployments() -> dict[str, Deployment]:
    """The shipped clusters, one of each scheduler with all options, and one that uses what an account has."""
    found = {
        Path(file).stem: Deployment(load(file), templates(file))
        for file in CLUSTER_FILES + EKS_FILES
    }
    for name, cluster in STUDIOS.items():
        found[name] = Deployment(cluster, studio_templates(name))
    storage = {"data_bucket": {"existing": "our-proteins"}, "kms": KEY}
    iam = {"permissions_boundary": BOUNDARY, "role_path": "/hpc/", "role_name_prefix": "team-"}
    existing = load("clusters/slurm.yaml", storage=storage, iam=iam)
    found["existing"] = Deployment(existing, read_templates(synthesize(existing)))
    return found


NAMES = [*(Path(file).stem for file in CLUSTER_FILES + EKS_FILES), *STUDIOS, "existing"]


@pytest.mark.parametrize("name", NAMES)
def test_every_request_of_a_deployment_is_allowed(name: str) -> None:
    deployment = deployments()[name]
    requests = list(deployment.requests())
    assert len(requests) > 100
    refused = [request for request in requests if not is_allowed(deployment.policies, request)]
    # A service-linked role has no boundary.
    link = [request for request in requests if request.arn == LINK_ROLE]
    without = [request._replace(context={}) for request in link]
    refused += [request for request in without if not is_allowed(deployment.policies, request)]
    assert bool(link) == ("AWS::FSx::DataRepositoryAssociation" in deployment.types)
    assert not refused, refused[:5]


@pytest.mark.parametrize("name", NAMES)
def test_policies_are_small_and_name_their_actions(name: str) -> None:
    policies = deployments()[name].policies
    assert all(
        len(json.dumps(policy, separators=(",", ":"))) <= MAX_POLICY_CHARACTERS
        for policy in policies
    )
    allowed = {action for statement in statements(policies) for action in statement["Action"]}
    assert {action for action in allowed if "*" in action} <= {"s3:Get*", "s3:List*"}
    assert not {action for action in allowed if re.match("iam:.*(User|Group|Profile)", action)}
    assert {statement["Effect"] for statement in statements(policies)} == {"Allow"}


def test_nothing_else_of_the_account_can_be_changed() -> None:
    policies = deployments()["existing"].policies
    context = {"aws:RequestedRegion": "us-west-2", "iam:PermissionsBoundary": BOUNDARY}
    role = f"arn:aws:iam::{ACCOUNT}:role"
    for action, arn in (
        ("iam:PutRolePolicy", LINKED_ROLE),
        ("iam:PutRolePolicy", f"{role}/somebody"),
        ("iam:PassRole", f"{role}/somebody"),
        ("iam:DeleteRolePermissionsBoundary", f"{role}/hpc/team-esm2-slurm-x"),
        ("s3:DeleteBucket", "arn:aws:s3:::our-proteins"),
        ("s3:PutLifecycleConfiguration", "arn:aws:s3:::our-proteins"),
        ("s3:PutBucketPolicy", ASSETS),
    ):
        assert not is_allowed(policies, Request(action, arn, context)), action
    own = f"{role}/hpc/team-esm2-slurm-x"
    assert is_allowed(policies, Request("iam:CreateRole", own, context))
    assert not is_allowed(
        policies, Request("iam:CreateRole", own, {"aws:RequestedRegion": "us-west-2"})
    )


def test_identity_center_is_used_only_with_its_sign_in() -> None:
    for name, deployment in deployments().items():
        used = any('"sso:' in json.dumps(policy) for policy in deployment.policies)
        sections = (deployment.cluster.grafana, deployment.cluster.studio)
        assert used == any(part and part.sign_in == "identity_center" for part in sections), name


@pytest.mark.parametrize("name", ["slurm", "eks"])
def test_documents_have_the_policies_of_the_default_clusters(name: str) -> None:
    for number, policy in enumerate(
        execution_policies(load(f"clusters/{name}.yaml"), types_of(name)), 1
    ):
        path = REPOSITORY / "docs" / "policies" / f"esm2-{name}-cloudformation-{number}.json"
        assert json.loads(path.read_text()) == policy, (
            f"renew {path.name} with the command of the page"
        )


def test_command_writes_the_files_and_says_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["execution_policy", "--out", str(tmp_path / "policies")])
    monkeypatch.setattr(execution_policy, "ASSEMBLY", tmp_path)
    with pytest.raises(ValueError, match="run `make synth` with this cluster file first"):
        execution_policy.main()
    for stack, template in templates("clusters/slurm.yaml").items():
        (tmp_path / f"{stack}.template.json").write_text(json.dumps(template))
    assert execution_policy.main() == 0
    *created, bootstrap = capsys.readouterr().out.splitlines()
    assert len(created) == len(list((tmp_path / "policies").iterdir()))
    assert bootstrap.startswith(
        'make bootstrap CLUSTER=clusters/slurm.yaml ARGS="--cloudformation-execution-policies arn:aws:iam::'
    )
