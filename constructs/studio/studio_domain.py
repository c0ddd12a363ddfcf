"""SageMaker Studio's domain: its spaces, their role and network, and their start script."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from aws_cdk import Fn, RemovalPolicy, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sagemaker as sagemaker

from config.cluster import Cluster
from config.studio import SHARED_PARTITION, STUDIO_FOLDER, SlurmStudio, Studio
from constructs import Construct
from constructs.nodes.node_roles import describe_file_systems, key_statements
from constructs.policy.statement_role import WRITE_LOGS, Statement, statement_role, unscoped
from constructs.vpc.network import Network

SCRIPTS = Path(__file__).parents[2] / "lifecycle" / "studio"
MAX_CONTENT = 16_384
"""Maximum length of ``StudioLifecycleConfigContent``, in characters of base64."""
OTHER_APPS = ("JupyterServer", "RStudioServerPro", "Canvas")
"""Apps that are hidden, because they support neither spaces nor the file system."""


class Ports(NamedTuple):
    """Range of TCP ports."""

    first: int
    last: int


LUSTRE_PORTS = (Ports(988, 988), Ports(1018, 1023))
"""Ports of the file system's servers, which also connect to their clients (FSx for Lustre user guide,
"File system access control with Amazon VPC")."""
SLURM_PORTS = Ports(6817, 6819)
"""Default ports of slurmctld, slurmd and slurmdbd."""
HTTPS = Ports(443, 443)


@dataclass(frozen=True)
class SpaceDefaults:
    """Resources that all spaces of a domain use."""

    role: iam.IRole
    """Role of spaces without a role of their own."""
    security_group_id: str
    file_system_id: str
    """Lustre file system."""
    current_s3_uri: str
    """File that names the version of the scripts that spaces fetch when they start."""
    key: kms.IKey | None
    """Key of the spaces' disks, if the cluster has one."""


class StudioDomain(Construct):
    """Domain in one subnet of the cluster's network, without its own route to the internet.

    A space refers to the lifecycle configuration with which it was created, and does not start after that is
    deleted. SageMaker cannot change a configuration. So the name of a configuration contains the hash of
    ``start_space.sh``, and stays the same as long as the script does.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        name: str,
        region: str,
        studio: Studio,
        network: Network,
        spaces: SpaceDefaults,
    ) -> None:
        """Create the domain.

        Args:
            scope: parent construct.
            construct_id: id within the parent.
            name: name of the domain, and prefix of the names of its lifecycle configurations.
            region: region of the cluster.
            studio: section of the cluster file.
            network: network of the cluster.
            spaces: resources of the spaces.
        """
        super().__init__(scope, construct_id)
        script = (SCRIPTS / "start_space.sh").read_text()
        text = script.replace("@CURRENT@", spaces.current_s3_uri).replace("@REGION@", region)
        assert len(base64.b64encode(text.encode())) < MAX_CONTENT
        digest = hashlib.sha256(script.encode()).hexdigest()[:16]

        def app_settings(app: str) -> dict[str, Any]:
            start = sagemaker.CfnStudioLifecycleConfig(
                self,
                f"{app}Start",
                studio_lifecycle_config_app_type=app,
                studio_lifecycle_config_name=f"{name}-{app.lower()}-{digest}",
                studio_lifecycle_config_content=Fn.base64(text),
            )
            return _app_settings(studio, start.attr_studio_lifecycle_config_arn)

        shared = {
            "fSxLustreFileSystemConfig": {
                "fileSystemId": spaces.file_system_id,
                "fileSystemPath": f"/{STUDIO_FOLDER}/{SHARED_PARTITION}",
            }
        }
        self.resource = sagemaker.CfnDomain(
            self,
            "Domain",
            domain_name=name,
            auth_mode="IAM" if studio.sign_in == "iam" else "SSO",
            vpc_id=network.vpc.vpc_id,
            subnet_ids=[network.subnet(None).subnet_id],
            app_network_access_type="VpcOnly",
            kms_key_id=spaces.key.key_id if spaces.key else None,
            # Home directories are on the spaces' own disks. Every deleted domain would leave an EFS file
            # system behind.
            home_efs_file_system_creation="Disabled",
            tag_propagation="ENABLED",
            default_user_settings=sagemaker.CfnDomain.UserSettingsProperty(
                execution_role=spaces.role.role_arn,
                security_groups=[spaces.security_group_id],
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
                jupyter_lab_app_settings=app_settings("JupyterLab"),
                code_editor_app_settings=app_settings("CodeEditor"),
            ),
            domain_settings=sagemaker.CfnDomain.DomainSettingsProperty(
                # CloudTrail's records of a space's actions contain the user's name.
                execution_role_identity_config="USER_PROFILE_NAME",
            ),
        )
        # Spaces must be deleted before the domain, and the domain itself contains no data.
        self.resource.apply_removal_policy(RemovalPolicy.DESTROY)


def _app_settings(studio: Studio, start_arn: str) -> dict[str, Any]:
    """Return the settings of an app, which stops after it is idle and runs a script when it starts."""
    return {
        "appLifecycleManagement": {
            "idleSettings": {
                "lifecycleManagement": "ENABLED",
                "idleTimeoutInMinutes": studio.idle_minutes,
                "minIdleTimeoutInMinutes": 60,
                "maxIdleTimeoutInMinutes": max(studio.idle_minutes, 60),
            }
        },
        "lifecycleConfigArns": [start_arn],
        # Without this entry, users would have to choose the configuration for each space.
        "defaultResourceSpec": {
            "instanceType": studio.instance_type,
            "lifecycleConfigArn": start_arn,
        },
    }


def studio_security_group(
    scope: Construct,
    construct_id: str,
    *,
    cluster: Cluster,
    vpc: ec2.IVpc,
    members: ec2.ISecurityGroup,
) -> ec2.SecurityGroup:
    """Create the security group of spaces, which are not members of the cluster's own group.

    It admits Lustre in both directions. Spaces may connect by HTTPS to any address, to the control plane of
    EKS, and from login spaces to Slurm's daemons. This stack owns the rules on both groups.

    Args:
        scope: parent construct.
        construct_id: id within the parent.
        cluster: cluster file.
        vpc: VPC of the cluster.
        members: security group of the cluster's members.
    """
    group = ec2.SecurityGroup(
        scope,
        construct_id,
        vpc=vpc,
        description="Spaces of SageMaker Studio",
        allow_all_outbound=False,
    )
    group.add_egress_rule(
        ec2.Peer.any_ipv4(), ec2.Port.tcp(HTTPS.first), "AWS, and what people install"
    )
    for ports in LUSTRE_PORTS:
        rule_id = f"{construct_id}Lustre{ports.first}"
        _allow(scope, f"{rule_id}To", protocol="Lustre", ports=ports, source=group, target=members)
        _allow(
            scope, f"{rule_id}From", protocol="Lustre", ports=ports, source=members, target=group
        )
    studio = cluster.studio
    if cluster.scheduler == "eks":
        rule_id = f"{construct_id}KubernetesTo"
        _allow(scope, rule_id, protocol="Kubernetes", ports=HTTPS, source=group, target=members)
    elif isinstance(studio, SlurmStudio) and studio.has_login_spaces:
        rule_id = f"{construct_id}SlurmTo"
        _allow(scope, rule_id, protocol="Slurm", ports=SLURM_PORTS, source=group, target=members)
    return group


def _allow(
    scope: Construct,
    rule_id: str,
    *,
    protocol: str,
    ports: Ports,
    source: ec2.ISecurityGroup,
    target: ec2.ISecurityGroup,
) -> None:
    """Allow connections from the members of one security group to those of another."""
    rule: dict[str, Any] = {
        "ip_protocol": "tcp",
        "from_port": ports.first,
        "to_port": ports.last,
        "description": f"{protocol} of Studio's spaces",
    }
    ec2.CfnSecurityGroupIngress(
        scope,
        f"{rule_id}Ingress",
        group_id=target.security_group_id,
        source_security_group_id=source.security_group_id,
        **rule,
    )
    # Spaces may already connect anywhere by HTTPS, and members of an open network by any protocol.
    if ports != HTTPS and not source.allow_all_outbound:
        ec2.CfnSecurityGroupEgress(
            scope,
            f"{rule_id}Egress",
            group_id=source.security_group_id,
            destination_security_group_id=target.security_group_id,
            **rule,
        )


def studio_role(
    scope: Construct,
    construct_id: str,
    *,
    description: str,
    key: kms.IKey | None,
    more: Sequence[Statement],
) -> iam.Role:
    """Create an execution role of spaces, for the user's own spaces and their logs.

    SageMaker's managed policies for Studio would also allow access to all buckets, clusters and roles of the
    account.

    Args:
        scope: parent construct.
        construct_id: id within the parent.
        description: description of the role.
        key: key of the spaces' disks, if the cluster has one.
        more: additional statements.
    """
    stack = Stack.of(scope)
    statements = [*_studio_statements(stack), *more]
    if key:
        statements += key_statements(stack, key.key_arn, volumes="Disks")
    sagemaker = iam.ServicePrincipal(
        "sagemaker.amazonaws.com", conditions={"StringEquals": {"aws:SourceAccount": stack.account}}
    )
    role = statement_role(
        scope,
        construct_id,
        description=description,
        assumed_by=sagemaker,
        policy_name="Studio",
        statements=statements,
    )
    # With this action, SageMaker adds the user's name to the session (the domain's execution role identity).
    name_user = iam.PolicyStatement(actions=["sts:SetSourceIdentity"], principals=[sagemaker])
    assert role.assume_role_policy
    role.assume_role_policy.add_statements(name_user)
    return role


def _studio_statements(stack: Stack) -> list[Statement]:
    """Return the permissions of "Give your users access to spaces" in SageMaker's developer guide.

    Only private spaces are allowed.
    """
    arn = f"arn:{stack.partition}:sagemaker:{stack.region}:{stack.account}"
    logs = (
        f"arn:{stack.partition}:logs:{stack.region}:{stack.account}:log-group:/aws/sagemaker/studio"
    )
    profile = f"{arn}:user-profile/${{sagemaker:DomainId}}/${{sagemaker:UserProfileName}}"
    owned: dict[str, dict[str, str | list[str]]] = {
        "ArnLike": {"sagemaker:OwnerUserProfileArn": profile},
        "StringEquals": {"sagemaker:SpaceSharingType": ["Private"]},
    }
    chosen_names = "users choose the names of their spaces; the condition names the user"
    return [
        unscoped(
            "FindStudio",
            "sagemaker:ListApps",
            "sagemaker:ListDomains",
            "sagemaker:ListSpaces",
            "sagemaker:ListUserProfiles",
            why="SageMaker's lists have no resources",
        ),
        Statement(
            "SeeStudio",
            [
                "sagemaker:DescribeApp",
                "sagemaker:DescribeDomain",
                "sagemaker:DescribeSpace",
                "sagemaker:DescribeUserProfile",
            ],
            [f"{arn}:app/*", f"{arn}:domain/*", f"{arn}:space/*", f"{arn}:user-profile/*"],
            why="SageMaker chooses the domain's id after the role is created",
        ),
        Statement(
            "OwnSpaces",
            ["sagemaker:CreateSpace", "sagemaker:DeleteSpace", "sagemaker:UpdateSpace"],
            [f"{arn}:space/${{sagemaker:DomainId}}/*"],
            owned,
            why=chosen_names,
        ),
        Statement(
            "RunOwnSpaces",
            ["sagemaker:CreateApp", "sagemaker:DeleteApp"],
            [f"{arn}:app/${{sagemaker:DomainId}}/*"],
            owned,
            why=chosen_names,
        ),
        Statement(
            "TagWhatIsMade",
            ["sagemaker:AddTags"],
            [f"{arn}:app/*", f"{arn}:space/*"],
            {"Null": {"sagemaker:TaggingAction": "false"}},
            why=chosen_names,
        ),
        Statement("OpenStudio", ["sagemaker:CreatePresignedDomainUrl"], [profile]),
        Statement(
            "WriteLogs",
            ["logs:CreateLogGroup", *WRITE_LOGS],
            [logs, f"{logs}:log-stream:*"],
            why="SageMaker names streams after spaces",
        ),
        describe_file_systems("FindFileSystems"),
    ]
