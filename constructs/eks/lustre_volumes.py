"""The Lustre file system as pods see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aws_cdk import RemovalPolicy

from config.facts import addons
from config.resource_names import COMMON_NAMESPACE, POD_SECURITY, job_namespaces
from constructs import Construct, IConstruct
from constructs.eks.kubernetes_cluster import KubernetesCluster
from constructs.eks.pod_role import PodRole
from constructs.policy.statement_role import Statement
from constructs.storage.file_systems import LustreFileSystem
from manifests.lustre_volumes import (
    SYSTEM_NAMESPACE,
    LustreVolume,
    folder_job,
    persistent_volume,
    persistent_volume_claim,
    storage_class,
)

_NAMESPACE = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {"name": COMMON_NAMESPACE, "labels": POD_SECURITY},
}


class LustreVolumes(Construct):
    """FSx's driver, and a volume and a claim in every namespace of jobs; those of teams are there before.

    Volumes are the whole file system: the data under the bucket's path are everybody's, and each namespace
    has a folder of its own for what it makes.

    The objects go with the EKS cluster and not before: Kubernetes deletes no claim, and so no namespace,
    while a pod uses it, and the deletion of the stack would wait for the end of jobs until it fails.
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, kubernetes: KubernetesCluster, lustre: LustreFileSystem
    ) -> None:
        super().__init__(scope, construct_id)
        # Nothing is provisioned. With the role the controller also learns the region, which it would ask of
        # the instance metadata that pods are kept from.
        why = "FSx has no resource-level permissions for it"
        role = PodRole(
            self,
            "ControllerRole",
            kubernetes=kubernetes,
            namespace=SYSTEM_NAMESPACE,
            service_account="fsx-csi-controller-sa",
            statements=[
                Statement("DescribeFileSystems", ["fsx:DescribeFileSystems"], ["*"], why_wildcard=why)
            ],
        )
        driver = kubernetes.addon(self, "Driver", addons.LUSTRE_DRIVER)
        driver.node.add_dependency(role)

        namespaces = job_namespaces(kubernetes.settings)
        volume = LustreVolume(lustre.file_system_id, lustre.dns_name, lustre.mount_name, lustre.capacity_gib)
        places = [SYSTEM_NAMESPACE, *namespaces]
        steps: dict[str, Sequence[Mapping[str, Any]]] = {
            "Volumes": [
                *([_NAMESPACE] if COMMON_NAMESPACE in namespaces else []),
                storage_class(),
                *(persistent_volume(volume, namespace) for namespace in places),
            ],
            "Claims": [persistent_volume_claim(volume, namespace) for namespace in places],
            "Folders": [folder_job(namespaces)],
        }
        before: IConstruct = driver
        for name, objects in steps.items():
            made = kubernetes.manifest(self, name, objects, removal=RemovalPolicy.RETAIN)
            made.node.add_dependency(before)
            before = made
