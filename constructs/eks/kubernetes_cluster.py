"""Control plane of EKS."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from aws_cdk import Annotations, RemovalPolicy, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks as eks_v1
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from aws_cdk.lambda_layer_kubectl_v34 import KubectlV34Layer

from config.eks_cluster import EksCluster
from config.facts.addons import ADDON_VERSIONS
from config.kubernetes import AccessEntry, LogKind
from config.resource_names import ResourceNames
from constructs import Construct, IDependable
from constructs.policy.findings import acknowledge, acknowledge_kubectl
from constructs.policy.statement_role import Statement, statement_role
from constructs.storage.log_group import log_group
from constructs.vpc.network import Network
from manifests.job_access import job_groups

_LOG_TYPES: dict[LogKind, eks.ClusterLoggingTypes] = {
    "api": eks.ClusterLoggingTypes.API,
    "audit": eks.ClusterLoggingTypes.AUDIT,
    "authenticator": eks.ClusterLoggingTypes.AUTHENTICATOR,
    "controllerManager": eks.ClusterLoggingTypes.CONTROLLER_MANAGER,
    "scheduler": eks.ClusterLoggingTypes.SCHEDULER,
}
_POLICIES = {
    "cluster_admin": "AmazonEKSClusterAdminPolicy",
    "admin": "AmazonEKSAdminPolicy",
    "edit": "AmazonEKSEditPolicy",
    "view": "AmazonEKSViewPolicy",
}


class KubernetesCluster(Construct):
    """Control plane without nodes and add-ons, its access entries, and the installer of charts.

    Nodes, control plane and installer share the cluster's one security group: HyperPod's nodes are not in the
    one that EKS makes, and the interface endpoints admit no other.
    """

    def __init__(
        self, scope: Construct, *, settings: EksCluster, network: Network, key: kms.IKey | None
    ) -> None:
        super().__init__(scope, "Kubernetes")
        self.settings, self.key, kubernetes = settings, key, settings.kubernetes
        # Before EKS writes to it, because EKS would create it without a key and without an end.
        log = log_group(
            self,
            "Log",
            key=key,
            retention_days=kubernetes.control_plane_log_days,
            log_group_name=ResourceNames(settings).control_plane_log_group,
        )
        cluster = eks.Cluster(
            self,
            "Cluster",
            cluster_name=ResourceNames(settings).kubernetes_cluster,
            version=eks.KubernetesVersion.of(kubernetes.version),
            vpc=network.vpc,
            vpc_subnets=[ec2.SubnetSelection(subnets=network.control_plane_subnets)],
            security_group=network.security_group,
            endpoint_access=(
                eks.EndpointAccess.PRIVATE
                if kubernetes.endpoint == "private"
                else eks.EndpointAccess.PUBLIC_AND_PRIVATE.only_from(*kubernetes.public_access_cidrs)
            ),
            secrets_encryption_key=key,
            cluster_logging=[_LOG_TYPES[kind] for kind in kubernetes.control_plane_logs],
            # The deployer does not become an administrator; the cluster file names the administrators.
            bootstrap_cluster_creator_admin_permissions=False,
            bootstrap_self_managed_addons=False,
            default_capacity_type=eks.DefaultCapacityType.NODEGROUP,
            default_capacity=0,
            kubectl_provider_options=eks.KubectlProviderOptions(
                # kubectl 1.34 talks to control planes of 1.33 to 1.35.
                kubectl_layer=KubectlV34Layer(self, "KubectlLayer"),
                security_groups=[network.security_group],
            ),
        )
        resource = cluster.node.default_child
        assert resource is not None
        resource.node.add_dependency(log)
        # The tags would be for load balancers, and there are none.
        Annotations.of(cluster).acknowledge_warning("@aws-cdk/aws-eks:clusterMustManuallyTagSubnet")
        self.name, self.arn = cluster.cluster_name, cluster.cluster_arn
        # The library's types do not declare that a cluster implements the interface.
        self.cluster = cast(eks.ICluster, cluster)
        for index, entry in enumerate(kubernetes.access):
            self.access(self, f"Access{index}", entry)
        # The library would keep the installer's logs beyond their stack, under another key.
        for child in cluster.node.find_child("KubectlProvider").node.find_all():
            if isinstance(child, logs.CfnLogGroup):
                child.retention_in_days = 30
                child.kms_key_id = key.key_arn if key else None
                child.apply_removal_policy(RemovalPolicy.DESTROY)
        _acknowledge(cluster, settings)
        acknowledge_kubectl(cluster)

    def access(self, scope: Construct, construct_id: str, entry: AccessEntry) -> None:
        """Level 1, as the library's own access entries have no groups."""
        eks_v1.CfnAccessEntry(
            scope,
            construct_id,
            cluster_name=self.name,
            principal_arn=entry.principal_arn,
            kubernetes_groups=job_groups(entry) or None,
            access_policies=[
                eks_v1.CfnAccessEntry.AccessPolicyProperty(
                    policy_arn=(
                        f"arn:{Stack.of(self).partition}:eks::aws:cluster-access-policy/"
                        f"{_POLICIES[entry.level]}"
                    ),
                    access_scope={
                        "type": "namespace" if entry.namespaces else "cluster",
                        "namespaces": entry.namespaces or None,
                    },
                )
            ],
        )

    def pod_role(
        self,
        scope: Construct,
        construct_id: str,
        namespaces: Sequence[str],
        service_account: str,
        statements: Sequence[Statement],
    ) -> Construct:
        """Create a role, and associations by which pods of a service account have it (EKS Pod Identity).

        In each of the namespaces the account has the same name. Pods read their credentials at their start:
        what makes the pods depends on what is returned.
        """
        parent = Construct(scope, construct_id)
        # The ARN stands in a condition of the trust, so that no other cluster's pods are let in.
        pods = iam.ServicePrincipal(
            "pods.eks.amazonaws.com",
            conditions={
                "StringEquals": {"aws:SourceAccount": Stack.of(self).account},
                "ArnEquals": {"aws:SourceArn": self.arn},
            },
        )
        role = statement_role(
            parent,
            "Role",
            description=f"Pods of {namespaces[0]}/{service_account}",
            assumed_by=iam.SessionTagsPrincipal(pods),
            policy_name="Pods",
            statements=statements,
        )
        for number, namespace in enumerate(namespaces):
            eks_v1.CfnPodIdentityAssociation(
                parent,
                f"Association{number or ''}",
                cluster_name=self.name,
                namespace=namespace,
                service_account=service_account,
                role_arn=role.role_arn,
            )
        return parent

    def addon(
        self,
        scope: Construct,
        construct_id: str,
        name: str,
        configuration: Mapping[str, Any] | None = None,
        *,
        after: Sequence[IDependable] = (),
    ) -> eks_v1.CfnAddon:
        """Install an EKS add-on, of the version that `config.facts.addons` has for this Kubernetes.

        Level 1, because the library's own add-ons cannot resolve conflicts. They are always resolved for the
        add-on: the stack is who says what is installed.
        """
        addon = eks_v1.CfnAddon(
            scope,
            construct_id,
            cluster_name=self.name,
            addon_name=name,
            addon_version=ADDON_VERSIONS[self.settings.kubernetes.version][name],
            resolve_conflicts="OVERWRITE",
            configuration_values=(
                # Tokens are texts without quotes or backslashes, and so go through.
                json.dumps(configuration, sort_keys=True, separators=(",", ":")) if configuration else None
            ),
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
        """Put objects into the cluster by one resource, in their order; existing objects are taken over.

        Retained ones go with the EKS cluster.
        """
        manifest = eks.KubernetesManifest(
            scope,
            construct_id,
            cluster=self.cluster,
            manifest=[*objects],
            overwrite=True,
            removal_policy=removal,
        )
        manifest.node.add_dependency(*after)
        return manifest


def _acknowledge(cluster: eks.Cluster, settings: EksCluster) -> None:
    policy = "arn:<AWS::Partition>:iam::aws:policy/AmazonEKSClusterPolicy"
    findings = {
        f"AwsSolutions-IAM4[Policy::{policy}]": "the policy that EKS wants its control plane to have",
    }
    if settings.kubernetes.endpoint == "public_and_private":
        findings["AwsSolutions-EKS1"] = "reached from the ranges in the cluster file alone"
    if len(settings.kubernetes.control_plane_logs) < len(_LOG_TYPES):
        findings["AwsSolutions-EKS2"] = "the cluster file says which logs are worth their price"
    acknowledge(cluster, findings)
