from __future__ import annotations

import pytest

from config.cluster import NewVpc
from tests.stacks.base_templates import clusters, network_template
from tests.stacks.found_resources import cluster_group, endpoints, subnets

NEW = [name for name, cluster in clusters().items() if isinstance(cluster.network, NewVpc)]
ENDPOINTS = {
    "ecr.api",
    "ecr.dkr",
    "ssm",
    "ssmmessages",
    "ec2messages",
    "ec2",
    "sts",
    "kms",
    "logs",
    "monitoring",
    "secretsmanager",
    "sagemaker.api",
    "fsx",
    "aps-workspaces",
}
"""All that nodes of a Slurm cluster call, beside S3."""


@pytest.mark.parametrize(("name", "without"), [("closed", set()), ("existing", {"aps-workspaces"})])
def test_interface_endpoints_are_all_there(name: str, without: set[str]) -> None:
    """``existing`` has no metrics workspace."""
    region = clusters()[name].region
    services = [endpoint["ServiceName"] for endpoint in endpoints(network_template(name), "Interface")]

    assert sorted(services) == sorted(f"com.amazonaws.{region}.{service}" for service in ENDPOINTS - without)


@pytest.mark.parametrize("name", ["closed", "existing", "slurm-p5"])
def test_interface_endpoints_answer_the_cluster_only(name: str) -> None:
    template = network_template(name)
    made = endpoints(template, "Interface")
    groups = {group["Fn::GetAtt"][0] for endpoint in made for group in endpoint["SecurityGroupIds"]}
    (group,) = groups
    ingress = [
        rule
        for rule in template.properties("AWS::EC2::SecurityGroupIngress")
        if rule["GroupId"]["Fn::GetAtt"][0] == group
    ]

    assert all(endpoint["PrivateDnsEnabled"] is True for endpoint in made)
    assert all(len(endpoint["SubnetIds"]) == 1 for endpoint in made)
    assert [(rule["IpProtocol"], rule["FromPort"], rule["ToPort"]) for rule in ingress] == [("tcp", 443, 443)]
    assert ingress[0]["SourceSecurityGroupId"]["Fn::GetAtt"][0] == cluster_group(template)
    assert "SecurityGroupIngress" not in template.resources()[group]["Properties"]


def test_endpoints_are_an_option_of_an_open_network() -> None:
    assert not endpoints(network_template("slurm"), "Interface")
    assert endpoints(network_template("slurm-p5"), "Interface")


@pytest.mark.parametrize("name", NEW)
def test_s3_is_reached_through_the_gateway_endpoint(name: str) -> None:
    template = network_template(name)
    (endpoint,) = endpoints(template, "Gateway")
    tables = {
        association["RouteTableId"]["Ref"]
        for association in template.properties("AWS::EC2::SubnetRouteTableAssociation")
        if association["SubnetId"]["Ref"] in subnets(template, "private")
    }

    assert endpoint["ServiceName"] == f"com.amazonaws.{clusters()[name].region}.s3"
    assert {table["Ref"] for table in endpoint["RouteTableIds"]} == tables
    assert len(endpoint["RouteTableIds"]) == len(tables)


def test_only_this_accounts_identities_write_through_the_s3_endpoint() -> None:
    (endpoint,) = endpoints(network_template("closed"), "Gateway")
    own, foreign = endpoint["PolicyDocument"]["Statement"]

    assert own["Condition"] == {"StringEquals": {"aws:PrincipalAccount": {"Ref": "AWS::AccountId"}}}
    assert {statement["Effect"] for statement in (own, foreign)} == {"Allow"}
    assert foreign["Action"] == [
        "s3:GetBucketLocation",
        "s3:GetObject",
        "s3:GetObjectVersion",
        "s3:ListBucket",
    ]
