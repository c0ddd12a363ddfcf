"""Stacks by their templates, without the command line; and templates of clusters of EKS."""

from __future__ import annotations

import json
from typing import Any

from tests.local_aws.deployment import ACCOUNT, LocalAws

REGION = "eu-west-1"  # apart from the regions of the shipped cluster files

Resources = dict[str, dict[str, Any]]
CLUSTER_POLICY = "arn:aws:iam::aws:policy/AmazonEKSClusterPolicy"
CLUSTERS = f"arn:aws:eks:{REGION}:{ACCOUNT}:cluster/*"


def service_role(service: str, *actions: str, **more: Any) -> dict[str, Any]:
    """A role that the service may assume for a cluster."""
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": service},
        "Action": list(actions),
        "Condition": {"ArnEquals": {"aws:SourceArn": CLUSTERS}},
    }
    document = {"Version": "2012-10-17", "Statement": [statement]}
    return {
        "Type": "AWS::IAM::Role",
        "Properties": {"AssumeRolePolicyDocument": document, **more},
    }


def control_plane(name: str, **properties: Any) -> Resources:
    """A network of two zones, and a cluster in it."""
    subnets = {
        f"Subnet{number}": {
            "Type": "AWS::EC2::Subnet",
            "Properties": {
                "VpcId": {"Ref": "Vpc"},
                "CidrBlock": f"10.0.{number}.0/24",
                "AvailabilityZoneId": f"euw1-az{number}",
            },
        }
        for number in (1, 2)
    }
    cluster = {
        "Name": name,
        "Version": "1.33",
        "RoleArn": {"Fn::GetAtt": ["Role", "Arn"]},
        "AccessConfig": {"AuthenticationMode": "API"},
        "ResourcesVpcConfig": {"SubnetIds": [{"Ref": name} for name in subnets]},
    }
    return {
        "Vpc": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.0.0.0/16"}},
        **subnets,
        "Role": service_role(
            "eks.amazonaws.com", "sts:AssumeRole", ManagedPolicyArns=[CLUSTER_POLICY]
        ),
        "Cluster": {"Type": "AWS::EKS::Cluster", "Properties": {**cluster, **properties}},
    }


class Stacks:
    def __init__(self, aws: LocalAws) -> None:
        self.cloudformation = aws.client("cloudformation", REGION)

    def deploy(
        self, name: str, resources: Resources, *, kind: str = "CREATE", outputs: Any = None
    ) -> str:
        """Returns the status."""
        template = {"Resources": resources, "Outputs": outputs or {}}
        change_set = self.cloudformation.create_change_set(
            StackName=name,
            ChangeSetName="change",
            ChangeSetType=kind,
            TemplateBody=json.dumps(template),
        )
        self.cloudformation.execute_change_set(ChangeSetName=change_set["Id"])
        self.cloudformation.delete_change_set(ChangeSetName=change_set["Id"])
        return self.status(name)

    def delete(self, name: str) -> str:
        stack_id = self.cloudformation.describe_stacks(StackName=name)["Stacks"][0]["StackId"]
        self.cloudformation.delete_stack(StackName=name)
        return self.status(stack_id)

    def status(self, name: str) -> str:
        return str(self.cloudformation.describe_stacks(StackName=name)["Stacks"][0]["StackStatus"])

    def reasons(self, name: str) -> str:
        return "\n".join(event.get("ResourceStatusReason", "") for event in self.events(name))

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the events of a stack, the newest first."""
        pages = self.cloudformation.get_paginator("describe_stack_events").paginate(StackName=name)
        return [event for page in pages for event in page["StackEvents"]]
