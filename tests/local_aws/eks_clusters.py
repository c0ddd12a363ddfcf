"""EKS's control planes with their add-ons, access entries and pod identities, of which moto has next to none.

A control plane has network interfaces in its subnets and an own log group, which EKS creates again for late
entries when the group is deleted after the cluster.
"""

from __future__ import annotations

import dataclasses
import io
import json
import re
import secrets
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moto.core.responses import ActionResult, EmptyResult
from moto.core.utils import utcnow
from moto.ec2.models import ec2_backends
from moto.ec2.utils import random_private_ip
from moto.eks import urls
from moto.eks.exceptions import (
    InvalidParameterException,
    InvalidRequestException,
    ResourceInUseException,
    ResourceNotFoundException,
)
from moto.eks.models import eks_backends
from moto.eks.responses import EKSResponse
from moto.iam.models import iam_backends
from moto.logs.models import LogsBackend, logs_backends
from moto.moto_api._internal import urls as moto_urls
from moto.sagemaker.models import sagemaker_backends

from tests.local_aws.kubernetes import Kind, Kubernetes
from tests.local_aws.permissions import trusts

CLUSTER_POLICY = "arn:aws:iam::aws:policy/AmazonEKSClusterPolicy"
ACCESS_POLICIES = "arn:aws:eks::aws:cluster-access-policy/"
ADMINISTRATOR = f"{ACCESS_POLICIES}AmazonEKSClusterAdminPolicy"
POLICIES = {
    ADMINISTRATOR,
    *(f"{ACCESS_POLICIES}AmazonEKS{level}Policy" for level in ("Admin", "Edit", "View")),
}
VERSIONS = ("1.33", "1.34", "1.35")
ADDON_VERSION = re.compile(r"v(\d+\.\d+)\.\d+-eksbuild\.\d+")
KUBE_PROXY = "kube-proxy"
NODE_CHARTS = {"hyperpod-helm-chart"}
"""Charts that HyperPod requires of a control plane."""
NODE_ADDONS = {"vpc-cni", "eks-pod-identity-agent"}
"""Add-ons that HyperPod requires (SageMaker developer guide, "Installing packages on the EKS cluster")."""


@dataclass(frozen=True)
class Addon:
    """Properties of an add-on."""

    needs_nodes: bool = True
    """Whether it has a Deployment, and so becomes active only with nodes."""
    requires: tuple[str, ...] = ()
    """Other add-ons, for whose webhooks or certificates it would wait."""
    daemonset: str | None = None
    kinds: Mapping[tuple[str, str], Kind] = field(default_factory=dict)
    namespaces: tuple[str, ...] = ()


ADDONS: Mapping[str, Addon] = {
    "vpc-cni": Addon(
        needs_nodes=False,
        daemonset="aws-node",
        kinds={("networking.k8s.aws/v1alpha1", "ClusterNetworkPolicy"): Kind(namespaced=False)},
    ),
    KUBE_PROXY: Addon(needs_nodes=False, daemonset=KUBE_PROXY),
    "eks-pod-identity-agent": Addon(needs_nodes=False, daemonset="eks-pod-identity-agent"),
    "coredns": Addon(requires=("vpc-cni",)),
    "cert-manager": Addon(requires=("coredns",), namespaces=("cert-manager",)),
    "aws-fsx-csi-driver": Addon(requires=("eks-pod-identity-agent",)),
    "amazon-cloudwatch-observability": Addon(
        requires=("eks-pod-identity-agent",), namespaces=("amazon-cloudwatch",)
    ),
    "amazon-sagemaker-hyperpod-training-operator": Addon(
        requires=("cert-manager", "eks-pod-identity-agent"), namespaces=("aws-hyperpod",)
    ),
    "amazon-sagemaker-hyperpod-observability": Addon(
        requires=("cert-manager", "eks-pod-identity-agent"), namespaces=("hyperpod-observability",)
    ),
}


@dataclass
class ControlPlane:
    """A cluster of EKS, kept where moto keeps its own."""

    region: str
    account_id: str
    settings: dict[str, Any]
    """Parameters of its creation, by the API's names."""
    interfaces: list[str]
    addons: dict[str, dict[str, Any]] = field(default_factory=dict)
    associations: dict[str, dict[str, Any]] = field(default_factory=dict)
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    policies: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    """Access policies by entry and policy."""
    kubernetes: Kubernetes = field(default_factory=Kubernetes)
    is_active: bool = True
    own_group: str = field(default_factory=lambda: f"sg-{secrets.token_hex(9)[:17]}")
    """Security group that EKS creates."""

    @property
    def name(self) -> str:
        return str(self.settings["name"])

    @property
    def arn(self) -> str:
        return cluster_arn(self.account_id, self.region, self.name)

    def describe(self) -> dict[str, Any]:
        groups = {"clusterSecurityGroupId": self.own_group}
        return {
            **self.settings,
            "arn": self.arn,
            "createdAt": utcnow(),
            "endpoint": f"https://{self.name}.{self.region}.eks.amazonaws.com",
            "certificateAuthority": {"data": "bG9jYWw="},
            "resourcesVpcConfig": {**groups, **self.settings["resourcesVpcConfig"]},
            "status": "ACTIVE",
        }

    def ready_nodes(self) -> int:
        """Number of nodes that run and have a network, for which they need the VPC CNI."""
        if "vpc-cni" not in self.addons:
            return 0
        clusters = sagemaker_backends[self.account_id][self.region].clusters.values()
        return sum(
            node.status == "Running"
            for cluster in clusters
            if orchestrating_arn(cluster.settings) == self.arn
            for node in cluster.nodes.values()
        )

    def is_administrator(self, role_arn: str) -> bool:
        return ADMINISTRATOR in self.policies.get(role_arn, {})

    def check_hyperpod(self, vpc_id: str) -> str | None:
        """Return why HyperPod gives this control plane no nodes; None if it does."""
        if self.settings["accessConfig"]["authenticationMode"] == "CONFIG_MAP":
            return f"{self.arn} needs the authentication mode API"
        if self.vpc_id() != vpc_id:
            return f"{self.arn} is in {self.vpc_id()}, the nodes are in {vpc_id}"
        missing = NODE_ADDONS - self.addons.keys()
        if missing:
            return f"{self.arn} lacks the add-ons {sorted(missing)}"
        if not NODE_CHARTS & {item.chart for item in self.kubernetes.releases.values()}:
            return f"{self.arn} lacks the dependencies that HyperPod's chart installs"
        return None

    def vpc_id(self) -> str:
        ec2 = ec2_backends[self.account_id][self.region]
        subnet = ec2.get_subnet(self.settings["resourcesVpcConfig"]["subnetIds"][0])
        return str(subnet.vpc_id)


def orchestrating_arn(settings: Mapping[str, Any]) -> str | None:
    """The control plane of a HyperPod cluster; None if it has none."""
    arn = settings.get("Orchestrator", {}).get("Eks", {}).get("ClusterArn")
    return None if arn is None else str(arn)


def cluster_arn(account_id: str, region: str, name: str) -> str:
    return f"arn:aws:eks:{region}:{account_id}:cluster/{name}"


def control_plane(account_id: str, region: str, name: str) -> ControlPlane:
    found: Any = eks_backends[account_id][region].clusters.get(name)
    if found is None:
        raise ResourceNotFoundException(message=f"No cluster found for name: {name}.")
    assert isinstance(found, ControlPlane)
    return found


def log_group(name: str) -> str:
    return f"/aws/eks/{name}/cluster"


def _plane(self: EKSResponse, key: str = "clusterName") -> ControlPlane:
    return control_plane(self.current_account, self.region, self._get_param(key))


def create_cluster(self: EKSResponse) -> ActionResult:
    settings = dict(self.params)
    name = settings["name"]
    clusters: dict[str, Any] = eks_backends[self.current_account][self.region].clusters
    if name in clusters:
        raise ResourceInUseException(message=f"Cluster already exists with name: {name}")
    _check_role(self, settings)
    _check_auto_mode(settings)
    if settings.get("version") not in VERSIONS:
        raise InvalidParameterException(message="unsupported Kubernetes version")
    ec2 = ec2_backends[self.current_account][self.region]
    place = settings["resourcesVpcConfig"]
    subnets = [ec2.get_subnet(subnet) for subnet in place["subnetIds"]]
    if len({subnet.availability_zone for subnet in subnets}) < 2:
        raise InvalidParameterException(message="Subnets are not in at least two different zones")
    (vpc_id,) = {subnet.vpc_id for subnet in subnets}
    for group_id in place.get("securityGroupIds", []):
        group = ec2.get_security_group_from_id(group_id)
        if group is None or group.vpc_id != vpc_id:
            raise InvalidParameterException(message=f"{group_id} is not in {vpc_id}")
    if any(item["enabled"] for item in settings.get("logging", {}).get("clusterLogging", [])):
        logs_backends[self.current_account][self.region].ensure_log_group(log_group(name))
    interfaces = [
        ec2.create_network_interface(
            subnet,
            random_private_ip(),
            group_ids=place.get("securityGroupIds", []),
            description=f"Amazon EKS {name}",
        ).id
        for subnet in subnets
    ]
    clusters[name] = ControlPlane(self.region, self.current_account, settings, interfaces)
    return ActionResult({"cluster": clusters[name].describe()})


def _check_role(self: EKSResponse, settings: Mapping[str, Any]) -> None:
    """Refuse a role that EKS cannot assume for this cluster, or that lacks EKS's own policy."""
    arn = cluster_arn(self.current_account, self.region, settings["name"])
    context = {"aws:SourceAccount": self.current_account, "aws:SourceArn": arn}
    role = settings["roleArn"]
    if not trusts(self.current_account, role, "eks.amazonaws.com", {"sts:AssumeRole"}, context):
        raise InvalidParameterException(message=f"EKS may not assume {role} for {arn}")
    found = iam_backends[self.current_account]["aws"].get_role_by_arn(role)
    if CLUSTER_POLICY not in found.managed_policies:
        raise InvalidParameterException(message=f"{role} lacks {CLUSTER_POLICY}")


def _check_auto_mode(settings: Mapping[str, Any]) -> None:
    """Refuse settings that turn on a part of EKS Auto Mode."""
    switches = {
        settings.get("computeConfig", {}).get("enabled"),
        settings.get("storageConfig", {}).get("blockStorage", {}).get("enabled"),
        settings.get("kubernetesNetworkConfig", {}).get("elasticLoadBalancing", {}).get("enabled"),
    }
    if len(switches) > 1:
        raise InvalidParameterException(
            message="The type for cluster update was not provided: computeConfig, storageConfig and "
            "elasticLoadBalancing must all be enabled or all be disabled"
        )


def describe_cluster(self: EKSResponse) -> ActionResult:
    return ActionResult({"cluster": _plane(self, "name").describe()})


def update_cluster_config(self: EKSResponse) -> ActionResult:
    plane = _plane(self, "name")
    plane.settings |= {key: value for key, value in self.params.items() if key != "name"}
    return _updated("ConfigUpdate")


def update_cluster_version(self: EKSResponse) -> ActionResult:
    """Go to the next version; it is the only one that EKS allows."""
    plane = _plane(self, "name")
    wanted = self._get_param("version")
    old, new = plane.settings["version"], wanted
    if new not in VERSIONS or VERSIONS.index(new) != VERSIONS.index(old) + 1:
        raise InvalidParameterException(
            message=f"Unsupported Kubernetes minor version update from {old} to {new}"
        )
    plane.settings["version"] = new
    return _updated("VersionUpdate")


def _updated(kind: str) -> ActionResult:
    return ActionResult(
        {"update": {"id": secrets.token_hex(8), "status": "Successful", "type": kind}}
    )


def delete_cluster(self: EKSResponse) -> ActionResult:
    plane = _plane(self, "name")
    if plane.settings.get("deletionProtection"):
        raise InvalidRequestException(message=f"{plane.name} has deletion protection enabled")
    for interface in plane.interfaces:
        ec2_backends[plane.account_id][plane.region].delete_network_interface(interface)
    clusters: dict[str, Any] = eks_backends[plane.account_id][plane.region].clusters
    del clusters[plane.name]
    LATE_LOGS.add((plane.account_id, plane.region, log_group(plane.name)))
    return ActionResult({"cluster": plane.describe() | {"status": "DELETING"}})


def create_addon(self: EKSResponse) -> ActionResult:
    plane = _plane(self)
    settings = dict(self.params)
    name = settings["addonName"]
    if name in plane.addons:
        raise ResourceInUseException(message="Addon already exists.")
    _check_addon(plane, settings)
    about = ADDONS[name]
    missing = [other for other in about.requires if other not in plane.addons]
    if missing or (about.needs_nodes and not plane.ready_nodes()):
        reason = f"there are no add-ons {missing}" if missing else "there are no nodes for its pods"
        raise InvalidRequestException(message=f"{name} stays DEGRADED: {reason}")
    plane.kubernetes.kinds |= about.kinds
    for namespace in about.namespaces:
        plane.kubernetes.add_namespace(namespace)
    if about.daemonset:
        plane.kubernetes.add_daemonset(about.daemonset)
    plane.addons[name] = {
        **settings,
        "status": "ACTIVE",
        "addonArn": _part_arn(plane, "addon", name),
    }
    return ActionResult({"addon": plane.addons[name]})


def _check_addon(plane: ControlPlane, settings: Mapping[str, Any]) -> None:
    name = settings["addonName"]
    if name not in ADDONS:
        raise InvalidParameterException(message=f"Addon {name} specified is not supported")
    version = settings.get("addonVersion")
    form = None if version is None else ADDON_VERSION.fullmatch(version)
    supported = version is None or (
        form is not None
        and (
            name != KUBE_PROXY
            or VERSIONS.index(form[1]) <= VERSIONS.index(plane.settings["version"])
        )
    )
    if not supported:
        raise InvalidParameterException(
            message=f"Addon version {version} of {name} is not supported in {plane.settings['version']}"
        )
    if not isinstance(json.loads(settings.get("configurationValues", "{}")), dict):
        raise InvalidParameterException(message=f"ConfigurationValue of {name} is not an object")


def _part_arn(plane: ControlPlane, kind: str, name: str) -> str:
    return f"arn:aws:eks:{plane.region}:{plane.account_id}:{kind}/{plane.name}/{name}"


def _addon(self: EKSResponse, plane: ControlPlane) -> dict[str, Any]:
    name = self._get_param("addonName")
    if name not in plane.addons:
        raise ResourceNotFoundException(message=f"No addon: {name} found in cluster: {plane.name}")
    return plane.addons[name]


def update_addon(self: EKSResponse) -> ActionResult:
    plane = _plane(self)
    changed = {**_addon(self, plane), **self.params}
    _check_addon(plane, changed)
    plane.addons[changed["addonName"]] = changed
    return _updated("AddonUpdate")


def delete_addon(self: EKSResponse) -> ActionResult:
    """Delete an add-on that no other one needs; the kinds that it defined stay."""
    plane = _plane(self)
    addon = _addon(self, plane)
    name = addon["addonName"]
    users = [other for other in plane.addons if name in ADDONS[other].requires]
    if users:
        raise InvalidRequestException(message=f"{name} is deleted before {users}, which need it")
    if daemonset := ADDONS[name].daemonset:
        plane.kubernetes.remove_daemonset(daemonset)
    return ActionResult({"addon": plane.addons.pop(name)})


def describe_addon(self: EKSResponse) -> ActionResult:
    return ActionResult({"addon": _addon(self, _plane(self))})


def list_addons(self: EKSResponse) -> ActionResult:
    return ActionResult({"addons": sorted(_plane(self).addons)})


def create_pod_identity_association(self: EKSResponse) -> ActionResult:
    plane = _plane(self)
    settings = dict(self.params)
    account = (settings["namespace"], settings["serviceAccount"])
    if account in [(a["namespace"], a["serviceAccount"]) for a in plane.associations.values()]:
        raise ResourceInUseException(message=f"Association already exists: {account}")
    context = {"aws:SourceAccount": plane.account_id, "aws:SourceArn": plane.arn}
    role = settings["roleArn"]
    actions = {"sts:AssumeRole", "sts:TagSession"}
    if not trusts(plane.account_id, role, "pods.eks.amazonaws.com", actions, context):
        raise InvalidParameterException(
            message=f"Trust policy of {role} does not admit pods of {plane.arn}"
        )
    key = f"a-{secrets.token_hex(9)[:17]}"
    arn = _part_arn(plane, "podidentityassociation", key)
    plane.associations[key] = {**settings, "associationId": key, "associationArn": arn}
    return ActionResult({"association": plane.associations[key]})


def _association(self: EKSResponse) -> tuple[ControlPlane, str]:
    plane = _plane(self)
    key = self._get_param("associationId")
    if key not in plane.associations:
        raise ResourceNotFoundException(message=f"No association {key}")
    return plane, key


def delete_pod_identity_association(self: EKSResponse) -> ActionResult:
    plane, key = _association(self)
    return ActionResult({"association": plane.associations.pop(key)})


def describe_pod_identity_association(self: EKSResponse) -> ActionResult:
    plane, key = _association(self)
    return ActionResult({"association": plane.associations[key]})


def list_pod_identity_associations(self: EKSResponse) -> ActionResult:
    return ActionResult({"associations": list(_plane(self).associations.values())})


def create_access_entry(self: EKSResponse) -> ActionResult:
    plane = _plane(self)
    settings = dict(self.params)
    principal = settings["principalArn"]
    iam = iam_backends[plane.account_id]["aws"]
    if principal not in [known.arn for known in [*iam.roles.values(), *iam.users.values()]]:
        raise InvalidParameterException(
            message=f"The specified principalArn is invalid: invalid principal {principal}"
        )
    if principal in plane.entries:
        raise ResourceInUseException(message=f"{principal} already has an access entry")
    _check_groups(settings)
    arn = _part_arn(plane, "access-entry", secrets.token_hex(4))
    plane.entries[principal] = {"kubernetesGroups": [], **settings, "accessEntryArn": arn}
    plane.policies[principal] = {}
    return ActionResult({"accessEntry": plane.entries[principal]})


def _check_groups(settings: Mapping[str, Any]) -> None:
    reserved = [g for g in settings.get("kubernetesGroups") or [] if g.startswith("system:")]
    if reserved:
        raise InvalidParameterException(message=f"groups {reserved} belong to Kubernetes")


def _entry(self: EKSResponse) -> tuple[ControlPlane, str]:
    plane = _plane(self)
    principal = self._get_param("principalArn")
    if principal not in plane.entries:
        raise ResourceNotFoundException(message=f"{principal} has no access entry")
    return plane, principal


def update_access_entry(self: EKSResponse) -> ActionResult:
    plane, principal = _entry(self)
    _check_groups(self.params)
    plane.entries[principal] |= self.params
    return ActionResult({"accessEntry": plane.entries[principal]})


def delete_access_entry(self: EKSResponse) -> EmptyResult:
    plane, principal = _entry(self)
    del plane.entries[principal], plane.policies[principal]
    return EmptyResult()


def list_access_entries(self: EKSResponse) -> ActionResult:
    return ActionResult({"accessEntries": sorted(_plane(self).entries)})


def associate_access_policy(self: EKSResponse) -> ActionResult:
    plane, principal = _entry(self)
    policy, scope = self._get_param("policyArn"), self._get_param("accessScope")
    if policy not in POLICIES:
        raise InvalidParameterException(message=f"{policy} is not an access policy of EKS")
    if (scope["type"] == "namespace") != bool(scope.get("namespaces")):
        raise InvalidParameterException(message=f"type and namespaces differ in scope {scope}")
    associated = {"policyArn": policy, "accessScope": scope}
    plane.policies[principal][policy] = associated
    answer = {"clusterName": plane.name, "principalArn": principal}
    return ActionResult({**answer, "associatedAccessPolicy": associated})


def disassociate_access_policy(self: EKSResponse) -> EmptyResult:
    plane, principal = _entry(self)
    if plane.policies[principal].pop(self._get_param("policyArn"), None) is None:
        raise ResourceNotFoundException(message="the access policy is not associated")
    return EmptyResult()


def list_associated_access_policies(self: EKSResponse) -> ActionResult:
    plane, principal = _entry(self)
    return ActionResult({"associatedAccessPolicies": list(plane.policies[principal].values())})


LATE_LOGS: set[tuple[str, str, str]] = set()
"""Account, region and name of log groups with entries of deleted clusters on their way."""
_moto_delete_log_group = LogsBackend.delete_log_group


def delete_log_group(self: LogsBackend, log_group_name: str) -> None:
    """Delete a log group; EKS creates that of a deleted cluster once more."""
    _moto_delete_log_group(self, log_group_name)
    place = (self.account_id, self.region_name, log_group_name)
    if place in LATE_LOGS:
        LATE_LOGS.remove(place)
        self.ensure_log_group(log_group_name)


def kubernetes_contents(
    request: Any, full_url: str, _headers: Any
) -> tuple[int, dict[str, str], str]:
    """Answer what is in a control plane, after an owner installed a posted chart; no API of AWS's."""
    account_id, region, name = full_url.split("/")[-3:]
    contents = control_plane(account_id, region, name).kubernetes
    if request.method == "POST":
        release = json.loads(request.data)
        chart = _zipped(Path(release["chart"]))
        contents.upgrade(release["namespace"], release["name"], chart, {}, create=False)
    told = {
        "objects": {str(key): found for key, found in sorted(contents.objects.items())},
        "releases": {
            "/".join(place): dataclasses.asdict(release)
            for place, release in sorted(contents.releases.items())
        },
    }
    return 200, {}, json.dumps(told)


def _zipped(folder: Path) -> bytes:
    """Return the files of a chart's folder, as an asset of the CDK has them."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as files:
        for path in sorted(folder.rglob("*")):
            files.write(path, path.relative_to(folder).as_posix())
    return archive.getvalue()


OPERATIONS = (
    create_cluster,
    describe_cluster,
    update_cluster_config,
    update_cluster_version,
    delete_cluster,
    create_addon,
    update_addon,
    delete_addon,
    describe_addon,
    list_addons,
    create_pod_identity_association,
    delete_pod_identity_association,
    describe_pod_identity_association,
    list_pod_identity_associations,
    create_access_entry,
    update_access_entry,
    delete_access_entry,
    list_access_entries,
    associate_access_policy,
    disassociate_access_policy,
    list_associated_access_policies,
)


_moto_init = EKSResponse.__init__


def init(self: EKSResponse) -> None:
    """Read parameters by the API's model, wherever they stand in the request."""
    _moto_init(self)
    self.automated_parameter_parsing = True


def install() -> None:
    EKSResponse.__init__ = init  # type: ignore[method-assign]
    for operation in OPERATIONS:
        setattr(EKSResponse, operation.__name__, operation)
    urls.url_paths["{0}/clusters/(?P<name>[^/]+)/(?P<part>.+)$"] = EKSResponse.dispatch
    place = "(?P<account>[^/]+)/(?P<region>[^/]+)/(?P<name>[^/]+)"
    moto_urls.url_paths[f"{{0}}/moto-api/kubernetes/{place}$"] = kubernetes_contents
    LogsBackend.delete_log_group = delete_log_group  # type: ignore[method-assign]
