"""Resource types that the local AWS deploys, and their calls."""

from __future__ import annotations

import json
from typing import Any

from tests.local_aws.bucket_deployment import BucketDeployment
from tests.local_aws.custom_resources import CUSTOM_TYPES
from tests.local_aws.eks_types import EKS_TYPES
from tests.local_aws.nested_stacks import NestedStack
from tests.local_aws.network_types import EC2_TYPES
from tests.local_aws.resource_model import (
    ApiResource,
    Client,
    Context,
    Properties,
    Resource,
    ResourceType,
    deleting,
)
from tests.local_aws.storage_types import STORAGE_TYPES


def _attach_policies(iam: Client, known: dict[str, Any], arns: list[str]) -> None:
    for arn in arns:
        iam.attach_role_policy(RoleName=known["Ref"], PolicyArn=arn)


def _inline_policies(iam: Client, known: dict[str, Any], policies: list[Properties]) -> None:
    for policy in policies:
        document = json.dumps(policy["PolicyDocument"])
        iam.put_role_policy(
            RoleName=known["Ref"], PolicyName=policy["PolicyName"], PolicyDocument=document
        )


def _delete_role(iam: Client, known: dict[str, Any]) -> None:
    name = known["Ref"]
    for policy in iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"]:
        iam.detach_role_policy(RoleName=name, PolicyArn=policy["PolicyArn"])
    for policy_name in iam.list_role_policies(RoleName=name)["PolicyNames"]:
        iam.delete_role_policy(RoleName=name, PolicyName=policy_name)
    iam.delete_role(RoleName=name)


def _delete_managed_policy(iam: Client, known: dict[str, Any]) -> None:
    for role in iam.list_entities_for_policy(PolicyArn=known["Ref"])["PolicyRoles"]:
        iam.detach_role_policy(RoleName=role["RoleName"], PolicyArn=known["Ref"])
    iam.delete_policy(PolicyArn=known["Ref"])


def _policy(properties: Properties, _: Context) -> Properties:
    (role,) = properties["Roles"]
    return {"RoleName": role, **{k: properties[k] for k in ("PolicyName", "PolicyDocument")}}


def _budget(properties: Properties, context: Context) -> Properties:
    named = {"BudgetName": context.generated_name(), **properties["Budget"]}
    return {**properties, "AccountId": context.account_id, "Budget": named}


def _topic(properties: Properties, _: Context) -> Properties:
    attributes = {
        name: properties[name] for name in ("DisplayName", "KmsMasterKeyId") if name in properties
    }
    return {
        "Name": properties["TopicName"],
        "Attributes": attributes,
        "Tags": properties.get("Tags", []),
    }


def _topic_policy(properties: Properties, _: Context) -> Properties:
    (topic,) = properties["Topics"]
    document = json.dumps(properties["PolicyDocument"])
    return {"TopicArn": topic, "AttributeName": "Policy", "AttributeValue": document}


class Nothing:
    """A resource that calls no service, such as a handle of wait conditions."""

    def create(self, context: Context, type_name: str, properties: Properties) -> Resource:
        return Resource(context, type_name, properties, context.logical_id, {})

    def update(self, context: Context, old: Resource, properties: Properties) -> Resource:
        return old

    def delete(self, resource: Resource, policy: str) -> None:
        pass


RESOURCE_TYPES: dict[str, ResourceType] = {
    "AWS::CloudFormation::WaitConditionHandle": Nothing(),
    **EC2_TYPES,
    **STORAGE_TYPES,
    **EKS_TYPES,
    **CUSTOM_TYPES,
    "Custom::CDKBucketDeployment": BucketDeployment(),
    "AWS::CloudFormation::Stack": NestedStack(),
    "AWS::IAM::Role": ApiResource(
        "iam",
        "create_role",
        "Role.RoleName",
        _delete_role,
        {"Arn": "Role.Arn", "RoleId": "Role.RoleId"},
        generated_name="RoleName",
        settings={"ManagedPolicyArns": _attach_policies, "Policies": _inline_policies},
    ),
    "AWS::IAM::Policy": ApiResource(
        "iam",
        "put_role_policy",
        "PolicyName",
        deleting("delete_role_policy", RoleName="RoleName", PolicyName="PolicyName"),
        prepare=_policy,
        update_operation="put_role_policy",
    ),
    "AWS::IAM::ManagedPolicy": ApiResource(
        "iam",
        "create_policy",
        "Policy.Arn",
        _delete_managed_policy,
        {"PolicyArn": "Ref"},
        generated_name="ManagedPolicyName",
        prepare=lambda p, _: {
            ("PolicyName" if k == "ManagedPolicyName" else k): v for k, v in p.items()
        },
        settings={
            "Roles": lambda iam, known, names: [
                iam.attach_role_policy(RoleName=name, PolicyArn=known["Ref"]) for name in names
            ]
        },
    ),
    "AWS::Lambda::Function": ApiResource(
        "lambda",
        "create_function",
        "FunctionName",
        deleting("delete_function", FunctionName="Ref"),
        {"Arn": "FunctionArn"},
        generated_name="FunctionName",
    ),
    "AWS::Lambda::LayerVersion": ApiResource(
        "lambda",
        "publish_layer_version",
        "LayerVersionArn",
        deleting("delete_layer_version", LayerName="LayerName", VersionNumber="Version"),
        generated_name="LayerName",
    ),
    "AWS::Logs::LogGroup": ApiResource(
        "logs",
        "create_log_group",
        "logGroupName",
        deleting("delete_log_group", logGroupName="Ref"),
        {"Arn": "join(':', ['arn:aws:logs', Region, AccountId, 'log-group', Ref, '*'])"},
        generated_name="LogGroupName",
        settings={
            "RetentionInDays": lambda logs, known, days: logs.put_retention_policy(
                logGroupName=known["Ref"], retentionInDays=days
            )
        },
    ),
    "AWS::SSM::Parameter": ApiResource(
        "ssm",
        "put_parameter",
        "Name",
        deleting("delete_parameter", Name="Name"),
        {"Type": "Type", "Value": "Value"},
        generated_name="Name",
        update_operation="put_parameter",
        prepare=lambda p, _: {**p, "Overwrite": True},
    ),
    "AWS::SSM::Document": ApiResource(
        "ssm",
        "create_document",
        "DocumentDescription.Name",
        deleting("delete_document", Name="Ref"),
        generated_name="Name",
        settings={
            "UpdateMethod": lambda *_: None
        },  # how CloudFormation would change it; not modelled
    ),
    "AWS::APS::Workspace": ApiResource(
        "amp",
        "create_workspace",
        "arn",
        deleting("delete_workspace", workspaceId="workspaceId"),
        {
            "Arn": "arn",
            "WorkspaceId": "workspaceId",
            "PrometheusEndpoint": "workspace.prometheusEndpoint",
        },
        settings={
            "LoggingConfiguration": lambda amp, known, value: amp.create_logging_configuration(
                workspaceId=known["workspaceId"], logGroupArn=value["LogGroupArn"]
            ),
            "AlertManagerDefinition": lambda *_: None,  # moto has none
        },
        observe=lambda amp, known: amp.describe_workspace(workspaceId=known["workspaceId"]),
    ),
    "AWS::SNS::Topic": ApiResource(
        "sns",
        "create_topic",
        "TopicArn",
        deleting("delete_topic", TopicArn="Ref"),
        {"TopicArn": "Ref"},
        generated_name="TopicName",
        prepare=_topic,
    ),
    "AWS::SNS::TopicPolicy": ApiResource(
        "sns",
        "set_topic_attributes",
        "TopicArn",
        lambda *_: None,  # it goes with its topic
        prepare=_topic_policy,
        update_operation="set_topic_attributes",
    ),
    "AWS::SNS::Subscription": ApiResource(
        "sns", "subscribe", "SubscriptionArn", deleting("unsubscribe", SubscriptionArn="Ref")
    ),
    "AWS::Budgets::Budget": ApiResource(
        "budgets",
        "create_budget",
        "Budget.BudgetName",
        deleting("delete_budget", AccountId="AccountId", BudgetName="Ref"),
        prepare=_budget,
    ),
    "AWS::SageMaker::MlflowTrackingServer": ApiResource(
        "sagemaker",
        "create_mlflow_tracking_server",
        "TrackingServerName",
        deleting("delete_mlflow_tracking_server", TrackingServerName="TrackingServerName"),
        {"TrackingServerArn": "TrackingServerArn"},
    ),
    "AWS::SageMaker::Cluster": ApiResource(
        "sagemaker",
        "create_cluster",
        "ClusterArn",
        deleting("delete_cluster", ClusterName="ClusterName"),
        {"ClusterArn": "ClusterArn"},
        update_operation="update_cluster",
        update_keys=frozenset({"ClusterName"}),
    ),
}
