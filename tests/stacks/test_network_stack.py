from __future__ import annotations

from typing import Any

import pytest

from config.cluster import ExistingVpc, NewVpc
from tests.stacks.base_templates import KINDS, Template, clusters, network_template, templates
from tests.stacks.found_resources import cluster_group, endpoints, subnets

NEW = [name for name, cluster in clusters().items() if isinstance(cluster.network, NewVpc)]
NAT = [name for name in NEW if name != "closed"]
EVERYWHERE = "0.0.0.0/0"


def routes_of(template: Template, subnet_id: str) -> dict[str, dict[str, Any]]:
    """The routes of the table that a subnet is associated with."""
    (table,) = (
        association["RouteTableId"]["Ref"]
        for association in template.properties("AWS::EC2::SubnetRouteTableAssociation")
        if association["SubnetId"] == {"Ref": subnet_id}
    )
    return {
        name: route
        for name, route in template.resources("AWS::EC2::Route").items()
        if route["Properties"]["RouteTableId"] == {"Ref": table}
    }


@pytest.mark.parametrize("name", NEW)
def test_subnets_are_placed_by_zone_id_and_give_no_public_address(name: str) -> None:
    template = network_template(name)
    network = clusters()[name].network
    assert isinstance(network, NewVpc)
    made = template.properties("AWS::EC2::Subnet")

    assert len(made) >= len(network.availability_zone_ids)
    assert all("AvailabilityZone" not in subnet for subnet in made)
    assert all(subnet["MapPublicIpOnLaunch"] is False for subnet in made)
    assert [subnet["AvailabilityZoneId"] for subnet in subnets(template, "private").values()] == (
        network.availability_zone_ids
    )


@pytest.mark.parametrize("name", NAT)
def test_routes_wait_for_the_gateway_to_be_attached(name: str) -> None:
    template = network_template(name)
    (attachment,) = template.resources("AWS::EC2::VPCGatewayAttachment")
    (public,) = subnets(template, "public")
    ((public_route, route),) = routes_of(template, public).items()

    assert route["Properties"]["DestinationCidrBlock"] == EVERYWHERE
    assert "GatewayId" in route["Properties"]
    assert route["DependsOn"] == [attachment]
    assert template.only("AWS::EC2::EIP")["DependsOn"] == [attachment]
    assert template.only("AWS::EC2::NatGateway")["DependsOn"] == [public_route]


@pytest.mark.parametrize("name", NAT)
def test_one_nat_gateway_in_the_first_zone_serves_every_private_subnet(name: str) -> None:
    template = network_template(name)
    network = clusters()[name].network
    assert isinstance(network, NewVpc)
    (nat,) = template.resources("AWS::EC2::NatGateway")
    ((public, subnet),) = subnets(template, "public").items()

    assert subnet["AvailabilityZoneId"] == network.availability_zone_ids[0]
    assert template.only("AWS::EC2::NatGateway")["Properties"]["SubnetId"] == {"Ref": public}
    for private in subnets(template, "private"):
        (route,) = routes_of(template, private).values()
        assert route["Properties"]["DestinationCidrBlock"] == EVERYWHERE
        assert route["Properties"]["NatGatewayId"] == {"Ref": nat}


def test_a_closed_network_has_no_way_out() -> None:
    template = network_template("closed")

    assert not template.resources(
        "AWS::EC2::InternetGateway",
        "AWS::EC2::VPCGatewayAttachment",
        "AWS::EC2::NatGateway",
        "AWS::EC2::EIP",
        "AWS::EC2::Route",
        "AWS::EC2::EgressOnlyInternetGateway",
        "AWS::EC2::TransitGatewayAttachment",
    )
    assert not subnets(template, "public")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", list(clusters()))
def test_nothing_is_reachable_from_an_address(name: str, kind: str) -> None:
    """Sources are security groups, in every template; but an existing VPC's own range at its endpoints."""
    template = templates()[name, kind]
    rules = template.properties("AWS::EC2::SecurityGroupIngress") + [
        rule
        for group in template.properties("AWS::EC2::SecurityGroup")
        for rule in group.get("SecurityGroupIngress", [])
    ]

    ranges = [rule for rule in rules if "SourceSecurityGroupId" not in rule]
    network = clusters()[name].network
    if isinstance(network, ExistingVpc) and network.interface_endpoints and kind == "network":
        assert [(rule["CidrIp"], rule["FromPort"], rule["ToPort"]) for rule in ranges] == [
            (network.cidr, 443, 443)
        ]
    else:
        assert ranges == []
    assert not [rule for rule in rules if rule.keys() & {"CidrIpv6", "SourcePrefixListId"}]


@pytest.mark.parametrize("name", list(clusters()))
def test_members_of_the_cluster_group_exchange_everything(name: str) -> None:
    """Both ways and as rules of their own: the EFA health check looks for exactly these."""
    template = network_template(name)
    member = {"Fn::GetAtt": [cluster_group(template), "GroupId"]}
    ingress = {"GroupId": member, "IpProtocol": "-1", "SourceSecurityGroupId": member}
    egress = {"GroupId": member, "IpProtocol": "-1", "DestinationSecurityGroupId": member}

    def among(rule: dict[str, Any], resource_type: str) -> bool:
        return any(rule.items() <= made.items() for made in template.properties(resource_type))

    assert among(ingress, "AWS::EC2::SecurityGroupIngress")
    assert among(egress, "AWS::EC2::SecurityGroupEgress")


def test_what_leaves_the_cluster_group() -> None:
    def egress(name: str) -> list[tuple[Any, ...]]:
        template = network_template(name)
        rules = template.resources()[cluster_group(template)]["Properties"]["SecurityGroupEgress"]
        return [(rule["IpProtocol"], rule.get("FromPort"), rule["CidrIp"]) for rule in rules]

    assert egress("slurm") == egress("existing") == [("-1", None, EVERYWHERE)]
    assert egress("closed") == [
        ("tcp", 443, EVERYWHERE),
        ("tcp", 3306, "10.0.255.224/28"),
        ("tcp", 3306, "10.0.255.208/28"),
    ]


def test_database_subnets_are_isolated_and_in_two_zones() -> None:
    for name in ("slurm-p5", "closed", "largest"):
        template = network_template(name)
        made = subnets(template, "database")
        assert len({subnet["AvailabilityZoneId"] for subnet in made.values()}) == len(made) == 2
        assert [routes_of(template, subnet) for subnet in made] == [{}, {}]
    assert not subnets(network_template("slurm"), "database")


def test_an_existing_vpc_gets_a_security_group_and_the_requested_endpoints() -> None:
    assert {
        resource["Type"] for resource in network_template("bare-existing").resources().values()
    } == {
        "AWS::EC2::SecurityGroup",
        "AWS::EC2::SecurityGroupEgress",
        "AWS::EC2::SecurityGroupIngress",
    }
    assert {resource["Type"] for resource in network_template("existing").resources().values()} == {
        "AWS::EC2::SecurityGroup",
        "AWS::EC2::SecurityGroupEgress",
        "AWS::EC2::SecurityGroupIngress",
        "AWS::EC2::VPCEndpoint",
    }


def test_ids_of_an_existing_vpc_pass_through() -> None:
    template = network_template("existing")
    network = clusters()["existing"].network
    assert isinstance(network, ExistingVpc)
    first = network.private_subnets[0].subnet_id
    (gateway,) = endpoints(template, "Gateway")

    assert {group["VpcId"] for group in template.properties("AWS::EC2::SecurityGroup")} == {
        network.vpc_id
    }
    assert gateway["VpcId"] == network.vpc_id
    # Two of the three subnets share a table, which takes one endpoint.
    assert gateway["RouteTableIds"] == ["rtb-0123456789abcde01", "rtb-0123456789abcde02"]
    assert {tuple(endpoint["SubnetIds"]) for endpoint in endpoints(template, "Interface")} == {
        (first,)
    }


@pytest.mark.parametrize("name", NEW)
def test_flow_logs_record_the_whole_vpc_and_are_kept_as_long_as_asked(name: str) -> None:
    template = network_template(name)
    network = clusters()[name].network
    assert isinstance(network, NewVpc)
    (vpc,) = template.resources("AWS::EC2::VPC")
    (group,) = template.resources("AWS::Logs::LogGroup")
    flow_log = template.only("AWS::EC2::FlowLog")["Properties"]
    (statement,) = template.only("AWS::IAM::Policy")["Properties"]["PolicyDocument"]["Statement"]
    (trust,) = template.only("AWS::IAM::Role")["Properties"]["AssumeRolePolicyDocument"][
        "Statement"
    ]

    assert flow_log["ResourceId"] == {"Ref": vpc}
    assert flow_log["TrafficType"] == "ALL"
    assert flow_log["LogDestination"] == {"Fn::GetAtt": [group, "Arn"]}
    assert template.resources()[group]["Properties"]["RetentionInDays"] == network.flow_logs_days
    assert statement["Action"] == [
        "logs:CreateLogStream",
        "logs:DescribeLogStreams",
        "logs:PutLogEvents",
    ]
    assert statement["Resource"] == {"Fn::GetAtt": [group, "Arn"]}
    assert trust["Principal"] == {"Service": "vpc-flow-logs.amazonaws.com"}
    assert trust["Condition"]["StringEquals"] == {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}
