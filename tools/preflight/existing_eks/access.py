"""Checks that access entries and pod roles of the stack are free in an existing EKS cluster."""

from collections.abc import Iterator

from config.eks_cluster import EksCluster
from tools.preflight.existing_eks.control_plane import find_existing, subject_of
from tools.preflight.finding import Finding
from tools.preflight.planned import Planned
from tools.preflight.read_only_aws import ReadOnlyAws
from tools.preflight.stacks import is_deployed


def check_entries(aws: ReadOnlyAws, cluster: EksCluster) -> Iterator[Finding]:
    """Check that no role or user of ``kubernetes.access`` has an entry: EKS accepts one for each."""
    found = find_existing(aws, cluster)
    if found is None or is_deployed(aws, cluster, "hyperpod"):
        return
    taken = set(aws.items("eks", "list_access_entries", "accessEntries", clusterName=found["name"]))
    for index, entry in enumerate(cluster.kubernetes.access):
        if entry.has_access and entry.principal_arn in taken:
            yield subject_of(cluster).fail(
                f"has an access entry of {entry.principal_arn} already, and EKS accepts one",
                f"remove kubernetes.access[{index}]; the entry stays as it is",
            )


def check_pod_roles(planned: Planned, aws: ReadOnlyAws, cluster: EksCluster) -> Iterator[Finding]:
    """Check that no service account of the stack's pod roles has a role: EKS accepts one for each."""
    found = find_existing(aws, cluster)
    if found is None or is_deployed(aws, cluster, "hyperpod"):
        return
    associations = {
        f"{item['namespace']}/{item['serviceAccount']}": item["associationId"]
        for item in aws.items(
            "eks", "list_pod_identity_associations", "associations", clusterName=found["name"]
        )
    }
    for account in planned.service_accounts:
        if account in associations:
            yield subject_of(cluster).fail(
                f"gives service account {account} a role already, and the stack gives it the role of this "
                "HyperPod cluster",
                "if its owner agrees, `aws eks delete-pod-identity-association --cluster-name "
                f"{found['name']} --association-id {associations[account]}`",
            )
