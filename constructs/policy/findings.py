"""Findings of cdk-nag and checkov that do not apply, each with its reason."""

import json
import re
from collections.abc import Mapping
from typing import Any

from aws_cdk import Acknowledgment, CfnElement, CfnResource, Stack, Token, Validations
from aws_cdk import aws_lambda as lambda_

from constructs import Construct, IConstruct

MANAGED = "arn:<AWS::Partition>:iam::aws:policy/"


def acknowledge(construct: IConstruct, reasons: Mapping[str, str]) -> None:
    """Accept findings of cdk-nag on a construct and all constructs below it, each with its reason."""
    for finding, reason in reasons.items():
        Validations.of(construct).acknowledge(Acknowledgment(id=finding, reason=reason))


def skip_check(resource: CfnResource, check_id: str, reason: str) -> None:
    """Skip a check of checkov, which reads skips from a resource's metadata in the template."""
    skipped = (resource.get_metadata("checkov") or {"skip": []})["skip"]
    resource.add_metadata("checkov", {"skip": [*skipped, {"id": check_id, "comment": reason}]})


def wildcard_finding(stack: Stack, resource: str) -> str:
    """Return the id of the finding that a resource has a wildcard.

    cdk-nag writes values that exist only at deployment as ``<name>``.
    """
    text = _written(stack.resolve(resource)) if Token.is_unresolved(resource) else resource
    # cdk-nag writes variables of policies in the same way.
    text = re.sub(r"\$\{(.+?)\}", r"<\1>", text)
    return f"AwsSolutions-IAM5[Resource::{text}]"


def assets_finding(stack: Stack) -> str:
    """Return the id of the finding that a role may read all assets in the bucket of `cdk bootstrap`."""
    bucket = f"cdk-{stack.synthesizer.bootstrap_qualifier}-assets-{stack.account}-{stack.region}"
    return wildcard_finding(stack, f"arn:{stack.partition}:s3:::{bucket}/*")


def _written(value: Any) -> str:
    """Return a resolved value as cdk-nag writes it."""
    match value:
        case {"Fn::Join": ["", [*parts]]}:
            return "".join(map(_written, parts))
        case {"Fn::ImportValue": str(name)}:
            return name
        case {"Ref": name}:
            return f"<{name}>"
        case {"Fn::GetAtt": [name, attribute]}:
            return f"<{name}.{attribute}>"
    return str(value)


def library_findings(owner: str) -> dict[str, str]:
    """Return the findings on a function that aws-cdk-lib defines, each with its reason."""
    return {
        "AwsSolutions-L1": f"{owner}; aws-cdk-lib sets the runtime that it is tested with",
        f"AwsSolutions-IAM4[Policy::{MANAGED}service-role/AWSLambdaBasicExecutionRole]": (
            f"{owner}; aws-cdk-lib sets the policy that lets it log"
        ),
    }


def acknowledge_provider(construct: Construct) -> None:
    """Accept findings on a ``custom_resources.Provider`` and the functions beside it, below one construct."""
    functions = [
        child for child in construct.node.find_all() if isinstance(child, lambda_.Function)
    ]
    owner = "the provider framework's own"
    polls = "the state machine only polls; results are in the logs of the function"
    in_vpc = f"AwsSolutions-IAM4[Policy::{MANAGED}service-role/AWSLambdaVPCAccessExecutionRole]"
    findings = {
        **library_findings(owner),
        in_vpc: f"{owner}; aws-cdk-lib sets the policy that lets it run in the VPC",
        "AwsSolutions-SF1": polls,
        "AwsSolutions-SF2": polls,
    }
    for function in functions:
        versions = wildcard_finding(Stack.of(function), f"{function.function_arn}:*")
        findings[versions] = "the framework may call all versions of one function"
    acknowledge(construct, findings)


def acknowledge_kubectl(provider: Construct) -> None:
    """Accept findings on the installer of charts and manifests."""
    stack = Stack.of(provider)
    condition = provider.node.find_child("Handler").node.find_child("HasEcrPublic")
    assert isinstance(condition, CfnElement)
    public = "iam::aws:policy/AmazonElasticContainerRegistryPublicReadOnly"
    arn = {"Fn::Join": ["", ["arn:", {"Ref": "AWS::Partition"}, f":{public}"]]}
    policy_if_public = {"Fn::If": [stack.get_logical_id(condition), arn, {"Ref": "AWS::NoValue"}]}
    policy_text = json.dumps(policy_if_public, separators=(",", ":"))
    owner = "the installer of charts is aws-cdk-lib's own, which sets"
    findings = {
        f"AwsSolutions-IAM4[Policy::{MANAGED}AmazonEC2ContainerRegistryReadOnly]": f"{owner} its policies",
        f"AwsSolutions-IAM4[Policy::{policy_text}]": f"{owner} its policies",
        assets_finding(stack): "charts are assets, each below its own hash",
    }
    for action in ("s3:GetBucket*", "s3:GetObject*", "s3:List*"):
        findings[f"AwsSolutions-IAM5[Action::{action}]"] = f"{owner} the actions that read charts"
    acknowledge_provider(provider)
    acknowledge(provider, findings)
