"""What Studio needs of an EKS cluster: folders for its spaces, and a way in for the people in them."""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import Stack
from aws_cdk import aws_eks as eks
from aws_cdk import aws_iam as iam

from config.resource_names import job_namespaces
from config.studio_people import shared_uids
from constructs import Construct
from constructs.eks.kubernetes_cluster import KubernetesCluster
from constructs.eks.pod_role import PodRole
from constructs.studio.studio_partitions import StudioPartitions
from manifests import studio_jobs
from manifests.job_access import EDITORS
from manifests.objects import SYSTEM_NAMESPACE

EDIT_POLICY = "AmazonEKSEditPolicy"


class StudioOnKubernetes(Construct):
    """Jobs that make partitions, and access entries of spaces' roles, for jobs in the namespaces of jobs."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        kubernetes: KubernetesCluster,
        roles: Sequence[iam.IRole],
        partitions: StudioPartitions | None,
    ) -> None:
        super().__init__(scope, construct_id)
        self._bring_partitions(kubernetes, partitions)
        namespaces, partition = job_namespaces(kubernetes.settings), Stack.of(self).partition
        for number, role in enumerate(roles):
            eks.CfnAccessEntry(
                self,
                f"Access{number}",
                cluster_name=kubernetes.name,
                principal_arn=role.role_arn,
                # As of whom the file lets edit in a namespace.
                kubernetes_groups=[f"{EDITORS}:{namespace}" for namespace in namespaces],
                access_policies=[
                    eks.CfnAccessEntry.AccessPolicyProperty(
                        policy_arn=f"arn:{partition}:eks::aws:cluster-access-policy/{EDIT_POLICY}",
                        access_scope=eks.CfnAccessEntry.AccessScopeProperty(
                            type="namespace", namespaces=namespaces
                        ),
                    )
                ],
            )

    def _bring_partitions(self, kubernetes: KubernetesCluster, partitions: StudioPartitions | None) -> None:
        settings = kubernetes.settings
        objects = [studio_jobs.program(), studio_jobs.service_account()]
        program = kubernetes.manifest(self, "Program", objects)
        if partitions is None:
            shared = studio_jobs.shared_job(shared_uids(settings))
            work = kubernetes.manifest(self, "Shared", [shared])
        else:
            role = PodRole(
                self,
                "Role",
                kubernetes=kubernetes,
                namespace=SYSTEM_NAMESPACE,
                service_account=studio_jobs.NAME,
                statements=partitions.worker_statements(),
            )
            job = studio_jobs.queue_job(
                partitions.requests.queue_url, partitions.acknowledgements.queue_url, settings.region
            )
            work = kubernetes.manifest(self, "Queued", [job])
            work.node.add_dependency(role)
        work.node.add_dependency(program)
