"""The identity of pods of one service account."""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import Stack
from aws_cdk import aws_eks as eks
from aws_cdk import aws_iam as iam

from constructs import Construct
from constructs.eks.kubernetes_cluster import KubernetesCluster
from constructs.policy.statement_role import Statement, statement_role


class PodRole(Construct):
    """A role, and the association by which pods of one service account have it (EKS Pod Identity).

    Pods read their credentials at their start: what makes the pods depends on this construct.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        kubernetes: KubernetesCluster,
        namespace: str,
        service_account: str,
        statements: Sequence[Statement],
        further_namespaces: Sequence[str] = (),
    ) -> None:
        """``further_namespaces`` have a service account of the same name, for pods that may do the same."""
        super().__init__(scope, construct_id)
        # The ARN stands in a condition of the trust, so that no other cluster's pods are let in.
        pods = iam.ServicePrincipal(
            "pods.eks.amazonaws.com",
            conditions={
                "StringEquals": {"aws:SourceAccount": Stack.of(self).account},
                "ArnEquals": {"aws:SourceArn": kubernetes.arn},
            },
        )
        role = statement_role(
            self,
            "Role",
            description=f"Pods of {namespace}/{service_account}",
            assumed_by=iam.SessionTagsPrincipal(pods),
            policy_name="Pods",
            statements=statements,
        )
        for number, name in enumerate((namespace, *further_namespaces)):
            eks.CfnPodIdentityAssociation(
                self,
                f"Association{number or ''}",
                cluster_name=kubernetes.name,
                namespace=name,
                service_account=service_account,
                role_arn=role.role_arn,
            )
