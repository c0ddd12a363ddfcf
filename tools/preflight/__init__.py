"""Read-only checks of an AWS account before a deployment.

``run_checks`` runs all checks. Each check is a function of the account and the cluster that yields findings.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from config.cluster import Cluster
from config.cluster_kinds import AnyCluster
from config.eks_cluster import EksCluster
from tools.aws_session import explain, has_expired
from tools.preflight import (
    account,
    addons,
    capacity,
    chart_types,
    database,
    existing_access,
    existing_storage,
    instance_quotas,
    kubernetes_access,
    kubernetes_version,
    machine_images,
    mirrored_downloads,
    names,
    network,
    observability,
    planned,
    pods,
    sagemaker_services,
    stack_quotas,
    stacks,
    storage_key,
)
from tools.preflight.existing_eks import access as existing_entries
from tools.preflight.existing_eks import contents, control_plane
from tools.preflight.finding import Finding, Subject
from tools.preflight.planned import Planned
from tools.preflight.read_only_aws import PermissionMissing, ReadOnlyAws

Check = Callable[[ReadOnlyAws, Cluster], Iterator[Finding]]
OwnCheck = Callable[[ReadOnlyAws, Any], Iterator[Finding]]
"""Check for clusters of one scheduler."""

CHECKS: dict[str, Check] = {
    "region": account.check_region,
    "CDK bootstrap": account.check_bootstrap,
    "stacks": stacks.check_stacks,
    "quota of roles": account.check_roles,
    "quotas of instance types": instance_quotas.check_instance_types,
    "quotas of instances in all": instance_quotas.check_instance_totals,
    "quota of volume size": instance_quotas.check_volume_size,
    "quotas of file systems": stack_quotas.check_storage_quotas,
    "quotas of the network": stack_quotas.check_network_quotas,
    "existing storage": existing_storage.check_existing_storage,
    "zones": capacity.check_zones,
    "zones of endpoints": network.check_endpoint_zones,
    "offers of instance types": capacity.check_offers,
    "training plans": capacity.check_training_plans,
    "existing VPC": network.check_existing_vpc,
    "existing routes": network.check_routes,
    "existing endpoints": network.check_endpoints,
    "existing security groups": existing_access.check_security_groups,
    "existing roles": existing_access.check_roles,
    "name of the cluster": names.check_cluster_name,
    "name of the bucket": names.check_bucket,
    "name of the image repository": names.check_repository,
    "name of the KMS alias": names.check_key_alias,
    "names of log groups": names.check_log_groups,
    "KMS key": storage_key.check_key,
    "images": machine_images.check_images,
    "rollback alarms": machine_images.check_rollback_alarms,
    "base image of Trainium": machine_images.check_neuron_base,
    "quota of metrics workspaces": observability.check_metrics_quota,
    "quota of Grafana workspaces": observability.check_grafana_quota,
    "IAM Identity Center": observability.check_identity_center,
    "SAML identity provider": observability.check_saml,
    "version of Grafana": observability.check_grafana_version,
    "room for MLflow": sagemaker_services.check_mlflow,
    "quotas of Studio": sagemaker_services.check_domains,
    "quota of Studio's spaces": sagemaker_services.check_spaces,
    "sign-in of Studio": sagemaker_services.check_sign_in,
    "trail for Studio": sagemaker_services.check_trail,
}
"""Checks in the order of the report. Each runs independently of the others' findings."""

_SLURM_CHECKS: dict[str, OwnCheck] = {
    "name of the shell document": names.check_document,
    "quotas of the database": stack_quotas.check_database_quotas,
    "class of the database": database.check_database_class,
    "existing database": database.check_existing_database,
    "copies of downloads": mirrored_downloads.check_mirror,
}


def _slurm_checks(plan: Planned) -> dict[str, OwnCheck]:
    return {**_SLURM_CHECKS, "synthesis": partial(planned.check_synthesis, plan)}


def _eks_checks(plan: Planned) -> dict[str, OwnCheck]:
    return {
        "quotas for Karpenter": instance_quotas.check_karpenter,
        "quota of EKS clusters": stack_quotas.check_kubernetes_quota,
        "existing EKS cluster": control_plane.check_control_plane,
        "name of the EKS cluster": names.check_kubernetes_cluster,
        "Kubernetes version": kubernetes_version.check_version,
        "access to Kubernetes": kubernetes_access.check_access,
        "existing access entries": existing_entries.check_entries,
        "pods": pods.check_pods,
        "synthesis": partial(planned.check_synthesis, plan),
        "copies of downloads": mirrored_downloads.check_images,
        "HyperPod's chart": chart_types.check_chart,
        "names of the cluster's log groups": partial(names.check_planned_log_groups, plan),
        "add-ons": partial(addons.check_addons, plan),
        "existing roles of pods": partial(existing_entries.check_pod_roles, plan),
        "contents of the existing EKS cluster": partial(contents.check_contents, plan),
    }


def run_checks(aws: ReadOnlyAws, cluster: AnyCluster) -> Iterator[Finding]:
    """Yield findings as they appear; only missing or expired credentials end the run early."""
    credentials = list(account.check_credentials(aws, cluster))
    yield from credentials
    if credentials[0].level == "FAIL":
        return
    checks_of_scheduler = _eks_checks if isinstance(cluster, EksCluster) else _slurm_checks
    own = checks_of_scheduler(Planned(cluster))
    for title, check in {**CHECKS, **own}.items():
        try:
            yield from check(aws, cluster)
        except PermissionMissing as missing:
            yield Subject(title).unknown(
                "", f"add {missing.action} to your permissions, and run it again"
            )
        except (BotoCoreError, ClientError) as error:
            if has_expired(error):
                yield account.CREDENTIALS.fail(
                    explain(error), "sign in and run it again; no further checks were made"
                )
                return
            yield Subject(title).unknown(explain(error), "run it again, or check it manually")
