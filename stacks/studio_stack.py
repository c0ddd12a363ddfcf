"""SageMaker Studio beside a cluster: a domain in its network, with its Lustre file system."""

import json
from dataclasses import asdict
from typing import Any

from aws_cdk import CfnOutput, RemovalPolicy, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sagemaker as sagemaker
from aws_cdk import aws_secretsmanager as secretsmanager
from aws_cdk import aws_ssm as ssm
from aws_cdk.lambda_layer_kubectl_v34 import KubectlV34Layer

from config.cluster_kinds import AnyCluster
from config.eks_cluster import EksCluster
from config.resource_names import CLUSTER_TAG, ResourceNames, job_namespaces
from config.studio import SlurmStudioProfile, Studio, StudioProfile
from config.studio_people import (
    cluster_users,
    partition_uids,
    session_document,
    session_document_name,
)
from constructs import Construct
from constructs.policy.findings import acknowledge
from constructs.policy.statement_role import Statement
from constructs.storage.hashed_upload import HashedUpload, UploadedFiles, UploadTarget
from constructs.storage.log_group import log_group
from constructs.studio.studio_domain import (
    SCRIPTS,
    SpaceDefaults,
    StudioDomain,
    studio_role,
    studio_security_group,
)
from constructs.studio.studio_partitions import PartitionSettings, StudioPartitions
from constructs.vpc.network import Network
from stacks.storage_stack import StorageStack

PREFIX = "studio"
"""Prefix of the spaces' scripts in the artifact bucket."""
CLIENT_PREFIX = "studio-login"
"""Prefix of Slurm's commands in the artifact bucket; the controller writes them."""


class StudioStack(Stack):
    """Studio's domain and spaces, which outlive clusters. Clusters refer to this stack, never the reverse."""

    partitions: StudioPartitions | None
    """Queues of requests that the cluster handles; None if all spaces share one partition."""
    login_secret: secretsmanager.Secret | None
    """Secret for spaces that are login nodes, which the controller writes; None without such spaces."""
    roles: list[iam.Role]
    """Roles of all spaces."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        cluster: AnyCluster,
        studio: Studio,
        network: Network,
        storage: StorageStack,
        **stack_arguments: Any,
    ) -> None:
        super().__init__(scope, construct_id, **stack_arguments)
        self.add_stack_dependency(storage)
        self._cluster = cluster
        self._storage = storage
        key = storage.key
        log = log_group(self, "FunctionLog", key=key)
        self.login_secret = self._login_secret(studio)
        tools = self._tools()
        settings = self._space_settings(studio, tools)
        files = Construct(self, "Files")
        upload = HashedUpload(
            files,
            "Scripts",
            target=UploadTarget(storage.artifact_bucket, key, log),
            prefix=PREFIX,
            files=UploadedFiles(
                SCRIPTS,
                deployment={"settings.json": json.dumps(settings, indent=2, sort_keys=True) + "\n"},
            ),
        )
        upload.point_to_current(files, "Current")
        self._bucket_arn = f"arn:{self.partition}:s3:::{upload.bucket_name}"
        common = self._common_statements(tools)
        role = studio_role(
            self,
            "Role",
            description=f"Spaces of SageMaker Studio beside HyperPod cluster {cluster.name}",
            key=key,
            more=common,
        )
        self.roles = [role]
        assert storage.lustre, "a rule of cluster files requires it"
        lustre = storage.lustre
        group = studio_security_group(
            self, "SecurityGroup", cluster=cluster, vpc=network.vpc, members=network.security_group
        )
        domain = StudioDomain(
            self,
            "Studio",
            name=f"{cluster.name}-{cluster.scheduler}",
            region=cluster.region,
            studio=studio,
            network=network,
            spaces=SpaceDefaults(
                role=role,
                security_group_id=group.security_group_id,
                file_system_id=lustre.file_system_id,
                current_s3_uri=upload.current_s3_uri,
                key=key,
            ),
        )
        domain.resource.node.add_dependency(files, group)
        domain_id = domain.resource.attr_domain_id
        self.partitions = None
        if studio.partitions == "per_profile":
            self.partitions = StudioPartitions(
                self,
                "Partitions",
                settings=PartitionSettings(
                    domain_id=domain_id,
                    file_system_id=lustre.file_system_id,
                    removal=studio.partition_removal,
                    uids=partition_uids(cluster),
                ),
                key=key,
                log=log,
                topic_arn=storage.alerts.topic.topic_arn if storage.alerts else None,
            )
        for profile in studio.profiles:
            own = self._own_statements(profile)
            # A profile without its own statements has the common role.
            profile_role = role
            if own:
                profile_role = studio_role(
                    self,
                    f"Role-{profile.name}",
                    description=f"Spaces of {profile.name} beside HyperPod cluster {cluster.name}",
                    key=key,
                    more=[*common, *own],
                )
                self.roles.append(profile_role)
            # All settings but the role are those of the domain.
            created = sagemaker.CfnUserProfile(
                domain,
                f"Profile-{profile.name}",
                domain_id=domain_id,
                user_profile_name=profile.name,
                single_sign_on_user_identifier="UserName" if profile.sign_in_name else None,
                single_sign_on_user_value=profile.sign_in_name,
                user_settings={"executionRole": profile_role.role_arn},
            )
            if self.partitions:
                # The rule for the event of the profile's creation must exist before the profile.
                created.node.add_dependency(self.partitions)
        CfnOutput(self, "DomainId", value=domain_id)
        CfnOutput(self, "DomainUrl", value=domain.resource.attr_url)

    def controller_statements(self) -> list[Statement]:
        """Return the permissions of Slurm's controller for Studio."""
        statements = self.partitions.worker_statements() if self.partitions else []
        if self.login_secret:
            statements += [
                Statement(
                    "PublishSlurm",
                    ["s3:PutObject"],
                    [f"{self._bucket_arn}/{CLIENT_PREFIX}/*"],
                    why="each version is named by its hash",
                ),
                Statement(
                    "PublishKeyOfSlurm",
                    ["secretsmanager:PutSecretValue"],
                    [self.login_secret.secret_arn],
                ),
            ]
            if self._storage.key and not self.partitions:
                key_arn = self._storage.key.key_arn
                statements.append(Statement("EncryptForStudio", ["kms:GenerateDataKey"], [key_arn]))
        return statements

    def controller_settings(self) -> dict[str, str | None]:
        """Return the addresses of queues and secret, which Slurm's controller uses for Studio."""
        partitions = self.partitions
        return {
            "requests_url": partitions.requests.queue_url if partitions else None,
            "acknowledgements_url": partitions.acknowledgements.queue_url if partitions else None,
            "login_secret": self.login_secret.secret_arn if self.login_secret else None,
        }

    def _login_secret(self, studio: Studio) -> secretsmanager.Secret | None:
        """Create the secret with Slurm's key for login spaces; return None without such spaces."""
        if not _login_profiles(studio):
            return None
        secret = secretsmanager.Secret(
            self,
            "LoginSecret",
            description=f"Slurm of HyperPod cluster {self._cluster.name}, for login spaces of Studio",
            encryption_key=self._storage.key,
            removal_policy=RemovalPolicy.DESTROY,
        )
        reason = "the cluster creates munge's key; the controller updates the secret when the key changes"
        acknowledge(secret, {"AwsSolutions-SMG4": reason})
        return secret

    def _tools(self) -> s3.Location | None:
        """Return the object with kubectl and helm, which is the CDK's own layer; None for Slurm."""
        if not isinstance(self._cluster, EksCluster):
            return None
        layer = KubectlV34Layer(self, "Tools").node.default_child
        assert isinstance(layer, lambda_.CfnLayerVersion)
        content = layer.content
        assert isinstance(content, lambda_.CfnLayerVersion.ContentProperty)
        return s3.Location(bucket_name=content.s3_bucket, object_key=content.s3_key)

    def _space_settings(self, studio: Studio, tools: s3.Location | None) -> dict[str, Any]:
        """Return the settings file of the spaces' scripts."""
        cluster = self._cluster
        storage = self._storage
        assert storage.lustre, "a rule of cluster files requires it"
        common = {
            "scheduler": cluster.scheduler,
            "cluster_name": cluster.name,
            "region": cluster.region,
            "file_system_id": storage.lustre.file_system_id,
            "lustre_mount_path": storage.lustre.mount_path,
            "partitions": studio.partitions,
            "mlflow_tracking_uri": storage.mlflow.arn if storage.mlflow else None,
        }
        if isinstance(cluster, EksCluster):
            assert tools
            uri = f"s3://{tools.bucket_name}/{tools.object_key}"
            return {**common, "tools": uri, "namespaces": job_namespaces(cluster)}
        [controller] = [
            group.name for group in cluster.instance_groups if group.role == "controller"
        ]
        logins = {profile.name for profile in _login_profiles(studio)}
        login_secret = self.login_secret.secret_arn if self.login_secret else None
        profiles: dict[str, Any] = {}
        for name, user in cluster_users(cluster).items():
            profiles[name] = {
                **asdict(user),
                "document": session_document_name(cluster, name),
                "login_secret": login_secret if name in logins else None,
            }
        return {**common, "controller_group": controller, "profiles": profiles}

    def _common_statements(self, tools: s3.Location | None) -> list[Statement]:
        """Return the permissions of every space."""
        cluster = self._cluster
        in_prefix = {"StringLike": {"s3:prefix": [f"{PREFIX}/*"]}}
        statements = [
            Statement("ListScripts", ["s3:ListBucket"], [self._bucket_arn], in_prefix),
            Statement(
                "ReadScripts",
                ["s3:GetObject"],
                [f"{self._bucket_arn}/{PREFIX}/*"],
                why="each version is below its own hash",
            ),
        ]
        if self._storage.mlflow:
            statements += [self._storage.mlflow.to_log_runs, *self._storage.mlflow.to_look_at_runs]
        if isinstance(cluster, EksCluster):
            assert tools
            name = ResourceNames(cluster).kubernetes_cluster
            arn = f"arn:{self.partition}:eks:{self.region}:{self.account}:cluster/{name}"
            object_arn = f"arn:{self.partition}:s3:::{tools.bucket_name}/{tools.object_key}"
            statements += [
                Statement("FindCluster", ["eks:DescribeCluster"], [arn]),
                Statement("ReadTools", ["s3:GetObject"], [object_arn]),
            ]
        return statements

    def _own_statements(self, profile: StudioProfile) -> list[Statement]:
        """Return the permissions of one profile's spaces to act as the profile's user on the cluster."""
        user = cluster_users(self._cluster).get(profile.name)
        if not user:
            return []
        assert isinstance(profile, SlurmStudioProfile)
        if profile.login_space:
            assert self.login_secret
            client = f"{self._bucket_arn}/{CLIENT_PREFIX}/*"
            return [
                Statement(
                    "ReadSlurm", ["s3:GetObject"], [client], why="each version is named by its hash"
                ),
                Statement(
                    "ReadKeyOfSlurm",
                    ["secretsmanager:GetSecretValue"],
                    [self.login_secret.secret_arn],
                ),
            ]
        return self._submit_statements(profile.name, user.user)

    def _submit_statements(self, profile: str, user: str) -> list[Statement]:
        """Return the permissions for sessions with the controller.

        The sessions run only the program of the user's own document, which is created here.
        """
        name = session_document_name(self._cluster, profile)
        document = ssm.CfnDocument(
            self,
            f"Session-{profile}",
            name=name,
            document_type="Session",
            content=session_document(self._cluster, user),
            update_method="NewVersion",
        )
        here = f"{self.region}:{self.account}"
        clusters = f"arn:{self.partition}:sagemaker:{here}:cluster/*"
        sessions = f"arn:{self.partition}:ssm:{here}"
        own = {"StringEquals": {f"aws:ResourceTag/{CLUSTER_TAG}": self._cluster.name}}
        return [
            Statement(
                "FindController",
                ["sagemaker:DescribeCluster", "sagemaker:ListClusterNodes"],
                [clusters],
                own,
                why="the service chooses the cluster's id; the condition names the cluster",
            ),
            Statement("SubmitJobs", ["ssm:StartSession"], [f"{sessions}:document/{document.ref}"]),
            Statement(
                "SubmitJobsToNodes",
                ["ssm:StartSession"],
                [clusters],
                # Without this condition, a session needs no document and is a shell as root.
                {"Bool": {"ssm:SessionDocumentAccessCheck": "true"}},
                why="the service chooses the cluster's id; the document's program exists on no other cluster",
            ),
            Statement(
                "EndSessions",
                ["ssm:TerminateSession"],
                [f"{sessions}:session/${{aws:userid}}-*"],
                why="a session's name begins with the id of its user",
            ),
            Statement(
                "SpeakInSessions",
                ["ssmmessages:OpenDataChannel"],
                [f"{sessions}:session/*"],
                why="sessions of roles have several forms of names; each session requires its own token",
            ),
        ]


def _login_profiles(studio: Studio) -> list[SlurmStudioProfile]:
    """Return the profiles with a login space."""
    return [
        profile
        for profile in studio.profiles
        if isinstance(profile, SlurmStudioProfile) and profile.login_space
    ]
