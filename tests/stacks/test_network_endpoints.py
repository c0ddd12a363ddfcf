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
    services = [
        endpoint["ServiceName"] for endpoint in endpoints(network_template(name), "Interface")
    ]

    assert sorted(services) == sorted(
        f"com.amazonaws.{region}.{service}" for service in ENDPOINTS - without
    )


@pytest.mark.parametrize(
    ("name", "others"), [("closed", set()), ("slurm-p5", set()), ("existing", {"172.16.0.0/16"})]
)
def test_interface_endpoints_answer_whom_their_names_are_given_to(
    name: str, others: set[str]
) -> None:
    """The cluster; in a VPC that was there before, everyone in it: private names are the whole VPC's."""
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
    (rule,) = ingress
    assert rule["SourceSecurityGroupId"]["Fn::GetAtt"][0] == cluster_group(template)
    inline = template.resources()[group]["Properties"].get("SecurityGroupIngress", [])
    assert {found["CidrIp"] for found in inline} == others
    ports = {(found["IpProtocol"], found["FromPort"], found["ToPort"]) for found in [rule, *inline]}
    assert ports == {("tcp", 443, 443)}


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


@pytest.mark.parametrize("name", ["slurm", "slurm-p5", "existing"])
def test_an_s3_endpoint_of_an_open_or_shared_network_has_no_policy(name: str) -> None:
    (endpoint,) = endpoints(network_template(name), "Gateway")
    assert "PolicyDocument" not in endpoint


def test_only_this_accounts_identities_write_out_of_a_closed_network() -> None:
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
