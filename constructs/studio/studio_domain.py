"""SageMaker Studio's domain: its spaces, their role and network, and the script that they run at start."""

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
"""Characters of base64 (``StudioLifecycleConfigContent``)."""
OTHER_APPS = ("JupyterServer", "RStudioServerPro", "Canvas")
"""Apps that are hidden, because they know neither spaces nor the file system."""
LUSTRE_PORTS = ((988, 988), (1018, 1023))
"""Ports of the file system's servers, which also connect to their clients (FSx for Lustre user guide,
"File system access control with Amazon VPC")."""
SLURM_PORTS = (6817, 6819)
"""slurmctld, slurmd and slurmdbd, as Slurm has them by default."""
HTTPS = (443, 443)


class StudioDomain(Construct):
    """A domain in one subnet of the cluster's network, without a way to the internet of its own.

    ``current_s3_uri`` is a file that says what spaces fetch at their start. SageMaker cannot change a
    lifecycle configuration, and a space remembers its own and does not start when that is deleted: so it is
    the same as long as ``start_space.sh`` is.
    """

    def __init__(
        self,
        scope: Construct,
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
        super().__init__(scope, "Studio")
        name = f"{cluster.name}-{cluster.scheduler}"
        script = (SCRIPTS / "start_space.sh").read_text()
        text = script.replace("@CURRENT@", current_s3_uri).replace("@REGION@", cluster.region)
        assert len(base64.b64encode(text.encode())) < MAX_CONTENT
        digest = hashlib.sha256(script.encode()).hexdigest()[:16]
        starts = [
            sagemaker.CfnStudioLifecycleConfig(
                self,
                f"{app}Start",
                studio_lifecycle_config_app_type=app,
                studio_lifecycle_config_name=f"{name}-{app.lower()}-{digest}",
                studio_lifecycle_config_content=Fn.base64(text),
            )
            for app in ("JupyterLab", "CodeEditor")
        ]
        jupyter, editor = (_app_settings(studio, start.attr_studio_lifecycle_config_arn) for start in starts)
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
                jupyter_lab_app_settings=jupyter,
                code_editor_app_settings=editor,
            ),
            domain_settings=sagemaker.CfnDomain.DomainSettingsProperty(
                # The person's name is in CloudTrail's record of what a space does.
                execution_role_identity_config="USER_PROFILE_NAME",
            ),
        )
        # Its people's spaces must be gone before it, and nothing of theirs is in it.
        self.resource.apply_removal_policy(RemovalPolicy.DESTROY)


def _app_settings(studio: Studio, start_arn: str) -> dict[str, Any]:
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
        # Without the configuration here a person would have to choose it for each space.
        "defaultResourceSpec": {"instanceType": studio.instance_type, "lifecycleConfigArn": start_arn},
    }


def studio_security_group(
    scope: Construct, construct_id: str, *, cluster: Cluster, vpc: ec2.IVpc, members: ec2.ISecurityGroup
) -> ec2.SecurityGroup:
    """A group of its own: what is open between the cluster's members is not open to spaces.

    Lustre both ways; the control plane of EKS, or Slurm's daemons for login spaces; and HTTPS outwards. The
    rules are this stack's, on both groups.
    """
    group = ec2.SecurityGroup(
        scope,
        construct_id,
        vpc=vpc,
        description="Spaces of SageMaker Studio",
        allow_all_outbound=False,
    )
    group.add_egress_rule(ec2.Peer.any_ipv4(), ec2.Port.tcp(HTTPS[0]), "AWS, and what people install")
    only_to = {"To": (group, members)}
    both_ways = {**only_to, "From": (members, group)}
    rules = [(f"Lustre{ports[0]}", "Lustre", ports, both_ways) for ports in LUSTRE_PORTS]
    studio = cluster.studio
    if cluster.scheduler == "eks":
        rules.append(("Kubernetes", "Kubernetes", HTTPS, only_to))
    elif isinstance(studio, SlurmStudio) and studio.has_login_spaces:
        rules.append(("Slurm", "Slurm", SLURM_PORTS, only_to))
    for name, what, (start, end), ways in rules:
        rule: dict[str, Any] = {
            "ip_protocol": "tcp",
            "from_port": start,
            "to_port": end,
            "description": f"{what} of Studio's spaces",
        }
        for way, (source, target) in ways.items():
            rule_id = f"{construct_id}{name}{way}"
            here, there = source.security_group_id, target.security_group_id
            ec2.CfnSecurityGroupIngress(
                scope, f"{rule_id}Ingress", group_id=there, source_security_group_id=here, **rule
            )
            # No rule is needed for HTTPS from spaces, nor for members of an open network.
            if (start, end) != HTTPS and not source.allow_all_outbound:
                ec2.CfnSecurityGroupEgress(
                    scope, f"{rule_id}Egress", group_id=here, destination_security_group_id=there, **rule
                )
    return group


def studio_role(
    scope: Construct,
    construct_id: str,
    *,
    description: str,
    key: kms.IKey | None,
    more: Sequence[Statement],
) -> iam.Role:
    """The execution role of spaces: one's own spaces, their logs, and ``more``.

    SageMaker's managed policies for Studio reach all buckets, clusters and roles of an account.
    """
    stack = Stack.of(scope)
    statements = [*_studio_statements(stack), *more]
    if key:
        # The disks of spaces.
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
    # SageMaker uses it to put the person's name into the session (the domain's execution role identity).
    named = iam.PolicyStatement(actions=["sts:SetSourceIdentity"], principals=[sagemaker])
    assert role.assume_role_policy
    role.assume_role_policy.add_statements(named)
    return role


def _studio_statements(stack: Stack) -> list[Statement]:
    """After "Give your users access to spaces" in SageMaker's developer guide, for private ones alone."""
    arn = f"arn:{stack.partition}:sagemaker:{stack.region}:{stack.account}"
    logs = f"arn:{stack.partition}:logs:{stack.region}:{stack.account}:log-group:/aws/sagemaker/studio"
    profile = f"{arn}:user-profile/${{sagemaker:DomainId}}/${{sagemaker:UserProfileName}}"
    private: dict[str, dict[str, str | list[str]]] = {
        "ArnLike": {"sagemaker:OwnerUserProfileArn": profile},
        "StringEquals": {"sagemaker:SpaceSharingType": ["Private"]},
    }
    names = "people name their spaces; the condition names the person"
    return [
        unscoped(
            "FindStudio",
            *(f"sagemaker:List{kind}" for kind in ("Apps", "Domains", "Spaces", "UserProfiles")),
            why="SageMaker's lists have no resources",
        ),
        Statement(
            "SeeStudio",
            [f"sagemaker:Describe{kind}" for kind in ("App", "Domain", "Space", "UserProfile")],
            [f"{arn}:{kind}/*" for kind in ("app", "domain", "space", "user-profile")],
            why="SageMaker makes up the domain's id after the role is there",
        ),
        Statement(
            "OwnSpaces",
            ["sagemaker:CreateSpace", "sagemaker:DeleteSpace", "sagemaker:UpdateSpace"],
            [f"{arn}:space/${{sagemaker:DomainId}}/*"],
            private,
            names,
        ),
        Statement(
            "RunOwnSpaces",
            ["sagemaker:CreateApp", "sagemaker:DeleteApp"],
            [f"{arn}:app/${{sagemaker:DomainId}}/*"],
            private,
            names,
        ),
        Statement(
            "TagWhatIsMade",
            ["sagemaker:AddTags"],
            [f"{arn}:app/*", f"{arn}:space/*"],
            {"Null": {"sagemaker:TaggingAction": "false"}},
            names,
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
