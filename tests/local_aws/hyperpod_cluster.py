"""HyperPod clusters that keep what they were given, and that can be updated; moto's do neither."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlparse

import botocore.session
from botocore.model import StringShape
from moto.core.responses import ActionResult
from moto.ec2.models import ec2_backends
from moto.s3.models import s3_backends
from moto.sagemaker.exceptions import ValidationError
from moto.sagemaker.models import Cluster, ClusterNode
from moto.sagemaker.responses import SageMakerResponse

from tests.local_aws.permissions import is_permitted
from tests.local_aws.refusals import NO_CAPACITY_TYPE

SAGEMAKER = botocore.session.get_session().get_service_model("sagemaker")


class HyperPodCluster(Cluster):
    """moto's cluster, with every group property kept, node ids as the service's, and updates."""

    def __init__(
        self, *, settings: dict[str, Any], region_name: str, account_id: str, **kwargs: Any
    ) -> None:
        groups = settings.pop("InstanceGroups")
        self.settings = settings
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
            count = 0 if group["InstanceType"] == NO_CAPACITY_TYPE else wanted
            named[group["InstanceGroupName"]] = {
                **group,
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
        if group["InstanceType"] not in types.enum:
            raise ValidationError(f"{name}: unknown instance type {group['InstanceType']}")
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
        if database and group["SlurmConfig"]["NodeType"] == "Controller":
            yield "secretsmanager:GetSecretValue", database["SecretArn"], {}

    def _resize(self, group: dict[str, Any], count: int) -> None:
        name = group["InstanceGroupName"]
        members = [key for key, node in self.nodes.items() if node.instance_group_name == name]
        for key in members[count:]:
            del self.nodes[key]
        for _ in range(count - len(members)):
            node_id = f"i-{secrets.token_hex(9)[:17]}"
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
    cluster = HyperPodCluster(
        settings=settings, region_name=self.region, account_id=self.current_account
    )
    self.sagemaker_backend.clusters[cluster.cluster_name] = cluster
    return ActionResult({"ClusterArn": cluster.arn})


def update_cluster(self: SageMakerResponse) -> ActionResult:
    changes = json.loads(self.body)
    cluster = self.sagemaker_backend.clusters[changes.pop("ClusterName")]
    assert isinstance(cluster, HyperPodCluster)
    cluster.set_groups(changes.pop("InstanceGroups", []))
    cluster.settings |= changes
    return ActionResult({"ClusterArn": cluster.arn})


def install() -> None:
    SageMakerResponse.create_cluster = create_cluster  # type: ignore[method-assign]
    SageMakerResponse.update_cluster = update_cluster  # type: ignore[attr-defined]
