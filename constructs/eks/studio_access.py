"""Access of SageMaker Studio's spaces to the EKS cluster, and jobs for their folders of Lustre."""

from collections.abc import Sequence

from aws_cdk import aws_iam as iam

from config.kubernetes import AccessEntry
from config.resource_names import job_namespaces
from config.studio_people import shared_uids
from constructs import Construct, IDependable
from constructs.eks.kubernetes_cluster import KubernetesCluster
from constructs.eks.pod_role import PodRole
from constructs.studio.studio_partitions import StudioPartitions
from manifests import lustre
from manifests.objects import SYSTEM_NAMESPACE


class StudioAccess(Construct):
    """Access entries of the spaces' roles, and the job that creates folders of Lustre."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        kubernetes: KubernetesCluster,
        roles: Sequence[iam.IRole],
        partitions: StudioPartitions | None,
    ) -> None:
        """Create the access entries and the job.

        Args:
            scope: parent construct.
            construct_id: id within the parent.
            kubernetes: cluster of the jobs.
            roles: roles of the spaces.
            partitions: queues of requests for folders, or None if all spaces share one folder.
        """
        super().__init__(scope, construct_id)
        settings = kubernetes.settings
        for number, role in enumerate(roles):
            # The access of an editor of the namespaces of jobs. The entry is not validated like one of the
            # cluster file, because the ARN exists only at deployment.
            entry = AccessEntry.model_construct(
                principal_arn=role.role_arn, level="edit", namespaces=job_namespaces(settings)
            )
            # Deployed clusters have these ids. Another id would replace the entry, of which EKS accepts one
            # per principal.
            kubernetes.access(self, f"Access{number}", entry)
        program_objects = [lustre.studio_program(), lustre.studio_service_account()]
        program = kubernetes.manifest(self, "Program", program_objects)
        after: list[IDependable] = [program]
        if partitions:
            pod_role = PodRole(
                self,
                "Role",
                kubernetes=kubernetes,
                namespaces=[SYSTEM_NAMESPACE],
                service_account=lustre.STUDIO_JOBS,
                statements=partitions.worker_statements(),
            )
            after.append(pod_role)
            job = lustre.studio_queue_job(
                requests_url=partitions.requests.queue_url,
                acknowledgements_url=partitions.acknowledgements.queue_url,
                region=settings.region,
            )
            kubernetes.manifest(self, "Queued", [job], after=after)
        else:
            job = lustre.studio_shared_job(shared_uids(settings))
            kubernetes.manifest(self, "Shared", [job], after=after)
