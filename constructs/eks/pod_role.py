"""Roles of pods."""

from collections.abc import Sequence

from aws_cdk import Stack
from aws_cdk import aws_eks as eks_v1
from aws_cdk import aws_iam as iam

from constructs import Construct
from constructs.eks.kubernetes_cluster import KubernetesCluster
from constructs.policy.statement_role import Statement, statement_role


class PodRole(Construct):
    """Role of the pods of a service account, with its associations (EKS Pod Identity).

    Pods read their credentials when they start, so resources that create pods must depend on this construct.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        kubernetes: KubernetesCluster,
        namespaces: Sequence[str],
        service_account: str,
        statements: Sequence[Statement],
    ) -> None:
        """Create the role, and one association per namespace.

        Args:
            scope: parent construct.
            construct_id: id within the parent.
            kubernetes: cluster of the pods.
            namespaces: namespaces that have the service account.
            service_account: name of the service account in each namespace.
            statements: permissions of the pods.
        """
        super().__init__(scope, construct_id)
        # The condition names the cluster, so that pods of no other cluster can assume the role.
        pods = iam.ServicePrincipal(
            "pods.eks.amazonaws.com",
            conditions={
                "StringEquals": {"aws:SourceAccount": Stack.of(self).account},
                "ArnEquals": {"aws:SourceArn": kubernetes.arn},
            },
        )
        self._kubernetes = kubernetes
        self._service_account = service_account
        self._role = statement_role(
            self,
            "Role",
            description=f"Pods of {namespaces[0]}/{service_account}",
            assumed_by=iam.SessionTagsPrincipal(pods),
            policy_name="Pods",
            statements=statements,
        )
        for number, namespace in enumerate(namespaces):
            # Deployed clusters have these ids. Another id would replace the association, of which EKS accepts
            # one per service account.
            self.associate(self, f"Association{number or ''}", namespace)

    def associate(self, scope: Construct, construct_id: str, namespace: str) -> None:
        """Give the role to the pods of the service account in another namespace."""
        eks_v1.CfnPodIdentityAssociation(
            scope,
            construct_id,
            cluster_name=self._kubernetes.name,
            namespace=namespace,
            service_account=self._service_account,
            role_arn=self._role.role_arn,
        )
