"""cdk-nag's findings on what aws-cdk-lib brings along: the functions behind custom resources."""

from __future__ import annotations

import json

from aws_cdk import Acknowledgment, CfnElement, Stack, Validations
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_lambda as lambda_

from constructs import Construct
from constructs.nag_finding import assets_finding

_MANAGED = "arn:<AWS::Partition>:iam::aws:policy/"


def acknowledge_provider(construct: Construct) -> None:
    """Of a ``custom_resources.Provider`` and the functions beside it, all below one construct."""
    functions = [child for child in construct.node.find_all() if isinstance(child, lambda_.Function)]
    why = "the provider framework's own; aws-cdk-lib sets"
    _acknowledge(
        construct,
        {
            "AwsSolutions-L1": f"{why} the runtime that it is tested with",
            f"AwsSolutions-IAM4[Policy::{_MANAGED}service-role/AWSLambdaBasicExecutionRole]": (
                f"{why} the policy that lets it log"
            ),
            f"AwsSolutions-IAM4[Policy::{_MANAGED}service-role/AWSLambdaVPCAccessExecutionRole]": (
                f"{why} the policy that lets it stand in the VPC"
            ),
            "AwsSolutions-SF1": "it polls; what it finds is in the logs of the function",
            "AwsSolutions-SF2": "it polls; what it finds is in the logs of the function",
            **{
                f"AwsSolutions-IAM5[Resource::<{_logical_id(function)}.Arn>:*]": (
                    "all versions of one function, which the framework calls"
                )
                for function in functions
            },
        },
    )


def acknowledge_kubectl(cluster: eks.Cluster) -> None:
    """Of what installs charts and manifests."""
    stack = Stack.of(cluster)
    provider = cluster.node.find_child("KubectlProvider")
    assert isinstance(provider, Construct)
    condition = provider.node.find_child("Handler").node.find_child("HasEcrPublic")
    assert isinstance(condition, CfnElement)
    public = "iam::aws:policy/AmazonElasticContainerRegistryPublicReadOnly"
    arn = {"Fn::Join": ["", ["arn:", {"Ref": "AWS::Partition"}, f":{public}"]]}
    where_it_is = {"Fn::If": [stack.get_logical_id(condition), arn, {"Ref": "AWS::NoValue"}]}
    why = "the installer of charts is aws-cdk-lib's own, which sets"
    acknowledge_provider(provider)
    _acknowledge(
        provider,
        {
            f"AwsSolutions-IAM4[Policy::{_MANAGED}AmazonEC2ContainerRegistryReadOnly]": f"{why} its policies",
            f"AwsSolutions-IAM4[Policy::{json.dumps(where_it_is, separators=(',', ':'))}]": (
                f"{why} its policies"
            ),
            **{
                f"AwsSolutions-IAM5[Action::{action}]": f"{why} the actions with which it reads charts"
                for action in ("s3:GetBucket*", "s3:GetObject*", "s3:List*")
            },
            assets_finding(stack): "charts are assets, each below a hash of its own",
        },
    )


def _logical_id(function: lambda_.Function) -> str:
    resource = function.node.default_child
    assert isinstance(resource, CfnElement)
    return Stack.of(function).get_logical_id(resource)


def _acknowledge(construct: Construct, findings: dict[str, str]) -> None:
    for finding, reason in findings.items():
        Validations.of(construct).acknowledge(Acknowledgment(id=finding, reason=reason))
