"""Checks that the region offers the versions of EKS add-ons, and that these accept their configurations."""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from botocore.exceptions import ClientError
from jsonschema import validators
from jsonschema.exceptions import SchemaError

from config.eks_cluster import EksCluster
from config.facts.known_bad import known_fault
from tools.aws_session import error_code, if_present, is_absent
from tools.preflight.finding import Finding, Subject
from tools.preflight.planned import EKS_CHOOSES, LATER, Addon, Planned
from tools.preflight.read_only_aws import ReadOnlyAws

TABLE = "config/facts/addons.py"
NUM_SHOWN = 5
"""Most versions or mistakes that a message lists."""
_ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}
"""EKS's names of architectures, by EC2's names."""


def check_addons(planned: Planned, aws: ReadOnlyAws, cluster: EksCluster) -> Iterator[Finding]:
    for addon in planned.addons:
        subject = Subject(f"add-on {addon.name}")
        if addon.version == EKS_CHOOSES:
            yield subject.ok(f"EKS chooses the version for Kubernetes {cluster.kubernetes.version}")
            continue
        if bad := known_fault(addon.name, addon.version):
            yield subject.fail(
                f"{addon.version} {bad.fault} ({bad.source}, {bad.published})",
                f"put a version outside {bad.versions} in {TABLE}",
            )
        # Versions for the cluster's Kubernetes in the region, newest first as in EKS's list.
        listing = if_present(
            aws.items,
            "eks",
            "describe_addon_versions",
            "addons",
            addonName=addon.name,
            kubernetesVersion=cluster.kubernetes.version,
        )
        offered = [version for listed in listing or [] for version in listed["addonVersions"]]
        found = next(
            (version for version in offered if version["addonVersion"] == addon.version), None
        )
        if found is None:
            yield _not_offered(subject, cluster, addon, offered)
            continue
        yield subject.ok(f"{addon.version} is offered for Kubernetes {cluster.kubernetes.version}")
        yield from _architectures(subject, cluster, addon, found)
        yield from _configuration(subject, aws, addon, found)


def _not_offered(
    subject: Subject, cluster: EksCluster, addon: Addon, offered: list[dict[str, Any]]
) -> Finding:
    where = f"for Kubernetes {cluster.kubernetes.version} in {cluster.region}"
    good = [version for version in offered if not known_fault(addon.name, version["addonVersion"])]
    if offered and not good:
        return subject.fail(
            f"{addon.version} is not offered {where}, and all offered versions are known to be bad",
            "choose another kubernetes.version or region, or wait for a newer version",
        )
    offered = good
    if not offered:
        return subject.fail(
            f"it is not offered {where}",
            "choose another region or kubernetes.version, or remove the section that needs the add-on",
        )
    shown = ", ".join(version["addonVersion"] for version in offered[:NUM_SHOWN])
    if len(offered) > NUM_SHOWN:
        shown += f" and {len(offered) - NUM_SHOWN} older"
    action = f"put one of them in {TABLE}"
    default = _default_version(cluster, offered)
    if default:
        action += f", such as EKS's default {default}"
    return subject.fail(f"{addon.version} is not offered {where}; offered are {shown}", action)


def _default_version(cluster: EksCluster, offered: list[dict[str, Any]]) -> str | None:
    """Return EKS's default version for the cluster's Kubernetes, if the list marks one."""
    for version in offered:
        for compatible in version.get("compatibilities", []):
            is_ours = compatible.get("clusterVersion") == cluster.kubernetes.version
            if is_ours and compatible.get("defaultVersion"):
                return str(version["addonVersion"])
    return None


def _architectures(
    subject: Subject, cluster: EksCluster, addon: Addon, found: dict[str, Any]
) -> Iterator[Finding]:
    needed = {group.hardware.architecture for group in cluster.instance_groups}
    supported = found.get("architecture", [])
    missing = sorted(name for name in needed if supported and _ARCHITECTURES[name] not in supported)
    if missing:
        yield subject.fail(
            f"{addon.version} is for {', '.join(supported)}, nodes are {', '.join(missing)}",
            f"put another version in {TABLE}, or choose other instance types",
        )


def _configuration(
    subject: Subject, aws: ReadOnlyAws, addon: Addon, found: dict[str, Any]
) -> Iterator[Finding]:
    if addon.configuration is None and not found.get("requiresConfiguration"):
        return
    command = (
        f"`aws eks describe-addon-configuration --addon-name {addon.name} "
        f"--addon-version {addon.version}`"
    )
    try:
        answer = aws.call(
            "eks", "describe_addon_configuration", addonName=addon.name, addonVersion=addon.version
        )
    except ClientError as error:
        # The version exists but has no configuration, so EKS rejects this request.
        if not (is_absent(error) or error_code(error) == "InvalidParameterException"):
            raise
        answer = {}
    try:
        schema = json.loads(answer.get("configurationSchema") or "{}")
        validator = validators.validator_for(schema, default=validators.Draft7Validator)
        validator.check_schema(schema)
    except (json.JSONDecodeError, SchemaError) as error:
        reason = str(error).splitlines()[0]
        yield subject.unknown(f"the schema of its configuration cannot be read: {reason}", command)
        return
    if not schema:
        yield subject.warn(
            "EKS has no schema for its configuration", f"check the accepted values: {command}"
        )
        return
    known = (
        error
        for error in validator(schema).iter_errors(addon.configuration or {})
        # Strings that are only partly known before deployment do not count.
        if not (isinstance(error.instance, str) and LATER in error.instance)
    )
    mistakes = [
        f"{'.'.join(map(str, error.absolute_path))}: {error.message}".removeprefix(": ")
        for error in islice(known, NUM_SHOWN)
    ]
    if mistakes:
        yield subject.fail(
            f"its schema rejects the configuration: {'; '.join(mistakes)}",
            f"correct the configuration in the add-on's construct (constructs/); its schema: {command}",
        )
    else:
        yield subject.ok("its schema accepts the configuration")
