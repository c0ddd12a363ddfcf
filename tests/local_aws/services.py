"""What moto's server lacks: updates of HyperPod clusters, Lustre's data-repository associations, and subnets
that cannot be deleted while something is in them.
"""

from __future__ import annotations

import json
import secrets
from typing import Any
from urllib.parse import urlparse

import botocore.session
from botocore.model import StringShape
from moto.cloudtrail.responses import CloudTrailResponse
from moto.core.responses import ActionResult
from moto.ec2.exceptions import DependencyViolationError
from moto.ec2.models import EC2Backend, ec2_backends
from moto.ec2.models.nat_gateways import NatGateway
from moto.ec2.models.subnets import Subnet
from moto.ec2.utils import random_private_ip
from moto.fsx import models as fsx_models
from moto.fsx.models import FileSystem, FSxBackend
from moto.fsx.responses import FSxResponse
from moto.iam.access_control import IAMPolicy, PermissionResult
from moto.iam.models import iam_backends
from moto.s3.models import FakeBucket, s3_backends
from moto.sagemaker.exceptions import ValidationError
from moto.sagemaker.models import Cluster, ClusterNode
from moto.sagemaker.responses import SageMakerResponse

SAGEMAKER = botocore.session.get_session().get_service_model("sagemaker")


class HyperPodCluster(Cluster):
    """moto's cluster, with every group property kept, node ids as the service's, and updates."""

    def __init__(self, *, settings: dict[str, Any], region_name: str, account_id: str, **kwargs: Any) -> None:
        groups = settings.pop("InstanceGroups")
        self.settings = settings
        super().__init__(
            settings["ClusterName"], region_name, account_id, [], settings["VpcConfig"], settings.get("Tags")
        )
        # Nodes are reached as sagemaker-cluster:<id>_<group>-<instance>, with the id of twelve characters.
        self.arn = f"arn:aws:sagemaker:{region_name}:{account_id}:cluster/{secrets.token_hex(6)}"
        self.set_groups(groups)

    def describe(self) -> dict[str, Any]:
        return {**self.settings, **super().describe()}

    def set_groups(self, groups: list[dict[str, Any]]) -> None:
        """Take these groups in place of, or beside, what is there; nodes follow the counts.

        Nodes that stay keep the lifecycle configuration they started with, as in the service.
        """
        for group in groups:
            self._check(group)
        named = {group["InstanceGroupName"]: group for group in self.instance_groups}
        for group in groups:
            count = group.pop("InstanceCount")
            named[group["InstanceGroupName"]] = {**group, "CurrentCount": count, "TargetCount": count}
            self._resize(group, count)
        self.instance_groups = list(named.values())

    def _check(self, group: dict[str, Any]) -> None:
        """What a node needs when it starts: its type, role, and the script that it is to run."""
        name = group["InstanceGroupName"]
        types = SAGEMAKER.shape_for("ClusterInstanceType")
        assert isinstance(types, StringShape)
        if group["InstanceType"] not in types.enum:
            raise ValidationError(f"{name}: unknown instance type {group['InstanceType']}")
        iam_backends[self.account_id]["aws"].get_role_by_arn(group["ExecutionRole"])
        lifecycle = group.get("LifeCycleConfig")
        if lifecycle:
            source = urlparse(lifecycle["SourceS3Uri"])
            script = lifecycle.get("OnInitComplete") or lifecycle["OnCreate"]
            key = f"{source.path.strip('/')}/{script}"
            if s3_backends[self.account_id]["aws"].get_object(source.netloc, key) is None:
                raise ValidationError(f"{name}: no object s3://{source.netloc}/{key} for its nodes to run")

    def _resize(self, group: dict[str, Any], count: int) -> None:
        name = group["InstanceGroupName"]
        members = [key for key, node in self.nodes.items() if node.instance_group_name == name]
        for key in members[count:]:
            del self.nodes[key]
        for _ in range(count - len(members)):
            node_id = f"i-{secrets.token_hex(8)}0"[:19]
            self.nodes[node_id] = ClusterNode(
                self.region_name,
                self.account_id,
                self.cluster_name,
                name,
                group["InstanceType"],
                group.get("LifeCycleConfig", {}),
                group["ExecutionRole"],
                node_id,
                group.get("ThreadsPerCore"),
            )


def create_cluster(self: SageMakerResponse) -> ActionResult:
    settings = json.loads(self.body)
    ec2 = ec2_backends[self.current_account][self.region]
    for subnet in settings["VpcConfig"]["Subnets"]:
        ec2.get_subnet(subnet)
    for group in settings["VpcConfig"]["SecurityGroupIds"]:
        if ec2.get_security_group_from_id(group) is None:
            raise ValidationError(f"security group {group} does not exist")
    cluster = HyperPodCluster(settings=settings, region_name=self.region, account_id=self.current_account)
    self.sagemaker_backend.clusters[cluster.cluster_name] = cluster
    return ActionResult({"ClusterArn": cluster.arn})


def update_cluster(self: SageMakerResponse) -> ActionResult:
    changes = json.loads(self.body)
    cluster = self.sagemaker_backend.clusters[changes.pop("ClusterName")]
    assert isinstance(cluster, HyperPodCluster)
    cluster.set_groups(changes.pop("InstanceGroups", []))
    cluster.settings |= changes
    return ActionResult({"ClusterArn": cluster.arn})


class AttachedFileSystem(FileSystem):
    """moto's file system, with the network interfaces it has and what else the service tells of it."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        ec2 = ec2_backends[kwargs["account_id"]][kwargs["region_name"]]
        groups = self.security_group_ids
        self.interfaces = [
            ec2.create_network_interface(ec2.get_subnet(subnet), random_private_ip(), group_ids=groups).id
            for subnet in self.subnet_ids
        ]

    def to_dict(self) -> dict[str, Any]:
        told: dict[str, Any] = super().to_dict()
        told |= {"Lifecycle": "AVAILABLE", "NetworkInterfaceIds": self.interfaces}
        suffix = self.file_system_id.removeprefix("fs-")
        if self.lustre_configuration is not None:
            told["LustreConfiguration"] = {**self.lustre_configuration, "MountName": suffix[:8]}
        if self.open_zfs_configuration is not None:
            volume = {"RootVolumeId": f"fsvol-{suffix}"}
            told["OpenZFSConfiguration"] = {**self.open_zfs_configuration, **volume}
        return told


_moto_delete_file_system = FSxBackend.delete_file_system
_moto_delete_nat_gateway = EC2Backend.delete_nat_gateway
_moto_delete_subnet = EC2Backend.delete_subnet


def delete_file_system(self: FSxBackend, file_system_id: str, *args: Any, **kwargs: Any) -> Any:
    file_system = self.file_systems.get(file_system_id)
    answer = _moto_delete_file_system(self, file_system_id, *args, **kwargs)
    assert isinstance(file_system, AttachedFileSystem)
    for interface in file_system.interfaces:
        ec2_backends[self.account_id][self.region_name].delete_network_interface(interface)
    return answer


def delete_nat_gateway(self: EC2Backend, nat_gateway_id: str) -> NatGateway:
    gateway = _moto_delete_nat_gateway(self, nat_gateway_id)
    self.delete_network_interface(gateway._eni.id)
    return gateway


def delete_subnet(self: EC2Backend, subnet_id: str) -> Subnet:
    """Refuse while something has a network interface in the subnet."""
    inside = [eni.id for eni in self.enis.values() if getattr(eni.subnet, "id", eni.subnet) == subnet_id]
    if inside:
        raise DependencyViolationError(f"The subnet '{subnet_id}' is in use by {inside}")
    return _moto_delete_subnet(self, subnet_id)


ASSOCIATIONS: dict[str, dict[str, Any]] = {}


def create_data_repository_association(self: FSxResponse) -> str:
    request = json.loads(self.body)
    (file_system,) = self.fsx_backend.describe_file_systems([request["FileSystemId"]])[0]
    assert file_system.file_system_type == "LUSTRE"
    s3_backends[self.current_account]["aws"].head_bucket(urlparse(request["DataRepositoryPath"]).netloc)
    association_id = f"dra-{secrets.token_hex(8)}0"
    arn = f"arn:aws:fsx:{self.region}:{self.current_account}:association/{file_system.file_system_id}"
    ASSOCIATIONS[association_id] = {
        **request,
        "AssociationId": association_id,
        "ResourceARN": f"{arn}/{association_id}",
        "Lifecycle": "AVAILABLE",
    }
    return json.dumps({"Association": ASSOCIATIONS[association_id]})


def describe_data_repository_associations(self: FSxResponse) -> str:
    wanted = json.loads(self.body).get("AssociationIds") or list(ASSOCIATIONS)
    return json.dumps({"Associations": [ASSOCIATIONS[key] for key in wanted]})


def delete_data_repository_association(self: FSxResponse) -> str:
    association = ASSOCIATIONS.pop(json.loads(self.body)["AssociationId"])
    return json.dumps({"AssociationId": association["AssociationId"], "Lifecycle": "DELETING"})


def lookup_events(self: CloudTrailResponse) -> str:
    """No audit trail; the CDK CLI looks into it for the cause of a failure, and waits for it."""
    return json.dumps({"Events": []})


def get_permission(self: FakeBucket, action: str, resource: str) -> Any:
    """Judge by the bucket policy's unconditional statements.

    moto takes conditions for fulfilled, so "deny what is not TLS" would deny everything; connections to
    this server stand for encrypted ones.
    """
    if self.policy is None:
        return PermissionResult.NEUTRAL
    document = json.loads(self.policy)
    document["Statement"] = [item for item in document["Statement"] if "Condition" not in item]
    return IAMPolicy(json.dumps(document)).is_action_permitted(action, resource)


def install() -> None:
    """Add these to moto's server."""
    SageMakerResponse.create_cluster = create_cluster  # type: ignore[method-assign]
    SageMakerResponse.update_cluster = update_cluster  # type: ignore[attr-defined]
    fsx_models.FileSystem = AttachedFileSystem  # type: ignore[misc,assignment]
    FSxBackend.delete_file_system = delete_file_system  # type: ignore[method-assign]
    EC2Backend.delete_nat_gateway = delete_nat_gateway  # type: ignore[method-assign,assignment]
    for operation in (
        create_data_repository_association,
        describe_data_repository_associations,
        delete_data_repository_association,
    ):
        setattr(FSxResponse, operation.__name__, operation)
    CloudTrailResponse.lookup_events = lookup_events  # type: ignore[attr-defined]
    FakeBucket.get_permission = get_permission  # type: ignore[method-assign]
    # S3 looks at the target's policy when it delivers logs; moto does when logging is turned on.
    FakeBucket._log_permissions_enabled_policy = staticmethod(  # type: ignore[method-assign,assignment]
        lambda **_: True
    )
    EC2Backend.delete_subnet = delete_subnet  # type: ignore[method-assign,assignment]
