"""Kubernetes in a control plane: the objects and Helm releases that it holds, and what it refuses.

Objects are recorded and not run: no controller acts on them, and the templates of a chart are not rendered.
Refused is what the API server and Helm refuse by themselves: kinds and namespaces that do not exist, wrong
names, changes of what cannot be changed, values that the chart's schema does not allow.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jmespath  # type: ignore[import-untyped]
import jsonschema
import yaml

Object = Mapping[str, Any]

RBAC = "rbac.authorization.k8s.io/v1"
DEFAULT_NAMESPACE = "default"
SYSTEM_NAMESPACE = "kube-system"
FIRST_NAMESPACES = (DEFAULT_NAMESPACE, SYSTEM_NAMESPACE, "kube-public", "kube-node-lease")
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
MAX_NAME = 253


class Refused(Exception):
    """Refusal of a request by Kubernetes or Helm, in its words."""


@dataclass(frozen=True)
class Kind:
    namespaced: bool = True
    pruned: bool = False
    """Whether `kubectl apply --prune` deletes such objects by default (kubectl, pkg/cmd/apply)."""
    fixed: tuple[str, ...] = ()
    """jmespaths of what cannot be changed in an existing object."""


SELECTS = Kind(pruned=True, fixed=("spec.selector",))
KINDS: Mapping[tuple[str, str], Kind] = {
    ("v1", "ConfigMap"): Kind(pruned=True),
    ("v1", "Namespace"): Kind(namespaced=False, pruned=True),
    ("v1", "PersistentVolume"): Kind(namespaced=False, pruned=True, fixed=("spec.csi",)),
    ("v1", "PersistentVolumeClaim"): Kind(
        pruned=True,
        fixed=("spec.accessModes", "spec.storageClassName", "spec.volumeName", "spec.volumeMode"),
    ),
    ("v1", "Secret"): Kind(pruned=True, fixed=("type",)),
    ("v1", "Service"): Kind(pruned=True, fixed=("spec.clusterIP",)),
    ("v1", "ServiceAccount"): Kind(),
    ("apps/v1", "DaemonSet"): SELECTS,
    ("apps/v1", "Deployment"): SELECTS,
    ("apps/v1", "StatefulSet"): SELECTS,
    ("batch/v1", "Job"): Kind(pruned=True, fixed=("spec.selector", "spec.template")),
    ("networking.k8s.io/v1", "NetworkPolicy"): Kind(),
    (RBAC, "ClusterRole"): Kind(namespaced=False),
    (RBAC, "ClusterRoleBinding"): Kind(namespaced=False, fixed=("roleRef",)),
    (RBAC, "Role"): Kind(),
    (RBAC, "RoleBinding"): Kind(fixed=("roleRef",)),
    ("storage.k8s.io/v1", "StorageClass"): Kind(
        namespaced=False,
        fixed=("parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"),
    ),
}
"""Kinds that the API server has from the beginning, as far as the project has objects of them."""


@dataclass(frozen=True, order=True)
class Key:
    """Identity of an object."""

    kind: str
    namespace: str
    """Empty for objects that belong to none."""
    name: str

    def __str__(self) -> str:
        place = f"{self.namespace}/" if self.namespace else ""
        return f"{self.kind} {place}{self.name}"


@dataclass(frozen=True)
class Release:
    """A chart as Helm installed it."""

    chart: str
    version: str
    values: Mapping[str, Any]
    revision: int


@dataclass
class Kubernetes:
    """Contents of one control plane."""

    kinds: dict[tuple[str, str], Kind] = field(default_factory=lambda: dict(KINDS))
    objects: dict[Key, Object] = field(default_factory=dict)
    releases: dict[tuple[str, str], Release] = field(default_factory=dict)
    """Releases by namespace and name."""

    def __post_init__(self) -> None:
        for name in FIRST_NAMESPACES:
            self.add_namespace(name)

    def add_namespace(self, name: str) -> None:
        """Create a namespace, unless it is there."""
        self.objects.setdefault(
            Key("Namespace", "", name),
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}},
        )

    def add_daemonset(self, name: str) -> None:
        """Create a DaemonSet of an add-on, in the namespace of all that EKS installs."""
        self.objects[Key("DaemonSet", SYSTEM_NAMESPACE, name)] = {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": name, "namespace": SYSTEM_NAMESPACE},
        }

    def remove_daemonset(self, name: str) -> None:
        del self.objects[Key("DaemonSet", SYSTEM_NAMESPACE, name)]

    def apply(self, objects: Iterable[Object], *, prune: str | None = None) -> None:
        """Create or change the objects in their order, as `kubectl apply` does it.

        Like kubectl, continue after an object that is refused.

        Args:
            objects: manifests.
            prune: label of objects to delete afterwards, unless they are among these.
        """
        applied: set[Key] = set()
        refusals: list[str] = []
        for found in objects:
            try:
                applied.add(self._apply(found))
            except Refused as refusal:
                refusals.append(str(refusal))
        if refusals:
            raise Refused("\n".join(refusals))
        if prune is None:
            return
        visited = {key.namespace for key in applied} | {""}
        for key, found in list(self.objects.items()):
            labelled = prune in found["metadata"].get("labels", {})
            pruned = self.kinds[found["apiVersion"], found["kind"]].pruned
            if labelled and pruned and key.namespace in visited and key not in applied:
                self._delete(key)

    def delete(self, objects: Iterable[Object]) -> None:
        """Delete the objects, as `kubectl delete` does it; one that is missing is an error.

        kubectl waits for the end of a namespace, and of what is in it, when all have their deletion.
        """
        keys = [self._key(found) for found in objects]
        missing = [str(key) for key in keys if key not in self.objects]
        for key in keys:
            if key in self.objects:
                self._delete(key)
        if missing:
            raise Refused(f"Error from server (NotFound): {', '.join(missing)} not found")

    def upgrade(
        self, namespace: str, name: str, chart: bytes, values: Mapping[str, Any], *, create: bool
    ) -> None:
        """Install or upgrade a release from the zipped folder of its chart, as `helm upgrade --install`."""
        files = zipfile.ZipFile(io.BytesIO(chart))
        if "Chart.yaml" not in files.namelist():
            raise Refused("Error: Chart.yaml file is missing")
        about = yaml.safe_load(files.read("Chart.yaml"))
        merged = _merged(yaml.safe_load(files.read("values.yaml")) or {}, values)
        if "values.schema.json" in files.namelist():
            schema = json.loads(files.read("values.schema.json"))
            errors = [
                f"- {'.'.join(map(str, error.absolute_path)) or '(root)'}: {error.message}"
                for error in jsonschema.Draft7Validator(schema).iter_errors(merged)
            ]
            if errors:
                listed = "\n".join(errors)
                raise Refused(
                    f"Error: values don't meet the specifications of the schema(s) in the following "
                    f"chart(s):\n{about['name']}:\n{listed}"
                )
        if create:
            self.add_namespace(namespace)
        self._require_namespace(namespace)
        before = self.releases.get((namespace, name))
        revision = before.revision + 1 if before else 1
        self.releases[namespace, name] = Release(about["name"], about["version"], values, revision)

    def uninstall(self, namespace: str, name: str) -> None:
        if (namespace, name) not in self.releases:
            raise Refused(f"Error: uninstall: Release not loaded: {name}: release: not found")
        del self.releases[namespace, name]

    def _apply(self, found: Object) -> Key:
        key = self._key(found)
        kind = self.kinds[found["apiVersion"], found["kind"]]
        _check_names(found)
        if kind.namespaced:
            self._require_namespace(key.namespace)
        before = self.objects.get(key)
        changed = [
            path
            for path in kind.fixed
            if before is not None and jmespath.search(path, before) != jmespath.search(path, found)
        ]
        if changed:
            raise Refused(
                f'The {key.kind} "{key.name}" is invalid: {changed[0]}: Invalid value: field is immutable'
            )
        self.objects[key] = found
        return key

    def _delete(self, key: Key) -> None:
        """Delete an object, and with a namespace all that is in it."""
        del self.objects[key]
        if key.kind == "Namespace":
            for other in [other for other in self.objects if other.namespace == key.name]:
                del self.objects[other]
            for release in [release for release in self.releases if release[0] == key.name]:
                del self.releases[release]

    def _key(self, found: Object) -> Key:
        version = found["apiVersion"]
        kind = self.kinds.get((version, found["kind"]))
        if kind is None:
            raise Refused(
                f'error: resource mapping not found for name: "{found["metadata"]["name"]}": no matches '
                f'for kind "{found["kind"]}" in version "{version}"'
            )
        metadata = found["metadata"]
        namespace = metadata.get("namespace", DEFAULT_NAMESPACE) if kind.namespaced else ""
        if not kind.namespaced and "namespace" in metadata:
            raise Refused(f"{found['kind']} {metadata['name']}: the kind belongs to no namespace")
        return Key(found["kind"], namespace, metadata["name"])

    def _require_namespace(self, name: str) -> None:
        if Key("Namespace", "", name) not in self.objects:
            raise Refused(f'Error from server (NotFound): namespaces "{name}" not found')


def _check_names(found: Object) -> None:
    metadata = found["metadata"]
    name = metadata["name"]
    form = LABEL if found["kind"] == "Namespace" else SUBDOMAIN
    # Names of roles may have any character that a path's segment may have.
    if found["apiVersion"] != RBAC and not (form.fullmatch(name) and len(name) <= MAX_NAME):
        raise Refused(
            f'The {found["kind"]} "{name}" is invalid: metadata.name: Invalid value: "{name}"'
        )
    for label, value in metadata.get("labels", {}).items():
        if not (isinstance(value, str) and LABEL_VALUE.fullmatch(value)):
            raise Refused(
                f'The {found["kind"]} "{name}" is invalid: metadata.labels: Invalid value: "{value}" '
                f"of {label}"
            )


def _merged(defaults: Any, values: Any) -> Any:
    """Values over the chart's own, as Helm merges them: maps by key, and null removes one."""
    if not isinstance(defaults, Mapping) or not isinstance(values, Mapping):
        return values
    both = {
        key: _merged(defaults[key], values[key]) if key in defaults else values[key]
        for key in values
    }
    return {key: value for key, value in {**defaults, **both}.items() if value is not None}
