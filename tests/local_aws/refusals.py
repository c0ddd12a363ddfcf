"""Refusals by zone and by demand: an endpoint service that is absent, an instance type without capacity."""

from __future__ import annotations

from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import EC2Backend
from moto.ec2.responses import EC2Response
from moto.sagemaker.responses import SageMakerResponse

ABSENT_SERVICE = "com.amazonaws.us-west-2.ssmmessages"
ABSENT_ZONE = "usw2-az2"
NO_CAPACITY_TYPE = "ml.p5.48xlarge"
EVENT = "Insufficient capacity"
OPERATION_ID = "01234567-89ab-cdef-0123-456789abcdef"

_moto_create_vpc_endpoint = EC2Backend.create_vpc_endpoint


def create_vpc_endpoint(
    self: EC2Backend, vpc_id: str, service_name: str, *args: Any, **kwargs: Any
) -> Any:
    for name in kwargs.get("subnet_ids") or []:
        if (
            service_name == ABSENT_SERVICE
            and self.get_subnet(name).availability_zone_id == ABSENT_ZONE
        ):
            raise EC2ClientError(
                "InvalidParameter",
                f"The VPC endpoint service {service_name} does not support the availability zone of the "
                f"subnet: {name}.",
            )
    return _moto_create_vpc_endpoint(self, vpc_id, service_name, *args, **kwargs)


def describe_vpc_endpoint_services(self: EC2Response) -> ActionResult:
    """Return the services of the filter ``service-name``, each in all zones but the absent one."""
    zones = [zone.zone_id for zone in self.ec2_backend.describe_availability_zones()]
    (names,) = (
        item["Values"] for item in self._get_param("Filters") if item["Name"] == "service-name"
    )
    details = [
        {
            "ServiceName": name,
            "AvailabilityZoneIds": [z for z in zones if (name, z) != (ABSENT_SERVICE, ABSENT_ZONE)],
        }
        for name in names
    ]
    return ActionResult({"ServiceNames": names, "ServiceDetails": details})


def list_cluster_events(self: SageMakerResponse) -> ActionResult:
    """Return the event of nodes that HyperPod cannot start, for clusters with a group that lacks nodes."""
    cluster = self.sagemaker_backend.clusters[self._get_param("ClusterName")]
    lacking = [g for g in cluster.instance_groups if g["CurrentCount"] < g["TargetCount"]]
    events = [
        {
            "EventId": group["InstanceGroupName"],
            "ClusterArn": cluster.arn,
            "ClusterName": cluster.cluster_name,
            "InstanceGroupName": group["InstanceGroupName"],
            "ResourceType": "InstanceGroup",
            "EventTime": cluster.creation_time,
            "Description": f"{EVENT} for {group.get('InstanceType', 'each of its types')}",
        }
        for group in lacking
    ]
    return ActionResult({"Events": events})


def list_cluster_operations(self: SageMakerResponse) -> ActionResult:
    """Return the creation of the cluster, which is over when the stack is."""
    cluster = self.sagemaker_backend.clusters[self._get_param("ClusterName")]
    created = {
        "OperationId": OPERATION_ID,
        "ClusterArn": cluster.arn,
        "Type": "Scaling",
        "Status": "Done",
        "CreationTime": cluster.creation_time,
    }
    return ActionResult({"ClusterOperationSummaries": [created]})


def install() -> None:
    EC2Backend.create_vpc_endpoint = create_vpc_endpoint  # type: ignore[method-assign]
    EC2Response.describe_vpc_endpoint_services = describe_vpc_endpoint_services  # type: ignore[method-assign]
    SageMakerResponse.list_cluster_events = list_cluster_events  # type: ignore[attr-defined]
    SageMakerResponse.list_cluster_operations = list_cluster_operations  # type: ignore[attr-defined]
