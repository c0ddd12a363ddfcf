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
from config.resource_names import CLUSTER_TAG, job_namespaces
from config.studio import SlurmStudioProfile, Studio, StudioProfile
from config.studio_people import cluster_users, partition_uids, session_document, session_document_name
from constructs import Construct
from constructs.policy.findings import acknowledge
from constructs.policy.statement_role import Statement
from constructs.storage.hashed_upload import HashedUpload
from constructs.storage.log_group import log_group
from constructs.studio.studio_domain import SCRIPTS, StudioDomain, studio_role, studio_security_group
from constructs.studio.studio_partitions import StudioPartitions
from constructs.vpc.network import Network
from stacks.storage_stack import StorageStack

PREFIX, CLIENT_PREFIX = "studio", "studio-login"
"""Prefixes of the artifact bucket: scripts of spaces, and Slurm's commands from the controller."""


class StudioStack(Stack):
    """Studio's domain and spaces, which outlive clusters. Clusters refer to this stack, never the reverse."""

    partitions: StudioPartitions | None
    """Queues that the cluster answers; None where all spaces share one partition."""
    login_secret: secretsmanager.Secret | None
    """Secret for spaces that are login nodes, which the controller writes; None without such spaces."""

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
        self._cluster, self._storage = cluster, storage
        key = storage.key
        log = log_group(self, "FunctionLog", key=key)
        self.login_secret = self._login_secret(studio)
        tools = self._tools()
        settings = self._space_settings(studio, tools)
        files = Construct(self, "Files")
        upload = HashedUpload(
            files,
            "Scripts",
            artifact_bucket=storage.artifact_bucket,
            key=key,
            log=log,
            prefix=PREFIX,
            folder=SCRIPTS,
            deployment_files={"settings.json": json.dumps(settings, indent=2, sort_keys=True) + "\n"},
        )
        upload.point_to_current(files)
        self._bucket_arn = f"arn:{self.partition}:s3:::{upload.bucket_name}"
        scripts = self._common_statements(tools)
        role = studio_role(
            self,
            "Role",
            description=f"Spaces of SageMaker Studio beside HyperPod cluster {cluster.name}",
            key=key,
            more=scripts,
        )
        self.roles: list[iam.Role] = [role]
        """Roles of all spaces."""
        group = studio_security_group(
            self, "SecurityGroup", cluster=cluster, vpc=network.vpc, members=network.security_group
        )
        domain = StudioDomain(
            self,
            cluster=cluster,
            studio=studio,
            network=network,
            security_group_id=group.security_group_id,
            file_system_id=storage.lustre.file_system_id,
            current_s3_uri=upload.current_s3_uri,
            role=role,
            key=key,
        )
        domain.resource.node.add_dependency(files, group)
        domain_id = domain.resource.attr_domain_id
        self.partitions = None
        if studio.partitions == "per_profile":
            self.partitions = StudioPartitions(
                self,
                domain_id=domain_id,
                file_system_id=storage.lustre.file_system_id,
                removal=studio.partition_removal,
                uids=partition_uids(cluster),
                key=key,
                log=log,
                topic_arn=storage.alerts.topic.topic_arn if storage.alerts else None,
            )
        for profile in studio.profiles:
            own = self._own_statements(profile)
            # A profile without statements of its own has the common role.
            profile_role = role
            if own:
                profile_role = studio_role(
                    self,
                    f"Role-{profile.name}",
                    description=f"Spaces of {profile.name} beside HyperPod cluster {cluster.name}",
                    key=key,
                    more=[*scripts, *own],
                )
                self.roles.append(profile_role)
            # Its settings are the domain's but for the role.
            made = sagemaker.CfnUserProfile(
                domain,
                f"Profile-{profile.name}",
                domain_id=domain_id,
                user_profile_name=profile.name,
                single_sign_on_user_identifier="UserName" if profile.sign_in_name else None,
                single_sign_on_user_value=profile.sign_in_name,
                user_settings={"executionRole": profile_role.role_arn},
            )
            if self.partitions:
                # The rule for its event must exist before it.
                made.node.add_dependency(self.partitions)
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
                    "PublishKeyOfSlurm", ["secretsmanager:PutSecretValue"], [self.login_secret.secret_arn]
                ),
            ]
            if self._storage.key and not self.partitions:
                key_arn = self._storage.key.key_arn
                statements.append(Statement("EncryptForStudio", ["kms:GenerateDataKey"], [key_arn]))
        return statements

    def for_controller(self) -> dict[str, str | None]:
        """Return the sources of requests and the destinations of published files."""
        partitions, secret = self.partitions, self.login_secret
        return {
            "requests_url": partitions.requests.queue_url if partitions else None,
            "acknowledgements_url": partitions.acknowledgements.queue_url if partitions else None,
            "login_secret": secret.secret_arn if secret else None,
        }

    def _login_secret(self, studio: Studio) -> secretsmanager.Secret | None:
        if not _login_profiles(studio):
            return None
        secret = secretsmanager.Secret(
            self,
            "LoginSecret",
            description=f"Slurm of HyperPod cluster {self._cluster.name}, for login spaces of Studio",
            encryption_key=self._storage.key,
            removal_policy=RemovalPolicy.DESTROY,
        )
        reason = "munge's key is the cluster's, which makes it; the controller writes what changes"
        acknowledge(secret, {"AwsSolutions-SMG4": reason})
        return secret

    def _tools(self) -> s3.Location | None:
        """Kubectl and helm, as the CDK's own layer has them, for EKS."""
        if not isinstance(self._cluster, EksCluster):
            return None
        layer = KubectlV34Layer(self, "Tools").node.default_child
        assert isinstance(layer, lambda_.CfnLayerVersion)
        content = layer.content
        assert isinstance(content, lambda_.CfnLayerVersion.ContentProperty)
        return s3.Location(bucket_name=content.s3_bucket, object_key=content.s3_key)

    def _space_settings(self, studio: Studio, tools: s3.Location | None) -> dict[str, Any]:
        cluster, storage = self._cluster, self._storage
        common = {
            "scheduler": cluster.scheduler,
            "cluster_name": cluster.name,
            "region": cluster.region,
            "file_system_id": storage.lustre.file_system_id,
            "lustre_mount_path": cluster.storage.lustre.mount_path,
            "partitions": studio.partitions,
            "mlflow_tracking_uri": storage.mlflow.arn if storage.mlflow else None,
        }
        if isinstance(cluster, EksCluster):
            assert tools
            uri = f"s3://{tools.bucket_name}/{tools.object_key}"
            return {**common, "tools": uri, "namespaces": job_namespaces(cluster)}
        logins = {profile.name for profile in _login_profiles(studio)}
        secret = self.login_secret.secret_arn if self.login_secret else None
        [controller] = [group.name for group in cluster.instance_groups if group.role == "controller"]
        return {
            **common,
            "controller_group": controller,
            "profiles": {
                name: {
                    **asdict(user),
                    "document": session_document_name(cluster, name),
                    "login_secret": secret if name in logins else None,
                }
                for name, user in cluster_users(cluster).items()
            },
        }

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
                why="each version lies below a hash of its own",
            ),
        ]
        if self._storage.mlflow:
            statements += [self._storage.mlflow.to_log_runs, *self._storage.mlflow.to_look_at_runs]
        if isinstance(cluster, EksCluster):
            assert tools
            arn = f"arn:{self.partition}:eks:{self.region}:{self.account}:cluster/{cluster.name}"
            object_arn = f"arn:{self.partition}:s3:::{tools.bucket_name}/{tools.object_key}"
            statements += [
                Statement("FindCluster", ["eks:DescribeCluster"], [arn]),
                Statement("ReadTools", ["s3:GetObject"], [object_arn]),
            ]
        return statements

    def _own_statements(self, profile: StudioProfile) -> list[Statement]:
        """Return the permissions of one profile's spaces: to act as its user on the cluster."""
        user = cluster_users(self._cluster).get(profile.name)
        if not user:
            return []
        assert isinstance(profile, SlurmStudioProfile)
        if profile.login_space:
            assert self.login_secret
            client = f"{self._bucket_arn}/{CLIENT_PREFIX}/*"
            return [
                Statement("ReadSlurm", ["s3:GetObject"], [client], why="each version is named by its hash"),
                Statement(
                    "ReadKeyOfSlurm", ["secretsmanager:GetSecretValue"], [self.login_secret.secret_arn]
                ),
            ]
        return self._submit(profile.name, user.user)

    def _submit(self, profile: str, user: str) -> list[Statement]:
        """Sessions with the controller that can run nothing but what the person's document says."""
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
                "the service makes up the cluster's id; the condition names the cluster",
            ),
            Statement("SubmitJobs", ["ssm:StartSession"], [f"{sessions}:document/{document.ref}"]),
            Statement(
                "SubmitJobsToNodes",
                ["ssm:StartSession"],
                [clusters],
                # Otherwise a session needs no document and is a shell as root.
                {"Bool": {"ssm:SessionDocumentAccessCheck": "true"}},
                "the service makes up the cluster's id; the document finds its program on no other",
            ),
            Statement(
                "EndSessions",
                ["ssm:TerminateSession"],
                [f"{sessions}:session/${{aws:userid}}-*"],
                why="sessions are named after who has opened them",
            ),
            Statement(
                "SpeakInSessions",
                ["ssmmessages:OpenDataChannel"],
                [f"{sessions}:session/*"],
                why="sessions of roles are named in several ways; each wants its own token",
            ),
        ]


def _login_profiles(studio: Studio) -> list[SlurmStudioProfile]:
    return [
        profile
        for profile in studio.profiles
        if isinstance(profile, SlurmStudioProfile) and profile.login_space
    ]
