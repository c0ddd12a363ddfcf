"""HyperPod clusters that keep what they were given, and that can be updated; moto's do neither."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlparse

import botocore.session
from botocore.model import StringShape
from moto.core.responses import ActionResult
from moto.ec2.models import ec2_backends
from moto.ec2.models.elastic_network_interfaces import NetworkInterface
from moto.ec2.utils import random_private_ip
from moto.logs.models import logs_backends
from moto.s3.models import s3_backends
from moto.sagemaker.exceptions import ValidationError
from moto.sagemaker.models import Cluster, ClusterNode, SageMakerModelBackend
from moto.sagemaker.responses import SageMakerResponse

from tests.local_aws.eks_clusters import ControlPlane, control_plane, orchestrating_arn
from tests.local_aws.permissions import is_permitted
from tests.local_aws.refusals import NO_CAPACITY_TYPE

SETUP_LOG_TAG = "tests:setup-log"
"""Tag of a cluster whose nodes write a setup log. Its value is the number of nodes whose setup fails."""
BEGUN = "2026-11-21T10:00:00Z bootstrap: worker ip-10-0-0-31 (10.0.0.31)"
DONE = "2026-11-21T10:00:09Z bootstrap: done: 9 steps, 4 changes, 0 warnings"
FAILED = "2026-11-21T10:00:09Z bootstrap: ERROR: step lustre-mount failed: it is no mount"
POD_INTERFACE_TAG = "cluster.k8s.amazonaws.com/name"
FIRST_RELEASE = "1.1.0"
"""Release of the image with which nodes start."""
NEWEST_RELEASE = "1.2.0"
SAGEMAKER = botocore.session.get_session().get_service_model("sagemaker")


def accepted_types(group: dict[str, Any]) -> list[str]:
    """Return the types of a group in a request, the preferred one first."""
    if "InstanceRequirements" in group:
        return list(group["InstanceRequirements"]["InstanceTypes"])
    return [group["InstanceType"]]


def available_type(group: dict[str, Any]) -> str | None:
    """Return the first type with capacity, whose nodes the service starts; None if no type has any."""
    return next((name for name in accepted_types(group) if name != NO_CAPACITY_TYPE), None)


def described(group: dict[str, Any], count: int) -> dict[str, Any]:
    """Return a group as the service describes it, which names several types otherwise than a request."""
    if "InstanceRequirements" not in group:
        return group
    types = accepted_types(group)
    details = [{"InstanceType": available_type(group), "CurrentCount": count}]
    requirements = {"CurrentInstanceTypes": types, "DesiredInstanceTypes": types}
    return {**group, "InstanceRequirements": requirements, "InstanceTypeDetails": details}


class HyperPodNode(ClusterNode):
    """moto's node, with the release of its image."""

    release = FIRST_RELEASE

    def summary(self) -> dict[str, Any]:
        is_newest = self.release == NEWEST_RELEASE
        image = {
            "CurrentImageReleaseVersion": self.release,
            "ImageVersionStatus": "UpToDate" if is_newest else "UpdateAvailable",
        }
        return {**super().summary(), **image}


class HyperPodCluster(Cluster):
    """moto's cluster, with every group property kept, node ids as the service's, and updates."""

    def __init__(
        self, *, settings: dict[str, Any], region_name: str, account_id: str, **kwargs: Any
    ) -> None:
        groups = settings.pop("InstanceGroups")
        self.settings = settings
        self.pod_interfaces: dict[str, NetworkInterface] = {}
        """Interfaces by node on EKS; one stands for all pods of a node."""
        super().__init__(
            settings["ClusterName"],
            region_name,
            account_id,
            [],
            settings["VpcConfig"],
            settings.get("Tags"),
        )
        # Nodes are reached as sagemaker-cluster:<id>_<group>-<instance>, with the id of twelve characters.
        self.arn = f"arn:aws:sagemaker:{region_name}:{account_id}:cluster/{secrets.token_hex(6)}"
        self.set_groups(groups)

    @property
    def control_plane(self) -> ControlPlane | None:
        """EKS's cluster that has these nodes; None on Slurm."""
        arn = orchestrating_arn(self.settings)
        if arn is None:
            return None
        return control_plane(self.account_id, self.region_name, arn.rpartition("/")[2])

    def describe(self) -> dict[str, Any]:
        return {**self.settings, **super().describe()}

    def set_groups(self, groups: list[dict[str, Any]]) -> None:
        """Replace the existing groups by these, or add them; nodes follow the counts.

        Nodes that stay keep the lifecycle configuration they started with, as in the service.
        """
        for group in groups:
            self._check(group)
        named = {group["InstanceGroupName"]: group for group in self.instance_groups}
        for group in groups:
            wanted = group.pop("InstanceCount")
            count = wanted if available_type(group) else 0
            named[group["InstanceGroupName"]] = {
                **described(group, count),
                "CurrentCount": count,
                "TargetCount": wanted,
            }
            self._resize(group, count)
        self.instance_groups = list(named.values())

    def _check(self, group: dict[str, Any]) -> None:
        """Check what a node needs when it starts: its type, role, and script."""
        name = group["InstanceGroupName"]
        types = SAGEMAKER.shape_for("ClusterInstanceType")
        assert isinstance(types, StringShape)
        if ("InstanceType" in group) == ("InstanceRequirements" in group):
            raise ValidationError(
                f"{name}: InstanceType and InstanceRequirements exclude each other"
            )
        for instance_type in accepted_types(group):
            if instance_type not in types.enum:
                raise ValidationError(f"{name}: unknown instance type {instance_type}")
        lifecycle = group.get("LifeCycleConfig")
        if lifecycle:
            source = urlparse(lifecycle["SourceS3Uri"])
            script = lifecycle.get("OnInitComplete") or lifecycle["OnCreate"]
            key = f"{source.path.strip('/')}/{script}"
            if s3_backends[self.account_id]["aws"].get_object(source.netloc, key) is None:
                raise ValidationError(
                    f"{name}: no object s3://{source.netloc}/{key} for its nodes to run"
                )
        for action, resource, context in self._needed(group):
            if not is_permitted(self.account_id, group["ExecutionRole"], action, resource, context):
                raise ValidationError(
                    f"{name}: {group['ExecutionRole']} may not {action} {resource}"
                )

    def _needed(self, group: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, str]]]:
        """Action, resource and condition keys of what happens with the role until a node is in service."""
        via = {"kms:ViaService": f"sagemaker.{self.region_name}.amazonaws.com"}
        for storage in group.get("InstanceStorageConfigs", []):
            key = storage.get("EbsVolumeConfig", {}).get("VolumeKmsKeyId")
            if key:
                yield "kms:CreateGrant", key, via | {"kms:GrantIsForAWSResource": "true"}
                yield "kms:DescribeKey", key, via
        if "LifeCycleConfig" in group:
            config = group["LifeCycleConfig"]
            source = urlparse(config["SourceS3Uri"])
            bucket = f"arn:aws:s3:::{source.netloc}"
            prefix = source.path.strip("/") + "/"
            yield "s3:ListBucket", bucket, {"s3:prefix": prefix}
            yield (
                "s3:GetObject",
                f"{bucket}/{prefix}{config.get('OnInitComplete') or config['OnCreate']}",
                {},
            )
            backend = s3_backends[self.account_id]["aws"]
            rule = (backend.get_bucket(source.netloc).encryption or {}).get("Rule", {})
            key = rule.get("ApplyServerSideEncryptionByDefault", {}).get("KMSMasterKeyID")
            if key:
                yield "kms:Decrypt", key, {"kms:ViaService": f"s3.{self.region_name}.amazonaws.com"}
        database = self.settings.get("Orchestrator", {}).get("Slurm", {}).get("AccountingDatabase")
        plane = self.control_plane
        if plane is not None:
            yield "eks-auth:AssumeRoleForPodIdentity", plane.arn, {}
        if database and group["SlurmConfig"]["NodeType"] == "Controller":
            yield "secretsmanager:GetSecretValue", database["SecretArn"], {}

    def _resize(self, group: dict[str, Any], count: int) -> None:
        name = group["InstanceGroupName"]
        members = [key for key, node in self.nodes.items() if node.instance_group_name == name]
        for key in members[count:]:
            self._end(key)
        for _ in range(count - len(members)):
            node_id = f"i-{secrets.token_hex(9)[:17]}"
            node = HyperPodNode(
                self.region_name,
                self.account_id,
                self.cluster_name,
                name,
                available_type(group),
                group.get("LifeCycleConfig", {}),
                group["ExecutionRole"],
                node_id,
                group.get("ThreadsPerCore"),
            )
            # moto's tokens of pages name a node by this, and its nodes have none.
            node.arn = f"{self.arn}/{node_id}"
            self.nodes[node_id] = node
            self._start_pods(node_id)

    def _start_pods(self, node_id: str) -> None:
        """Create the interface of a node's pods, as the VPC CNI does."""
        plane = self.control_plane
        if plane is None:
            return
        ec2 = ec2_backends[self.account_id][self.region_name]
        place = self.settings["VpcConfig"]
        interface = ec2.create_network_interface(
            ec2.get_subnet(place["Subnets"][0]),
            random_private_ip(),
            group_ids=place["SecurityGroupIds"],
            tags={POD_INTERFACE_TAG: plane.name},
            description=f"aws-K8S-{node_id}",
        )
        interface.status = "in-use"
        self.pod_interfaces[node_id] = interface

    def _end(self, node_id: str) -> None:
        """End a node; the interface of its pods stays, because nothing is left to delete it."""
        del self.nodes[node_id]
        interface = self.pod_interfaces.pop(node_id, None)
        if interface is not None:
            interface.status = "available"

    def write_setup_logs(self) -> None:
        """Write a stream for each node, as HyperPod's agents do, if the cluster has the tag."""
        tags = {tag["Key"]: tag["Value"] for tag in self.settings.get("Tags", [])}
        if SETUP_LOG_TAG not in tags:
            return
        num_failed = int(tags[SETUP_LOG_TAG])
        logs = logs_backends[self.account_id][self.region_name]
        group = f"/aws/sagemaker/Clusters/{self.cluster_name}/{self.arn.rpartition('/')[2]}"
        logs.ensure_log_group(group)
        now_ms = int(time.time() * 1000)
        for number, (node_id, node) in enumerate(self.nodes.items()):
            stream = f"LifecycleConfig/{node.instance_group_name}/{node_id}"
            logs.create_log_stream(group, stream)
            lines = [BEGUN, FAILED if number < num_failed else DONE]
            events = [{"timestamp": now_ms, "message": line} for line in lines]
            logs.put_log_events(group, stream, events)

    def end_nodes(self) -> None:
        for node_id in list(self.nodes):
            self._end(node_id)


def create_cluster(self: SageMakerResponse) -> ActionResult:
    settings = json.loads(self.body)
    ec2 = ec2_backends[self.current_account][self.region]
    for subnet in settings["VpcConfig"]["Subnets"]:
        ec2.get_subnet(subnet)
    for group in settings["VpcConfig"]["SecurityGroupIds"]:
        if ec2.get_security_group_from_id(group) is None:
            raise ValidationError(f"security group {group} does not exist")
    _check_control_plane(self, settings)
    cluster = HyperPodCluster(
        settings=settings, region_name=self.region, account_id=self.current_account
    )
    self.sagemaker_backend.clusters[cluster.cluster_name] = cluster
    cluster.write_setup_logs()
    return ActionResult({"ClusterArn": cluster.arn})


def _check_control_plane(self: SageMakerResponse, settings: dict[str, Any]) -> None:
    arn = orchestrating_arn(settings)
    if arn is None:
        return
    for other in self.sagemaker_backend.clusters.values():
        if isinstance(other, HyperPodCluster) and orchestrating_arn(other.settings) == arn:
            raise ValidationError(f"{arn} already has the nodes of {other.cluster_name}")
    plane = control_plane(self.current_account, self.region, arn.rpartition("/")[2])
    ec2 = ec2_backends[self.current_account][self.region]
    subnet = ec2.get_subnet(settings["VpcConfig"]["Subnets"][0])
    problem = plane.check_hyperpod(subnet.vpc_id)
    if problem:
        raise ValidationError(problem)


_moto_delete_cluster = SageMakerModelBackend.delete_cluster


def delete_cluster(self: SageMakerModelBackend, cluster_name: str) -> str:
    cluster = self.clusters.get(cluster_name)
    if isinstance(cluster, HyperPodCluster):
        cluster.end_nodes()
    return _moto_delete_cluster(self, cluster_name)


def update_cluster(self: SageMakerResponse) -> ActionResult:
    changes = json.loads(self.body)
    cluster = self.sagemaker_backend.clusters[changes.pop("ClusterName")]
    assert isinstance(cluster, HyperPodCluster)
    cluster.set_groups(changes.pop("InstanceGroups", []))
    cluster.settings |= changes
    return ActionResult({"ClusterArn": cluster.arn})


def update_cluster_software(self: SageMakerResponse) -> ActionResult:
    """Give the nodes of the groups their image; the service's batches end in the same state."""
    request = json.loads(self.body)
    cluster = self.sagemaker_backend.clusters[request["ClusterName"]]
    known = {group["InstanceGroupName"] for group in cluster.instance_groups}
    for group in request["InstanceGroups"]:
        name = group["InstanceGroupName"]
        if name not in known:
            raise ValidationError(f"no instance group {name}")
        for node in cluster.nodes.values():
            if node.instance_group_name == name:
                assert isinstance(node, HyperPodNode)
                node.release = group.get("ImageReleaseVersion", NEWEST_RELEASE)
    return ActionResult({"ClusterArn": cluster.arn})


def batch_reboot_cluster_nodes(self: SageMakerResponse) -> ActionResult:
    """Accept the nodes of the cluster; their ids stay."""
    request = json.loads(self.body)
    nodes = self.sagemaker_backend.clusters[request["ClusterName"]].nodes
    failed = [
        {"NodeId": node_id, "ErrorCode": "InstanceIdNotFound", "Message": "no such node"}
        for node_id in request["NodeIds"]
        if node_id not in nodes
    ]
    successful = [node_id for node_id in request["NodeIds"] if node_id in nodes]
    return ActionResult({"Successful": successful, "Failed": failed})


def install() -> None:
    SageMakerResponse.create_cluster = create_cluster  # type: ignore[method-assign]
    SageMakerResponse.update_cluster = update_cluster  # type: ignore[attr-defined]
    SageMakerResponse.update_cluster_software = update_cluster_software  # type: ignore[attr-defined]
    SageMakerResponse.batch_reboot_cluster_nodes = batch_reboot_cluster_nodes  # type: ignore[attr-defined]
    SageMakerModelBackend.delete_cluster = delete_cluster  # type: ignore[method-assign]
