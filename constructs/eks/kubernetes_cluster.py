"""Control plane of EKS."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

from aws_cdk import Annotations, NestedStack, RemovalPolicy, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks as eks_v1
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from aws_cdk.lambda_layer_kubectl_v34 import KubectlV34Layer

from config.eks_cluster import EksCluster
from config.facts.addons import addon_version
from config.kubernetes import ACCESS_POLICIES, AccessEntry, LogKind
from config.proxy_environment import proxy_environment
from config.resource_names import ResourceNames
from config.stack_division import division
from constructs import Construct, IDependable
from constructs.policy.existing_role import existing_role
from constructs.policy.findings import acknowledge, acknowledge_kubectl
from constructs.storage.log_group import log_group
from constructs.vpc.network import Network
from manifests.job_access import job_groups
from manifests.public_images import takes_copies, with_copies

INSTALLER_LOG_DAYS = 30
"""Days for which the installer's log is kept."""
_LOG_TYPES: dict[LogKind, eks.ClusterLoggingTypes] = {
    "api": eks.ClusterLoggingTypes.API,
    "audit": eks.ClusterLoggingTypes.AUDIT,
    "authenticator": eks.ClusterLoggingTypes.AUTHENTICATOR,
    "controllerManager": eks.ClusterLoggingTypes.CONTROLLER_MANAGER,
    "scheduler": eks.ClusterLoggingTypes.SCHEDULER,
}


class KubernetesCluster(Construct):
    """Control plane without nodes and add-ons, its access entries, and the installer of charts.

    Nodes, control plane and installer share the cluster's security group: HyperPod's nodes are not in the
    group that EKS creates, and the interface endpoints admit no other group.

    An existing control plane keeps all that it has. It receives access entries, and objects and pod roles of
    this HyperPod cluster.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: EksCluster,
        network: Network,
        key: kms.IKey | None,
        image_repository: str,
    ) -> None:
        """Create the control plane.

        Args:
            scope: parent construct.
            construct_id: id within the parent.
            settings: cluster file.
            network: network of control plane and installer.
            key: key of secrets and logs; None leaves their encryption to the services.
            image_repository: address of the repository that has copies of images, if nodes pull them.
        """
        super().__init__(scope, construct_id)
        self.settings = settings
        self.key = key
        self.image_repository = image_repository
        existing = settings.kubernetes.existing
        self.is_existing = existing is not None
        """Whether the control plane, its add-ons and charts belong to others."""
        # The library's type annotations do not declare that a cluster implements the interface.
        cluster = (
            self._import(existing, network)
            if existing
            else cast(eks.ICluster, self._create(network))
        )
        self.name = cluster.cluster_name
        self.arn = cluster.cluster_arn
        self.cluster = cluster
        self.installer_access = [self._installer_entry(cluster)] if existing else []
        """Access entry of the installer in an existing cluster. The library creates that of a new one."""
        parts = division(settings)
        for place, entry in parts.entries.items():
            self.access(self, f"Access{place}", entry)
        for number, entries in parts.entry_stacks.items():
            stack = NestedStack(self, f"Access-{number}", suppress_template_indentation=True)
            for entry in entries:
                self.access(stack, entry.principal_arn, entry)
        # The library would keep the installer's logs after the stack is deleted, and under another key.
        parent = self if existing else cast(Construct, cluster)
        installer = cast(Construct, parent.node.find_child("KubectlProvider"))
        for child in installer.node.find_all():
            if isinstance(child, logs.CfnLogGroup):
                child.retention_in_days = INSTALLER_LOG_DAYS
                child.kms_key_id = key.key_arn if key else None
                child.apply_removal_policy(RemovalPolicy.DESTROY)
        acknowledge_kubectl(installer)

    def _create(self, network: Network) -> eks.Cluster:
        settings = self.settings
        key = self.key
        kubernetes = settings.kubernetes
        names = ResourceNames(settings)
        if kubernetes.endpoint == "private":
            endpoint_access = eks.EndpointAccess.PRIVATE
        else:
            public_and_private = eks.EndpointAccess.PUBLIC_AND_PRIVATE
            endpoint_access = public_and_private.only_from(*kubernetes.public_access_cidrs)
        # Created before the cluster, because EKS would create it without a key or a retention period.
        log = log_group(
            self,
            "Log",
            key=key,
            retention_days=kubernetes.control_plane_log_days,
            log_group_name=names.control_plane_log_group,
        )
        role = existing_role(self, "Role", role=kubernetes.role) if kubernetes.role else None
        cluster = eks.Cluster(
            self,
            "Cluster",
            role=role,
            cluster_name=names.kubernetes_cluster,
            version=eks.KubernetesVersion.of(kubernetes.version),
            vpc=network.vpc,
            vpc_subnets=[ec2.SubnetSelection(subnets=network.control_plane_subnets)],
            security_group=network.security_group,
            endpoint_access=endpoint_access,
            secrets_encryption_key=key,
            cluster_logging=[_LOG_TYPES[kind] for kind in kubernetes.control_plane_logs],
            # The deployer does not become an administrator; the cluster file names the administrators.
            bootstrap_cluster_creator_admin_permissions=False,
            bootstrap_self_managed_addons=False,
            default_capacity_type=eks.DefaultCapacityType.NODEGROUP,
            default_capacity=0,
            kubectl_provider_options=eks.KubectlProviderOptions(
                kubectl_layer=self._kubectl_layer(),
                security_groups=[network.security_group],
                environment=self._installer_environment,
            ),
        )
        resource = cluster.node.default_child
        assert resource is not None
        resource.node.add_dependency(log)
        if role is None:
            _limit_to_own_cluster(cluster.role, names.kubernetes_cluster)
        # The warning is about tags for load balancers, which the cluster does not have.
        Annotations.of(cluster).acknowledge_warning("@aws-cdk/aws-eks:clusterMustManuallyTagSubnet")
        _acknowledge(cluster, settings)
        return cluster

    def _import(self, name: str, network: Network) -> eks.ICluster:
        """Refer to the existing cluster, with an installer in the nodes' subnets and security groups."""
        groups = [
            ec2.SecurityGroup.from_security_group_id(
                self, f"SecurityGroup{index}", group_id, mutable=False
            )
            for index, group_id in enumerate(network.security_group_ids)
        ]
        imported = partial(
            eks.Cluster.from_cluster_attributes, self, cluster_name=name, vpc=network.vpc
        )
        installer = eks.KubectlProvider(
            self,
            "KubectlProvider",
            # The library requires a cluster for an installer, and an installer for a cluster.
            cluster=imported(id="ClusterOfInstaller"),
            kubectl_layer=self._kubectl_layer(),
            environment=self._installer_environment,
            private_subnets=network.private_subnets,
            security_groups=groups,
        )
        return imported(id="Cluster", kubectl_provider=installer)

    def _installer_entry(self, cluster: eks.ICluster) -> eks_v1.CfnAccessEntry:
        provider = cluster.kubectl_provider
        assert provider is not None, "it was created"
        assert provider.role is not None, "the library creates one"
        entry = AccessEntry.model_construct(
            principal_arn=provider.role.role_arn, level="cluster_admin", namespaces=[]
        )
        return self.access(self, "InstallerAccess", entry)

    @property
    def _installer_environment(self) -> dict[str, str] | None:
        return proxy_environment(self.settings) or None

    def _kubectl_layer(self) -> KubectlV34Layer:
        """Return the programs. kubectl 1.34 supports control planes from 1.33 to 1.35."""
        return KubectlV34Layer(self, "KubectlLayer")

    def access(
        self, scope: Construct, construct_id: str, entry: AccessEntry
    ) -> eks_v1.CfnAccessEntry:
        """Create an access entry, of level 1 because the library's own access entries have no groups."""
        name = ACCESS_POLICIES[entry.level]
        assert name is not None, "only entries with access are created"
        policy = f"arn:{Stack.of(self).partition}:eks::aws:cluster-access-policy/{name}"
        return eks_v1.CfnAccessEntry(
            scope,
            construct_id,
            cluster_name=self.name,
            principal_arn=entry.principal_arn,
            kubernetes_groups=job_groups(entry) or None,
            access_policies=[
                eks_v1.CfnAccessEntry.AccessPolicyProperty(
                    policy_arn=policy,
                    access_scope={
                        "type": "namespace" if entry.namespaces else "cluster",
                        "namespaces": entry.namespaces or None,
                    },
                )
            ],
        )

    def addon(
        self,
        scope: Construct,
        construct_id: str,
        name: str,
        configuration: Mapping[str, Any] | None = None,
        *,
        after: Sequence[IDependable] = (),
    ) -> Construct:
        """Install an EKS add-on in the version that `config.facts.addons` lists for this Kubernetes version.

        The construct is of level 1, because the library's own add-ons cannot resolve conflicts. Conflicts are
        overwritten, because the stack is the source of truth. An existing cluster keeps its own add-ons,
        which `make preflight` checks; the construct then has no resources.
        """
        if self.is_existing:
            return Construct(scope, construct_id)
        addon = eks_v1.CfnAddon(
            scope,
            construct_id,
            cluster_name=self.name,
            addon_name=name,
            addon_version=addon_version(self.settings.kubernetes.version, name),
            resolve_conflicts="OVERWRITE",
            configuration_values=configuration_text(configuration) if configuration else None,
        )
        addon.node.add_dependency(*after)
        return addon

    def manifest(
        self,
        scope: Construct,
        construct_id: str,
        objects: Sequence[Mapping[str, Any]],
        *,
        after: Sequence[IDependable] = (),
        removal: RemovalPolicy = RemovalPolicy.DESTROY,
    ) -> eks.KubernetesManifest:
        """Create Kubernetes objects in their order, by one resource.

        Existing objects are taken over. Retained objects are deleted with the EKS cluster, unless it existed
        before. Images are copies from the cluster's repository, if the cluster file says so.
        """
        if takes_copies(self.settings):
            objects = with_copies(objects, self.image_repository)
        manifest = eks.KubernetesManifest(
            scope,
            construct_id,
            cluster=self.cluster,
            manifest=[*objects],
            overwrite=True,
            removal_policy=removal,
        )
        manifest.node.add_dependency(*self.installer_access, *after)
        return manifest


def configuration_text(configuration: Mapping[str, Any]) -> str:
    """Return an add-on's configuration values.

    Tokens contain no quotes or backslashes, so JSON does not change them.
    """
    return json.dumps(configuration, sort_keys=True, separators=(",", ":"))


def _limit_to_own_cluster(role: iam.IRole, cluster_name: str) -> None:
    """Let EKS assume the control plane's role for this cluster alone.

    The library's own role has no conditions. Another role would replace the cluster, so its trust policy is
    changed (EKS user guide, "Cross-service confused deputy prevention").
    """
    stack = Stack.of(role)
    resource = role.node.default_child
    assert isinstance(resource, iam.CfnRole)
    arn = f"arn:{stack.partition}:eks:{stack.region}:{stack.account}:cluster/{cluster_name}"
    resource.add_property_override(
        "AssumeRolePolicyDocument.Statement.0.Condition",
        {
            "StringEquals": {"aws:SourceAccount": stack.account},
            "ArnEquals": {"aws:SourceArn": arn},
        },
    )


def _acknowledge(cluster: eks.Cluster, settings: EksCluster) -> None:
    policy = "arn:<AWS::Partition>:iam::aws:policy/AmazonEKSClusterPolicy"
    findings = {
        f"AwsSolutions-IAM4[Policy::{policy}]": "EKS requires this policy for its control plane",
    }
    if settings.kubernetes.endpoint == "public_and_private":
        findings["AwsSolutions-EKS1"] = "reachable only from the ranges in the cluster file"
    if len(settings.kubernetes.control_plane_logs) < len(_LOG_TYPES):
        findings["AwsSolutions-EKS2"] = "the cluster file chooses the logs"
    acknowledge(cluster, findings)
