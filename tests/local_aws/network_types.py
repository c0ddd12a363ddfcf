"""Rows for AWS::EC2."""

from __future__ import annotations

from typing import Any

from tests.local_aws.resource_model import (
    ApiResource,
    Client,
    Context,
    Properties,
    ResourceType,
    Setting,
    deleting,
)


def _vpc_attribute(name: str) -> Setting:
    return lambda ec2, known, value: ec2.modify_vpc_attribute(
        VpcId=known["Ref"], **{name: {"Value": value}}
    )


def _default_security_group(ec2: Client, known: dict[str, Any]) -> dict[str, Any]:
    filters = [
        {"Name": "vpc-id", "Values": [known["Ref"]]},
        {"Name": "group-name", "Values": ["default"]},
    ]
    return {
        "Default": ec2.describe_security_groups(Filters=filters)["SecurityGroups"][0]["GroupId"]
    }


def _permission(rule: Properties, peer: str) -> Properties:
    """A CloudFormation rule as the API's IpPermission; ``peer`` is the property that names a group."""
    permission: Properties = {
        k: v for k, v in rule.items() if k in ("IpProtocol", "FromPort", "ToPort")
    }
    described = {"Description": rule["Description"]} if "Description" in rule else {}
    if peer in rule:
        permission["UserIdGroupPairs"] = [{"GroupId": rule[peer], **described}]
    elif "CidrIp" in rule:
        permission["IpRanges"] = [{"CidrIp": rule["CidrIp"], **described}]
    else:
        raise ValueError(f"rule {rule} has neither {peer} nor CidrIp; other peers are not modelled")
    return permission


def _single_rule(peer: str) -> Any:
    return lambda rule, _: {"GroupId": rule["GroupId"], "IpPermissions": [_permission(rule, peer)]}


def _egress(ec2: Client, known: dict[str, Any], rules: list[Properties]) -> None:
    """Stated egress takes the place of the rule for everything that the service gives a new group."""
    group = ec2.describe_security_groups(GroupIds=[known["Ref"]])["SecurityGroups"][0]
    ec2.revoke_security_group_egress(
        GroupId=known["Ref"], IpPermissions=group["IpPermissionsEgress"]
    )
    permissions = [_permission(rule, "DestinationSecurityGroupId") for rule in rules]
    ec2.authorize_security_group_egress(GroupId=known["Ref"], IpPermissions=permissions)


def _flow_log(properties: Properties, _: Context) -> Properties:
    """The API takes several resources."""
    single = dict(properties)
    return {"ResourceIds": [single.pop("ResourceId")], **single}


EC2_TYPES: dict[str, ResourceType] = {
    "AWS::EC2::VPC": ApiResource(
        "ec2",
        "create_vpc",
        "Vpc.VpcId",
        deleting("delete_vpc", VpcId="Ref"),
        {"VpcId": "Ref", "CidrBlock": "Vpc.CidrBlock", "DefaultSecurityGroup": "Default"},
        tag_type="vpc",
        settings={
            name: _vpc_attribute(name) for name in ("EnableDnsHostnames", "EnableDnsSupport")
        },
        observe=_default_security_group,
    ),
    "AWS::EC2::Subnet": ApiResource(
        "ec2",
        "create_subnet",
        "Subnet.SubnetId",
        deleting("delete_subnet", SubnetId="Ref"),
        {
            name: f"Subnet.{name}"
            for name in ("SubnetId", "VpcId", "CidrBlock", "AvailabilityZone", "AvailabilityZoneId")
        },
        tag_type="subnet",
        settings={
            "MapPublicIpOnLaunch": lambda ec2, known, value: ec2.modify_subnet_attribute(
                SubnetId=known["Ref"], MapPublicIpOnLaunch={"Value": value}
            )
        },
    ),
    "AWS::EC2::RouteTable": ApiResource(
        "ec2",
        "create_route_table",
        "RouteTable.RouteTableId",
        deleting("delete_route_table", RouteTableId="Ref"),
        {"RouteTableId": "Ref"},
        tag_type="route-table",
    ),
    "AWS::EC2::SubnetRouteTableAssociation": ApiResource(
        "ec2",
        "associate_route_table",
        "AssociationId",
        deleting("disassociate_route_table", AssociationId="Ref"),
    ),
    "AWS::EC2::Route": ApiResource(
        "ec2",
        "create_route",
        "join('|', [RouteTableId, DestinationCidrBlock])",
        deleting(
            "delete_route", RouteTableId="RouteTableId", DestinationCidrBlock="DestinationCidrBlock"
        ),
    ),
    "AWS::EC2::EIP": ApiResource(
        "ec2",
        "allocate_address",
        "PublicIp",
        deleting("release_address", AllocationId="AllocationId"),
        {"AllocationId": "AllocationId", "PublicIp": "PublicIp"},
        tag_type="elastic-ip",
    ),
    "AWS::EC2::NatGateway": ApiResource(
        "ec2",
        "create_nat_gateway",
        "NatGateway.NatGatewayId",
        deleting("delete_nat_gateway", NatGatewayId="Ref"),
        {"NatGatewayId": "Ref"},
        tag_type="natgateway",
    ),
    "AWS::EC2::InternetGateway": ApiResource(
        "ec2",
        "create_internet_gateway",
        "InternetGateway.InternetGatewayId",
        deleting("delete_internet_gateway", InternetGatewayId="Ref"),
        tag_type="internet-gateway",
    ),
    "AWS::EC2::VPCGatewayAttachment": ApiResource(
        "ec2",
        "attach_internet_gateway",
        "join('|', ['IGW', VpcId])",
        deleting("detach_internet_gateway", InternetGatewayId="InternetGatewayId", VpcId="VpcId"),
    ),
    "AWS::EC2::VPCEndpoint": ApiResource(
        "ec2",
        "create_vpc_endpoint",
        "VpcEndpoint.VpcEndpointId",
        deleting("delete_vpc_endpoints", VpcEndpointIds="[Ref]"),
        tag_type="vpc-endpoint",
    ),
    "AWS::EC2::SecurityGroup": ApiResource(
        "ec2",
        "create_security_group",
        "GroupId",
        deleting("delete_security_group", GroupId="Ref"),
        {"GroupId": "Ref", "VpcId": "VpcId"},
        generated_name="GroupName",
        tag_type="security-group",
        prepare=lambda p, _: {
            ("Description" if k == "GroupDescription" else k): v for k, v in p.items()
        },
        settings={"SecurityGroupEgress": _egress},
    ),
    "AWS::EC2::SecurityGroupIngress": ApiResource(
        "ec2",
        "authorize_security_group_ingress",
        "SecurityGroupRules[0].SecurityGroupRuleId",
        deleting("revoke_security_group_ingress", GroupId="GroupId", SecurityGroupRuleIds="[Ref]"),
        prepare=_single_rule("SourceSecurityGroupId"),
    ),
    "AWS::EC2::SecurityGroupEgress": ApiResource(
        "ec2",
        "authorize_security_group_egress",
        "SecurityGroupRules[0].SecurityGroupRuleId",
        deleting("revoke_security_group_egress", GroupId="GroupId", SecurityGroupRuleIds="[Ref]"),
        prepare=_single_rule("DestinationSecurityGroupId"),
    ),
    "AWS::EC2::FlowLog": ApiResource(
        "ec2",
        "create_flow_logs",
        "FlowLogIds[0]",
        deleting("delete_flow_logs", FlowLogIds="[Ref]"),
        tag_type="vpc-flow-log",
        prepare=_flow_log,
    ),
}
