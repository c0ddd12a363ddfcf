"""Parts of an EKS cluster for Studio: folders for spaces, and access for their users."""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import aws_iam as iam

from config.kubernetes import AccessEntry
from config.resource_names import job_namespaces
from config.studio_people import shared_uids
from constructs import Construct, IDependable
from constructs.eks.kubernetes_cluster import KubernetesCluster
from constructs.studio.studio_partitions import StudioPartitions
from manifests import studio_jobs
from manifests.objects import SYSTEM_NAMESPACE


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
        settings = kubernetes.settings
        namespaces = job_namespaces(settings)
        for number, role in enumerate(roles):
            # As for those whom the file lets edit in a namespace; the ARN is known at the deployment.
            entry = AccessEntry.model_construct(
                principal_arn=role.role_arn, level="edit", namespaces=namespaces
            )
            kubernetes.access(self, f"Access{number}", entry)

        objects = [studio_jobs.program(), studio_jobs.service_account()]
        after: list[IDependable] = [kubernetes.manifest(self, "Program", objects)]
        if partitions is None:
            kubernetes.manifest(self, "Shared", [studio_jobs.shared_job(shared_uids(settings))], after=after)
            return
        statements = partitions.worker_statements()
        after.append(kubernetes.pod_role(self, "Role", [SYSTEM_NAMESPACE], studio_jobs.NAME, statements))
        queues = partitions.requests.queue_url, partitions.acknowledgements.queue_url
        kubernetes.manifest(self, "Queued", [studio_jobs.queue_job(*queues, settings.region)], after=after)
