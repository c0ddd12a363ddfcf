"""Quotas that apply to this account."""

from collections.abc import Mapping
from dataclasses import dataclass

from tools.preflight.finding import Finding, Subject
from tools.preflight.read_only_aws import ReadOnlyAws

SAGEMAKER = "Amazon SageMaker AI"


@dataclass(frozen=True)
class Quota:
    """Quota, identified by its code, or by its name if the code is unknown."""

    service_code: str
    service: str
    """Name of the service in Service Quotas."""
    name: str
    code: str | None = None
    subject: str = ""
    """Subject in the report; empty for the quota's name."""


def quota_by_code(aws: ReadOnlyAws, service: str, code: str) -> float | None:
    """Return the applied value of a quota, else AWS's default; None if the region has no such quota."""
    for operation in ("get_service_quota", "get_aws_default_service_quota"):
        if found := aws.find("service-quotas", operation, ServiceCode=service, QuotaCode=code):
            return float(found["Quota"]["Value"])
    return None


def quotas_by_name(aws: ReadOnlyAws, service: str) -> dict[str, float]:
    """Return all quotas of a service by name, because the codes of instance types cannot be derived."""
    values: dict[str, float] = {}
    # The list of applied quotas omits those without an account-specific value, so the defaults come first.
    for operation in ("list_aws_default_service_quotas", "list_service_quotas"):
        quotas = aws.items("service-quotas", operation, "Quotas", ServiceCode=service)
        values.update({quota["QuotaName"]: quota["Value"] for quota in quotas})
    return values


def judge_quota(
    aws: ReadOnlyAws,
    quota: Quota,
    *,
    used: float,
    needed: float = 1,
    unit: str = "",
    values: Mapping[str, float] | None = None,
) -> Finding:
    """Compare a quota of this account with its current use and the cluster's additional need.

    Args:
        aws: reader of the account.
        quota: quota to compare.
        used: current use in the account.
        needed: additional need of the cluster.
        unit: unit of both numbers; empty for a number of resources.
        values: quotas by name, for quotas that another service than Service Quotas reports.
    """
    if quota.code:
        value = quota_by_code(aws, quota.service_code, quota.code)
    elif values is not None:
        value = values.get(quota.name)
    else:
        value = quotas_by_name(aws, quota.service_code).get(quota.name)
    subject = Subject(quota.subject or f"quota {quota.name}")
    need = f"{needed:,.10g} {unit} needed" if unit else f"{needed:,.10g} needed"
    if used:
        need += f", {used:,.10g} in use"
    if value is None:
        action = f"look for it in Service Quotas, {quota.service}"
        return subject.warn(f"no quota '{quota.name}' in this account and region; {need}", action)
    if used + needed > value:
        return subject.fail(
            f"{need}, the quota is {value:,.10g}",
            f"request {used + needed:,.10g} for '{quota.name}' in Service Quotas, {quota.service}",
        )
    return subject.ok(f"{need}, the quota is {value:,.10g}")
