from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from config.cluster import Cluster
from config.slurm_cluster import SlurmCluster
from tests.tools.accounts import cluster_description, deployed_stacks, empty_account
from tests.tools.answering_aws import AnsweringAws, Parameters, Refusal
from tests.tools.cluster_files import shipped, shipped_eks, with_group
from tests.tools.preflight.report import findings, problems
from tools.preflight.network import check_routes
from tools.preflight.read_only_aws import ReadOnlyAws

SUBNET = {
    "subnet_id": "subnet-0123456789abcdef0",
    "availability_zone_id": "usw2-az4",
    "route_table_id": "rtb-0123456789abcdef0",
    "cidr": "10.7.0.0/20",
}
NETWORK = {
    "vpc": "existing",
    "vpc_id": "vpc-0123456789abcdef0",
    "cidr": "10.7.0.0/16",
    "private_subnets": [SUBNET],
}
SERVICES = [
    *(
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
    ),
    *("secretsmanager", "sagemaker.api", "fsx", "aps-workspaces"),
]
NAT_ROUTE = {"DestinationCidrBlock": "0.0.0.0/0", "NatGatewayId": "nat-01", "State": "active"}


def cluster(**network: Any) -> SlurmCluster:
    return shipped("slurm", network=NETWORK | network)


CLOSED = cluster().model_copy(update={"prometheus": False})
"""Cluster whose nodes fetch nothing from the internet."""


def endpoint(name: str, *, kind: str = "Interface") -> dict[str, Any]:
    tables = [SUBNET["route_table_id"]] if kind == "Gateway" else []
    return {
        "VpcId": NETWORK["vpc_id"],
        "VpcEndpointType": kind,
        "ServiceName": f"com.amazonaws.us-west-2.{name}",
        "RouteTableIds": tables,
        "PrivateDnsEnabled": kind == "Interface",
    }


class Vpc:
    """Return EC2's responses about the VPC of these tests: a private subnet with NAT and an endpoint for
    S3.
    """

    def __init__(self) -> None:
        self.vpc: dict[str, Any] = {"CidrBlockAssociationSet": [{"CidrBlock": "10.7.0.0/16"}]}
        self.attributes = {"enableDnsSupport": True, "enableDnsHostnames": True}
        self.subnet: dict[str, Any] = {
            "VpcId": NETWORK["vpc_id"],
            "AvailabilityZoneId": "usw2-az4",
            "CidrBlock": "10.7.0.0/20",
            "AvailableIpAddressCount": 4091,
            "MapPublicIpOnLaunch": False,
        }
        self.routes: list[dict[str, Any]] = [NAT_ROUTE]
        self.associations: list[dict[str, Any]] = [{"SubnetId": SUBNET["subnet_id"], "Main": False}]
        self.endpoints = [endpoint("s3", kind="Gateway")]

    def account(self, checked: Cluster) -> AnsweringAws:
        aws = empty_account(checked)
        aws.answer("ec2", "DescribeVpcs", {"Vpcs": [self.vpc]})
        aws.answer("ec2", "DescribeVpcAttribute", self._attribute)
        aws.answer("ec2", "DescribeSubnets", {"Subnets": [self.subnet]})
        tables = [
            {
                "RouteTableId": SUBNET["route_table_id"],
                "Routes": self.routes,
                "Associations": self.associations,
            },
            {"RouteTableId": "rtb-main", "Routes": [], "Associations": [{"Main": True}]},
        ]
        aws.answer("ec2", "DescribeRouteTables", {"RouteTables": tables})
        aws.answer("ec2", "DescribeVpcEndpoints", {"VpcEndpoints": self.endpoints})
        return aws

    def _attribute(self, parameters: Parameters) -> dict[str, Any]:
        name = parameters["Attribute"]
        return {name[0].upper() + name[1:]: {"Value": self.attributes[name]}}


def test_accepts_a_vpc_that_matches_the_file() -> None:
    aws = Vpc().account(cluster())
    assert problems(aws, cluster()) == []
    messages = {finding.subject: finding.message for finding in findings(aws, cluster())}
    # The addresses are for three nodes, and Lustre's data and metadata servers.
    assert messages["subnet subnet-0123456789abcdef0"] == "5 addresses needed, 4091 free"


def test_calls_only_reads() -> None:
    aws = Vpc().account(cluster())
    findings(aws, cluster())
    assert ("ec2", "DescribeVpcEndpoints") in aws.calls
    assert all(
        operation.startswith(("Get", "List", "Describe", "Head")) for _, operation in aws.calls
    )


Change = Callable[[Vpc], Any]
WRONG: list[tuple[Change, str, str]] = [
    (lambda v: v.vpc["CidrBlockAssociationSet"].clear(), "FAIL", "its ranges are "),
    (lambda v: v.attributes.update(enableDnsHostnames=False), "FAIL", "enableDnsHostnames is off"),
    (lambda v: v.attributes.update(enableDnsSupport=False), "FAIL", "enableDnsSupport is off"),
    (lambda v: v.subnet.update(VpcId="vpc-other"), "FAIL", "is in vpc-other"),
    (
        lambda v: v.subnet.update(AvailabilityZoneId="usw2-az1"),
        "FAIL",
        "availability_zone_id is usw2-az1",
    ),
    (
        lambda v: v.subnet.update(CidrBlock="10.7.16.0/20"),
        "FAIL",
        "cidr is 10.7.16.0/20, the file says 10.7.0.0/20",
    ),
    (
        lambda v: v.subnet.update(MapPublicIpOnLaunch=True),
        "FAIL",
        "it gives its nodes public addresses",
    ),
    (lambda v: v.subnet.update(AvailableIpAddressCount=4), "FAIL", "5 addresses needed, 4 free"),
    (lambda v: v.associations.clear(), "FAIL", "the subnet uses rtb-main"),
    (
        lambda v: v.routes[0].update(NatGatewayId="", GatewayId="igw-01"),
        "FAIL",
        "the subnet is public",
    ),
    (lambda v: v.routes[0].update(State="blackhole"), "FAIL", "default route was deleted"),
    (lambda v: v.endpoints.clear(), "WARN", "no gateway endpoint for S3: NAT bills every byte"),
]


@pytest.mark.parametrize(("change", "level", "message"), WRONG)
def test_reports_every_difference(change: Change, level: str, message: str) -> None:
    vpc = Vpc()
    vpc.routes = deepcopy(vpc.routes)
    change(vpc)
    ((found_level, _, found),) = problems(vpc.account(cluster()), cluster())
    assert (found_level, message in found) == (level, True), found


@pytest.mark.parametrize("absent", ["DescribeVpcs", "DescribeSubnets"])
def test_routes_are_compared_only_for_subnets_of_the_vpc(absent: str) -> None:
    vpc = Vpc()
    vpc.associations.clear()
    if absent == "DescribeVpcs":
        vpc.subnet.update(VpcId="vpc-other")
    aws = vpc.account(cluster())
    kind = {"DescribeVpcs": "Vpc", "DescribeSubnets": "Subnet"}[absent]
    aws.answer("ec2", absent, Refusal(f"Invalid{kind}ID.NotFound"))
    assert not any("routes of" in finding.subject for finding in findings(aws, cluster()))


def test_a_proxy_is_a_way_to_the_internet() -> None:
    """The shipped file's nodes fetch software for prometheus from the internet."""
    checked = cluster(proxy={"url": "http://10.7.0.9:3128"})
    vpc = Vpc()
    vpc.routes = []
    vpc.endpoints += [endpoint(name) for name in SERVICES]
    found = problems(vpc.account(cluster()), cluster())
    assert [level for level, _, _ in found] == ["FAIL"]
    assert problems(vpc.account(checked), checked) == []


OWNER = "210987654321"


def test_a_shared_vpc_is_used_without_endpoints_of_its_own() -> None:
    vpc = Vpc()
    vpc.subnet["OwnerId"] = OWNER
    assert problems(vpc.account(cluster()), cluster()) == []
    for switch in ("s3_gateway_endpoint", "interface_endpoints"):
        checked = cluster(**{switch: True})
        vpc.endpoints = []
        found = [
            finding
            for finding in findings(vpc.account(checked), checked)
            if finding.level == "FAIL"
        ]
        assert [f"network.{switch} is true" in finding.message for finding in found] == [True]
        assert OWNER in found[0].action


def test_preflight_names_the_owner_of_a_shared_vpc_for_what_only_the_owner_sees() -> None:
    vpc = Vpc()
    vpc.subnet["OwnerId"] = OWNER
    vpc.routes = []
    vpc.endpoints = []
    closed = [
        (finding.level, finding.subject, OWNER in finding.action)
        for finding in findings(vpc.account(CLOSED), CLOSED)
        if finding.level != "OK" and ("routes" in finding.subject or "endp" in finding.subject)
    ]
    routes = f"routes of {SUBNET['subnet_id']}"
    assert closed == [
        ("WARN", routes, False),
        ("WARN", routes, True),
        ("WARN", "interface endpoints", True),
    ]
    aws = vpc.account(cluster())
    aws.answer("ec2", "DescribeRouteTables", {"RouteTables": []})
    (found,) = [finding for finding in findings(aws, cluster()) if finding.level != "OK"]
    assert (found.level, found.subject) == ("UNKNOWN", routes) and OWNER in found.action


def test_a_vpc_may_have_several_ranges() -> None:
    subnets = [SUBNET | {"cidr": "10.1.0.0/20"}]
    vpc = Vpc()
    vpc.vpc["CidrBlockAssociationSet"].append({"CidrBlock": "10.1.0.0/16"})
    vpc.subnet["CidrBlock"] = "10.1.0.0/20"
    for others in ([], ["10.1.0.0/16"]):
        checked = cluster(private_subnets=subnets, other_cidrs=others)
        assert problems(vpc.account(checked), checked) == []
    one = cluster(private_subnets=subnets, interface_endpoints=True)
    ((level, _, message),) = problems(vpc.account(one), one)
    assert level == "WARN" and message.startswith("machines in 10.1.0.0/16 cannot reach")


def test_rejects_a_second_s3_endpoint_unless_it_is_the_cluster_s_own() -> None:
    checked = cluster(s3_gateway_endpoint=True)
    aws = Vpc().account(checked)
    assert [level for level, _, _ in problems(aws, checked)] == ["FAIL"]
    deployed_stacks(aws, {"esm2-slurm-slurm-network": "UPDATE_COMPLETE"})
    assert problems(aws, checked) == []


def test_rejects_a_second_endpoint_with_private_dns() -> None:
    checked = cluster(interface_endpoints=True)
    vpc = Vpc()
    vpc.endpoints += [endpoint("ssm"), endpoint("kms"), endpoint("lambda")]
    ((level, _, message),) = problems(vpc.account(checked), checked)
    assert level == "FAIL"
    assert "the VPC already has ssm, kms" in message


@pytest.mark.parametrize(("room", "level"), [(14, "OK"), (13, "FAIL")])
def test_counts_the_vpc_s_endpoints_against_the_quota(room: int, level: str) -> None:
    checked = cluster(interface_endpoints=True)
    vpc = Vpc()
    others = [
        endpoint(f"other-{number}", kind="GatewayLoadBalancer") for number in range(50 - room)
    ]
    elsewhere = {**endpoint("ssm"), "VpcId": "vpc-other"}
    vpc.endpoints += [*others, elsewhere]
    aws = vpc.account(checked)
    # Endpoints of this VPC only, if the file requests endpoints.
    aws.answer(
        "ec2",
        "DescribeVpcEndpoints",
        lambda asked: {"VpcEndpoints": vpc.endpoints[:-1] if "Filters" in asked else vpc.endpoints},
    )
    quota = "quota Interface VPC endpoints per VPC"
    (found,) = [finding for finding in findings(aws, checked) if finding.subject == quota]
    assert (found.level, found.message) == (
        level,
        f"14 needed, {50 - room} in use, the quota is 50",
    )


def test_a_closed_vpc_needs_every_endpoint() -> None:
    vpc = Vpc()
    vpc.routes = []
    vpc.endpoints += [endpoint(name) for name in SERVICES if name != "ecr.dkr"]
    found = problems(vpc.account(CLOSED), CLOSED)
    assert [(level, subject) for level, subject, _ in found] == [
        ("WARN", f"routes of {SUBNET['subnet_id']}"),
        ("FAIL", "interface endpoints"),
    ]
    assert found[1][2].endswith("no endpoints for ecr.dkr")
    vpc.endpoints.append(endpoint("ecr.dkr"))
    assert [level for level, _, _ in problems(vpc.account(CLOSED), CLOSED)] == ["WARN"]


def test_a_closed_vpc_allows_no_downloads_from_the_internet() -> None:
    vpc = Vpc()
    vpc.routes = []
    vpc.endpoints += [endpoint(name) for name in SERVICES]
    (found,) = [f for f in findings(vpc.account(cluster()), cluster()) if f.level != "OK"]
    assert (found.level, found.subject) == ("FAIL", f"routes of {SUBNET['subnet_id']}")
    assert "set node_setup.downloads to artifact_bucket" in found.action


@pytest.mark.parametrize(("images", "level"), [("internet", "FAIL"), ("image_repository", "WARN")])
def test_nodes_of_eks_in_a_closed_vpc_need_copies_of_images(images: str, level: str) -> None:
    vpc = Vpc()
    vpc.routes = []
    eks = shipped_eks("eks", network=NETWORK, kubernetes={"images": images})
    found = list(check_routes(ReadOnlyAws(vpc.account(eks).session), eks))
    assert [finding.level for finding in found] == [level]
    assert ("kubernetes.images to image_repository" in found[0].action) == (level == "FAIL")


def test_a_closed_vpc_without_s3_cannot_start_nodes() -> None:
    vpc = Vpc()
    vpc.routes = []
    vpc.endpoints = [endpoint(name) for name in SERVICES]
    messages = [
        message for level, _, message in problems(vpc.account(CLOSED), CLOSED) if level == "FAIL"
    ]
    assert messages == [
        "no gateway endpoint for S3 and no internet access: nodes cannot fetch their scripts"
    ]


def test_addresses_of_a_deployed_cluster_are_not_needed_again() -> None:
    vpc = Vpc()
    vpc.subnet["AvailableIpAddressCount"] = 2
    aws = vpc.account(cluster())
    groups = [
        {"InstanceGroupName": name, "InstanceType": kind, "CurrentCount": count}
        for name, kind, count in (
            ("controller", "ml.m5.large", 1),
            ("workers", "ml.g5.8xlarge", 2),
        )
    ]
    aws.answer("sagemaker", "DescribeCluster", cluster_description("esm2-slurm", groups))
    names = ("network", "storage", "hyperpod")
    deployed_stacks(aws, {f"esm2-slurm-slurm-{name}": "CREATE_COMPLETE" for name in names})
    assert problems(aws, cluster()) == []
    # Two more nodes fit, and the third has no address left.
    for num_workers, expected in ((4, []), (5, ["3 addresses needed, 2 free"])):
        grown = with_group(cluster(), "workers", num_instances=num_workers)
        found = [message for level, _, message in problems(aws, grown) if "address" in message]
        assert found == expected


@pytest.mark.parametrize("operation", ["DescribeVpcs", "DescribeSubnets"])
def test_a_throttled_request_is_not_a_finding(operation: str) -> None:
    aws = Vpc().account(cluster())
    aws.answer("ec2", operation, Refusal("RequestLimitExceeded", "Request limit exceeded."))
    assert {level for level, _, _ in problems(aws, cluster())} == {"UNKNOWN"}


@pytest.mark.parametrize(
    ("operation", "code"),
    [("DescribeVpcs", "InvalidVpcID.NotFound"), ("DescribeSubnets", "InvalidSubnetID.NotFound")],
)
def test_names_missing_resources(operation: str, code: str) -> None:
    aws = Vpc().account(cluster())
    aws.answer(
        "ec2",
        operation,
        Refusal(
            {"DescribeVpcs": "InvalidVpcID.NotFound"}.get(operation, "InvalidSubnetID.NotFound"),
            "The ID does not exist",
        ),
    )
    assert any("does not exist" in message for _, _, message in problems(aws, cluster()))
