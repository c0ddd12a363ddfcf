"""Quotas as they apply to this account."""

from __future__ import annotations

from dataclasses import dataclass

from tools.aws_session import if_present
from tools.preflight.finding import Finding, fail, ok, warn
from tools.preflight.read_only_aws import ReadOnlyAws


@dataclass(frozen=True)
class Quota:
    """A quota by its code; by its name where none is known."""

    service_code: str
    service: str
    """Name of the service, as Service Quotas shows it."""
    name: str
    code: str | None = None


def quota_by_code(aws: ReadOnlyAws, service: str, code: str) -> float | None:
    """Applied value of a quota, else AWS's default; None where the region has no such quota."""
    for operation in ("get_service_quota", "get_aws_default_service_quota"):
        if found := if_present(aws.call, "service-quotas", operation, ServiceCode=service, QuotaCode=code):
            return float(found["Quota"]["Value"])
    return None


def quotas_by_name(aws: ReadOnlyAws, service: str) -> dict[str, float]:
    """All quotas of a service. Names, because instance types have no code that can be derived."""
    values: dict[str, float] = {}
    # The first listing leaves out quotas that have no value of the account's own; the second has defaults.
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
    subject: str | None = None,
) -> Finding:
    """Compare a quota of this account with what is in use and what the cluster adds to it."""
    if quota.code:
        value = quota_by_code(aws, quota.service_code, quota.code)
    else:
        value = quotas_by_name(aws, quota.service_code).get(quota.name)
    return judge(quota, value, used=used, needed=needed, unit=unit, subject=subject)


def judge(
    quota: Quota,
    value: float | None,
    *,
    used: float,
    needed: float = 1,
    unit: str = "",
    subject: str | None = None,
) -> Finding:
    """``judge_quota`` for a known value of the quota."""
    subject = subject or f"quota {quota.name}"
    need = f"{needed:,.10g} {unit} needed".replace("  ", " ") + (f", {used:,.10g} in use" if used else "")
    if value is None:
        action = f"look for it in Service Quotas, {quota.service}"
        return warn(subject, f"no quota '{quota.name}' here; {need}", action)
    if used + needed > value:
        return fail(
            subject,
            f"{need}, the quota is {value:,.10g}",
            f"request {used + needed:,.10g} for '{quota.name}' in Service Quotas, {quota.service}",
        )
    return ok(subject, f"{need}, the quota is {value:,.10g}")
