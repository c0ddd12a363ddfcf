"""Lustre file system in the namespaces of jobs."""

from aws_cdk import RemovalPolicy

from config.facts import addons
from config.resource_names import COMMON_NAMESPACE, POD_SECURITY, job_namespaces
from constructs import Construct
from constructs.eks.kubernetes_cluster import KubernetesCluster
from constructs.eks.pod_role import PodRole
from constructs.nodes.node_roles import describe_file_systems
from constructs.storage.file_systems import LustreFileSystem
from manifests.lustre import (
    LustreVolume,
    folder_job,
    persistent_volume,
    persistent_volume_claim,
    storage_class,
)
from manifests.objects import SYSTEM_NAMESPACE, Object, namespace_of

CONTROLLER_ACCOUNT = "fsx-csi-controller-sa"
"""Service account of the controller of FSx's driver."""


class LustreVolumes(Construct):
    """FSx's driver, and a volume and a claim in every namespace of jobs.

    The namespaces of teams exist before; the common namespace is created here.

    Each volume is the whole file system. The data below the bucket's path are shared, and each namespace has
    its own folder for its results.

    The objects stay as long as the EKS cluster. Kubernetes deletes no claim, and so no namespace, while a pod
    uses it, and the deletion of the stack would wait for the end of jobs until it fails.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        kubernetes: KubernetesCluster,
        lustre: LustreFileSystem,
    ) -> None:
        super().__init__(scope, construct_id)
        # The driver provisions no file systems. With a role, its controller also receives the region, which
        # it would otherwise read from the instance metadata, and pods cannot reach that.
        role = PodRole(
            self,
            "ControllerRole",
            kubernetes=kubernetes,
            namespaces=[SYSTEM_NAMESPACE],
            service_account=CONTROLLER_ACCOUNT,
            statements=[describe_file_systems()],
        )
        driver = kubernetes.addon(self, "Driver", addons.LUSTRE_DRIVER, after=[role])
        volume = LustreVolume(
            lustre.file_system_id, lustre.dns_name, lustre.mount_name, lustre.capacity_gib
        )
        namespaces = job_namespaces(kubernetes.settings)
        # Folders are created by a job of the system, which also needs a volume.
        namespaces_with_volume = [SYSTEM_NAMESPACE, *namespaces]
        volumes_objects: list[Object] = []
        if COMMON_NAMESPACE in namespaces:
            volumes_objects.append(namespace_of(COMMON_NAMESPACE, POD_SECURITY))
        volumes_objects.append(storage_class())
        for namespace in namespaces_with_volume:
            volumes_objects.append(persistent_volume(volume, namespace))
        claim_objects = [
            persistent_volume_claim(volume, namespace) for namespace in namespaces_with_volume
        ]
        retain = RemovalPolicy.RETAIN
        volumes = kubernetes.manifest(
            self, "Volumes", volumes_objects, after=[driver], removal=retain
        )
        claims = kubernetes.manifest(self, "Claims", claim_objects, after=[volumes], removal=retain)
        kubernetes.manifest(
            self, "Folders", [folder_job(namespaces)], after=[claims], removal=retain
        )
