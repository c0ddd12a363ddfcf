"""Lustre file system in the namespaces of jobs."""

from collections.abc import Sequence
from functools import partial

from aws_cdk import RemovalPolicy

from config.facts import addons
from config.resource_names import COMMON_NAMESPACE, POD_SECURITY
from config.stack_division import division
from constructs import Construct, IDependable
from constructs.eks.kubernetes_cluster import KubernetesCluster
from constructs.eks.pod_role import PodRole
from constructs.nodes.node_roles import describe_file_systems
from constructs.storage.file_systems import LustreFileSystem
from manifests.lustre import (
    HYPERPOD_NODES,
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
        roles: list[IDependable] = []
        # In an existing cluster, the driver may serve others with a role of its own.
        if not kubernetes.is_existing:
            role = PodRole(
                self,
                "ControllerRole",
                kubernetes=kubernetes,
                namespaces=[SYSTEM_NAMESPACE],
                service_account=CONTROLLER_ACCOUNT,
                statements=[describe_file_systems()],
            )
            roles.append(role)
        driver = kubernetes.addon(self, "Driver", addons.LUSTRE_DRIVER, after=roles)
        self._kubernetes = kubernetes
        self._volume = LustreVolume(
            lustre.file_system_id, lustre.dns_name, lustre.mount_name, lustre.capacity_gib
        )
        namespaces = division(kubernetes.settings).namespaces
        common: list[Object] = []
        if COMMON_NAMESPACE in namespaces:
            common.append(namespace_of(COMMON_NAMESPACE, POD_SECURITY))
        common.append(storage_class())
        # Folders are created by a job of the system, which also needs a volume.
        self._objects(self, common, [SYSTEM_NAMESPACE, *namespaces], namespaces, after=driver)

    def add_namespaces(
        self, scope: Construct, namespaces: Sequence[str], *, after: IDependable
    ) -> None:
        """Create volumes, claims and folders of other namespaces of jobs."""
        self._objects(scope, [], namespaces, namespaces, after=after)

    def _objects(
        self,
        scope: Construct,
        common: Sequence[Object],
        namespaces: Sequence[str],
        with_folder: Sequence[str],
        *,
        after: IDependable,
    ) -> None:
        """Create objects in their order.

        Args:
            scope: parent construct.
            common: objects that the volumes need.
            namespaces: namespaces with a volume and a claim.
            with_folder: namespaces with a folder of their own.
            after: resource that the volumes depend on.
        """
        volume_objects = [persistent_volume(self._volume, name) for name in namespaces]
        claim_objects = [persistent_volume_claim(self._volume, name) for name in namespaces]
        manifest = partial(self._kubernetes.manifest, scope, removal=RemovalPolicy.RETAIN)
        volumes = manifest("Volumes", [*common, *volume_objects], after=[after])
        claims = manifest("Claims", claim_objects, after=[volumes])
        # In an existing cluster, other nodes need not reach the file system.
        labels = HYPERPOD_NODES if self._kubernetes.is_existing else {}
        manifest("Folders", [folder_job(with_folder, labels)], after=[claims])
