"""Every action of AWS's own node roles is granted, narrower or omitted, each for a stated reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from moto.iam.aws_managed_policies import aws_managed_policies_data

from stacks.cluster_stacks import add_checks, add_stacks
from tests.stacks.synthesized import load, new_app, read_templates, resources, templates

MANAGED = "AmazonSageMakerClusterInstanceRolePolicy"
"""AWS managed policy; moto has a copy of it."""
INTERFACES = "only in the cluster's subnets, security group or VPC"
SETUP_SLURM = {
    "ec2:CreateNetworkInterface": INTERFACES,
    "ec2:CreateNetworkInterfacePermission": INTERFACES,
    "ec2:CreateTags": "only on network interfaces, in the cluster's VPC",
    "ec2:DeleteNetworkInterface": INTERFACES,
    "ec2:DeleteNetworkInterfacePermission": INTERFACES,
    "ec2:DescribeDhcpOptions": "",
    "ec2:DescribeNetworkInterfaces": "",
    "ec2:DescribeSecurityGroups": "",
    "ec2:DescribeSubnets": "",
    "ec2:DescribeVpcs": "",
    "ec2:DetachNetworkInterface": "only in the cluster's VPC",
    "s3:DeleteObject": "omitted: nodes write to no bucket; Lustre exports results",
    "s3:GetObject": "only lifecycle scripts, workload code and downloads",
    "s3:ListBucket": "only the artifact bucket",
    "s3:PutObject": "omitted: nodes write to no bucket; Lustre exports results",
}
"""Actions of slurm/cloudformation/slurm-iam-role-template.yaml in aws/sagemaker-hyperpod-cluster-setup, at
b920fcf4, with how our role is narrower or why it omits them; empty if it grants them as AWS does."""
SETUP_EKS = {
    **{
        action: reason for action, reason in SETUP_SLURM.items() if not reason.startswith("omitted")
    },
    "cloudwatch:DescribeAlarms": "omitted: only with rollback_alarms",
    "ec2:AssignPrivateIpAddresses": "only in the cluster's VPC",
    "ec2:AttachNetworkInterface": "only in the cluster's VPC",
    "ec2:DescribeInstanceTypes": "",
    "ec2:DescribeInstances": "",
    "ec2:DescribeTags": "",
    "ec2:ModifyNetworkInterfaceAttribute": "only in the cluster's VPC",
    "ec2:UnassignPrivateIpAddresses": "only in the cluster's VPC",
    "ecr:BatchCheckLayerAvailability": "only on repositories",
    "ecr:BatchGetImage": "only on repositories",
    "ecr:GetAuthorizationToken": "",
    "ecr:GetDownloadUrlForLayer": "only on repositories",
    "eks-auth:AssumeRoleForPodIdentity": "",
}
"""The same of eks/cloudformation/sagemaker-iam-role-template.yaml."""
IN_MANAGED = {
    "cloudwatch:PutMetricData": "",
    "logs:CreateLogGroup": "only log groups of the cluster's name",
    "logs:CreateLogStream": "only log groups of the cluster's name",
    "logs:DescribeLogStreams": "only log groups of the cluster's name",
    "logs:PutLogEvents": "only log groups of the cluster's name",
    "s3:GetObject": "only the artifact bucket",
    "s3:ListBucket": "only the artifact bucket",
    "ssmmessages:CreateControlChannel": "",
    "ssmmessages:CreateDataChannel": "",
    "ssmmessages:OpenControlChannel": "",
    "ssmmessages:OpenDataChannel": "",
}
"""The same of the managed policy, with which both templates begin."""


def actions_of(document: dict[str, Any]) -> set[str]:
    listed = [statement["Action"] for statement in document["Statement"]]
    return {
        action
        for actions in listed
        for action in ([actions] if isinstance(actions, str) else actions)
    }


def granted(file: str) -> set[str]:
    """Return the actions of all roles of nodes, which SageMaker assumes."""
    template = list(templates(file).values())[2]
    nodes = {
        name
        for name, role in resources(template, "AWS::IAM::Role").items()
        if "HyperPod cluster" in role["Properties"].get("Description", "")
    }
    inline = [
        policy["PolicyDocument"]
        for name in nodes
        for policy in resources(template, "AWS::IAM::Role")[name]["Properties"].get("Policies", [])
    ]
    attached = [
        policy["Properties"]["PolicyDocument"]
        for policy in resources(template, "AWS::IAM::Policy").values()
        if {role["Ref"] for role in policy["Properties"]["Roles"]} & nodes
    ]
    assert nodes and inline + attached
    return {action for document in inline + attached for action in actions_of(document)}


def test_the_table_has_every_action_of_the_managed_policy() -> None:
    """A newer copy with another action fails here, so that it gets a line."""
    document = json.loads(aws_managed_policies_data)[MANAGED]["Document"]
    assert actions_of(document) == IN_MANAGED.keys()


@pytest.mark.parametrize(
    ("file", "table"), [("clusters/slurm.yaml", SETUP_SLURM), ("clusters/eks.yaml", SETUP_EKS)]
)
def test_the_role_grants_all_but_the_omitted_actions(file: str, table: dict[str, str]) -> None:
    wanted = {**table, **IN_MANAGED}
    omitted = {action for action, reason in wanted.items() if reason.startswith("omitted")}
    assert wanted.keys() - granted(file) == omitted


def test_the_managed_policy_can_be_attached_too() -> None:
    app = new_app("clusters/slurm.yaml")
    add_stacks(app, load("clusters/slurm.yaml", iam={"node_policy": "managed"}))
    add_checks(app)
    template = read_templates(Path(app.synth().directory))["SlurmHyperPodStack"]
    attached = [
        json.dumps(role["Properties"].get("ManagedPolicyArns"))
        for role in resources(template, "AWS::IAM::Role").values()
        if "HyperPod cluster" in role["Properties"].get("Description", "")
    ]
    assert len(attached) == 2 and all(MANAGED in arns for arns in attached)


def test_the_health_agent_writes_logs_without_the_nodes_credentials() -> None:
    template = templates("clusters/eks.yaml")["EksHyperPodStack"]
    (association,) = [
        found["Properties"]
        for found in resources(template, "AWS::EKS::PodIdentityAssociation").values()
        if found["Properties"]["ServiceAccount"] == "health-monitoring-agent"
    ]
    assert association["Namespace"] == "aws-hyperpod"
    role = template["Resources"][association["RoleArn"]["Fn::GetAtt"][0]]["Properties"]
    (policy,) = role["Policies"]
    assert actions_of(policy["PolicyDocument"]) == {
        *("cloudwatch:PutMetricData", "logs:CreateLogGroup", "logs:CreateLogStream"),
        *("logs:DescribeLogStreams", "logs:PutLogEvents"),
    }
