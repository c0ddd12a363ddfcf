"""SageMaker Studio's domain: its spaces, their network, and the scripts that they run at their start."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aws_cdk import Fn, RemovalPolicy
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_s3_deployment as s3_deployment
from aws_cdk import aws_sagemaker as sagemaker

from config.cluster import Cluster
from config.studio import SHARED_PARTITION, STUDIO_FOLDER, SlurmStudio, Studio
from constructs import Construct
from constructs.policy.statement_role import Statement
from constructs.storage.hashed_upload import HashedUpload
from constructs.vpc.network import Network

APPS = ("JupyterLab", "CodeEditor")
START = Path(__file__).parents[2] / "lifecycle" / "studio" / "start_space.sh"
MAX_CONTENT = 16_384
"""Characters of base64 (``StudioLifecycleConfigContent``)."""
OTHER_APPS = ("JupyterServer", "RStudioServerPro", "Canvas")
"""Apps that are hidden, because they know neither spaces nor the file system."""


class StudioDomain(Construct):
    """A domain in one subnet of the cluster's network, without a way to the internet of its own.

    ``current_s3_uri`` is a file that says what spaces fetch at their start. SageMaker cannot change a
    lifecycle configuration, and a space remembers its own and does not start when that is deleted: so it is
    the same as long as ``start_space.sh`` is.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        cluster: Cluster,
        studio: Studio,
        network: Network,
        security_group_id: str,
        file_system_id: str,
        current_s3_uri: str,
        role: iam.IRole,
        key: kms.IKey | None,
    ) -> None:
        super().__init__(scope, construct_id)
        name = f"{cluster.name}-{cluster.scheduler}"
        settings = _app_settings(
            studio,
            *(
                self._lifecycle_config(app, f"{name}-{app.lower()}", cluster.region, current_s3_uri)
                for app in APPS
            ),
        )
        path = f"/{STUDIO_FOLDER}/{SHARED_PARTITION}"
        shared = {"fSxLustreFileSystemConfig": {"fileSystemId": file_system_id, "fileSystemPath": path}}
        self.resource = sagemaker.CfnDomain(
            self,
            "Domain",
            domain_name=name,
            auth_mode="IAM" if studio.sign_in == "iam" else "SSO",
            vpc_id=network.vpc.vpc_id,
            subnet_ids=[network.subnet(None).subnet_id],
            app_network_access_type="VpcOnly",
            kms_key_id=key.key_id if key else None,
            # Homes are on the spaces' own disks: an EFS file system would be left behind by every domain.
            home_efs_file_system_creation="Disabled",
            tag_propagation="ENABLED",
            default_user_settings=sagemaker.CfnDomain.UserSettingsProperty(
                execution_role=role.role_arn,
                security_groups=[security_group_id],
                auto_mount_home_efs="Disabled",
                default_landing_uri="studio::",
                studio_web_portal="ENABLED",
                studio_web_portal_settings={"hiddenAppTypes": [*OTHER_APPS]},
                space_storage_settings={
                    "defaultEbsStorageSettings": {
                        "defaultEbsVolumeSizeInGb": studio.space_gib,
                        "maximumEbsVolumeSizeInGb": studio.max_space_gib,
                    }
                },
                custom_file_system_configs=[shared] if studio.partitions == "shared" else None,
                **settings,
            ),
            domain_settings=sagemaker.CfnDomain.DomainSettingsProperty(
                # The person's name is in CloudTrail's record of what a space does.
                execution_role_identity_config="USER_PROFILE_NAME",
            ),
        )
        # Its people's spaces must be gone before it, and nothing of theirs is in it.
        self.resource.apply_removal_policy(RemovalPolicy.DESTROY)
        self.domain_id = self.resource.attr_domain_id

    def profile(
        self, construct_id: str, *, name: str, sign_in_name: str | None, role: iam.IRole
    ) -> sagemaker.CfnUserProfile:
        """A person's profile; its settings are the domain's but for the role."""
        return sagemaker.CfnUserProfile(
            self,
            construct_id,
            domain_id=self.domain_id,
            user_profile_name=name,
            single_sign_on_user_identifier="UserName" if sign_in_name else None,
            single_sign_on_user_value=sign_in_name,
            user_settings={"executionRole": role.role_arn},
        )

    def _lifecycle_config(
        self, app: str, name: str, region: str, current_s3_uri: str
    ) -> sagemaker.CfnStudioLifecycleConfig:
        script = START.read_text()
        text = script.replace("@CURRENT@", current_s3_uri).replace("@REGION@", region)
        assert len(base64.b64encode(text.encode())) < MAX_CONTENT
        return sagemaker.CfnStudioLifecycleConfig(
            self,
            f"{app}Start",
            studio_lifecycle_config_app_type=app,
            studio_lifecycle_config_name=f"{name}-{hashlib.sha256(script.encode()).hexdigest()[:16]}",
            studio_lifecycle_config_content=Fn.base64(text),
        )


def _app_settings(studio: Studio, *starts: sagemaker.CfnStudioLifecycleConfig) -> dict[str, Any]:
    """Return settings of JupyterLab and Code Editor, in the order of ``APPS``."""
    jupyter, editor = (
        {
            "appLifecycleManagement": {
                "idleSettings": {
                    "lifecycleManagement": "ENABLED",
                    "idleTimeoutInMinutes": studio.idle_minutes,
                    "minIdleTimeoutInMinutes": 60,
                    "maxIdleTimeoutInMinutes": max(studio.idle_minutes, 60),
                }
            },
            "lifecycleConfigArns": [start.attr_studio_lifecycle_config_arn],
            "defaultResourceSpec": {
                "instanceType": studio.instance_type,
                # Without it a person would have to choose it for each space.
                "lifecycleConfigArn": start.attr_studio_lifecycle_config_arn,
            },
        }
        for start in starts
    )
    return {"jupyter_lab_app_settings": jupyter, "code_editor_app_settings": editor}


LUSTRE_PORTS = ((988, 988), (1018, 1023))
"""Ports of the file system's servers, which also connect to their clients (FSx for Lustre user guide,
"File system access control with Amazon VPC")."""
SLURM_PORTS = (6817, 6819)
"""slurmctld, slurmd and slurmdbd, as Slurm has them by default."""
HTTPS = (443, 443)


def studio_security_group(
    scope: Construct, construct_id: str, *, cluster: Cluster, vpc: ec2.IVpc, members: ec2.ISecurityGroup
) -> ec2.SecurityGroup:
    """A group of its own: what is open between the cluster's members is not open to spaces.

    Lustre both ways; the control plane of EKS, or Slurm's daemons for login spaces; and HTTPS outwards.
    """
    group = ec2.SecurityGroup(
        scope,
        construct_id,
        vpc=vpc,
        description="Spaces of SageMaker Studio",
        allow_all_outbound=False,
    )
    group.add_egress_rule(ec2.Peer.any_ipv4(), ec2.Port.tcp(HTTPS[0]), "AWS, and what people install")
    for start, end in LUSTRE_PORTS:
        _open(scope, f"{construct_id}Lustre{start}", group, members, (start, end), "Lustre", back=True)
    studio = cluster.studio
    if cluster.scheduler == "eks":
        _open(scope, f"{construct_id}Kubernetes", group, members, HTTPS, "Kubernetes")
    elif isinstance(studio, SlurmStudio) and studio.has_login_spaces:
        _open(scope, f"{construct_id}Slurm", group, members, SLURM_PORTS, "Slurm")
    return group


def _open(
    scope: Construct,
    construct_id: str,
    spaces: ec2.ISecurityGroup,
    members: ec2.ISecurityGroup,
    ports: tuple[int, int],
    what: str,
    *,
    back: bool = False,
) -> None:
    """Allow traffic from spaces to the cluster, and back with ``back``; rules of this stack on both groups.

    Outbound traffic that a group allows anyway gets no rule: HTTPS from spaces, all from an open network.
    """
    ways = [("To", spaces, members, ports != HTTPS)]
    if back:
        ways.append(("From", members, spaces, not members.allow_all_outbound))
    rule: dict[str, Any] = {
        "ip_protocol": "tcp",
        "from_port": ports[0],
        "to_port": ports[1],
        "description": f"{what} of Studio's spaces",
    }
    for name, source, target, out in ways:
        here, there = source.security_group_id, target.security_group_id
        ec2.CfnSecurityGroupIngress(
            scope, f"{construct_id}{name}Ingress", group_id=there, source_security_group_id=here, **rule
        )
        if out:
            ec2.CfnSecurityGroupEgress(
                scope,
                f"{construct_id}{name}Egress",
                group_id=here,
                destination_security_group_id=there,
                **rule,
            )


FOLDER = Path(__file__).parents[2] / "lifecycle" / "studio"
PREFIX, CLIENT_PREFIX = "studio", "studio-login"
"""Prefixes of the artifact bucket: scripts of spaces, and Slurm's commands from the controller."""
CURRENT = "current"


class StudioFiles(Construct):
    """Scripts of spaces with their settings, in the artifact bucket.

    ``current_s3_uri`` is a file that says where the newest are, at an address that stays the same.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        artifact_bucket: s3.IBucket,
        settings: Mapping[str, Any],
        key: kms.IKey | None,
        log: logs.CfnLogGroup,
    ) -> None:
        super().__init__(scope, construct_id)
        upload = HashedUpload(
            self,
            "Scripts",
            artifact_bucket=artifact_bucket,
            key=key,
            log=log,
            prefix=PREFIX,
            folder=FOLDER,
            deployment_files={"settings.json": json.dumps(settings, indent=2, sort_keys=True) + "\n"},
        )
        self.bucket_name = upload.bucket_name
        # By the function of the other, without which one would be made for this alone.
        pointer = upload.deployment(
            self, "Current", PREFIX, [s3_deployment.Source.data(CURRENT, upload.s3_uri)]
        )
        pointer.node.add_dependency(upload)
        self.current_s3_uri = f"s3://{self.bucket_name}/{PREFIX}/{CURRENT}"


def read_statements(partition: str, bucket_name: str, *prefixes: str) -> list[Statement]:
    """Reading what lies below prefixes of the artifact bucket."""
    bucket = f"arn:{partition}:s3:::{bucket_name}"
    return [
        Statement(
            "ListScripts",
            ["s3:ListBucket"],
            [bucket],
            {"StringLike": {"s3:prefix": [f"{prefix}/*" for prefix in prefixes]}},
        ),
        Statement(
            "ReadScripts",
            ["s3:GetObject"],
            [f"{bucket}/{prefix}/*" for prefix in prefixes],
            why_wildcard="each version lies below a hash of its own",
        ),
    ]
