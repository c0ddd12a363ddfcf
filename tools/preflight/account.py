"""Checks of the credentials, and of the account's readiness for CDK deployments in the region."""

import json
from collections.abc import Iterator
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError

from config.cluster import Cluster
from tools.aws_session import explain
from tools.preflight.finding import Finding, Subject
from tools.preflight.read_only_aws import ReadOnlyAws
from tools.preflight.stacks import is_deployed

CREDENTIALS = Subject("credentials")
REGION = Subject("region")
BOOTSTRAP = Subject("CDK bootstrap")
ROLES = Subject("quota IAM roles")

CDK_SETTINGS = Path(__file__).parents[2] / "cdk.json"
QUALIFIER = "@aws-cdk/core:bootstrapQualifier"
"""Context key in cdk.json for accounts that were bootstrapped with another than the CDK's qualifier."""
DEFAULT_QUALIFIER = "hnb659fds"
"""The CDK's qualifier (DefaultStackSynthesizer in aws-cdk-lib)."""
MIN_BOOTSTRAP_VERSION = 6
"""Version that stacks with assets and `cdk deploy` require (DefaultStackSynthesizer in aws-cdk-lib)."""
MOST_ROLES = {"slurm": 25, "eks": 45}
"""Roles of all stacks of a cluster that uses every option of a cluster file."""


def check_credentials(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    try:
        caller = aws.call("sts", "get_caller_identity")
    except (BotoCoreError, ClientError) as error:
        yield CREDENTIALS.fail(explain(error), "sign in; all other checks need credentials")
        return
    yield CREDENTIALS.ok(f"account {caller['Account']} as {caller['Arn']}")
    if caller["Arn"].endswith(":root"):
        yield CREDENTIALS.warn(
            "these are the account's root credentials",
            "use a role with the permissions in docs/deploy.md, because nothing limits root",
        )


def check_region(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    regions = aws.call("ec2", "describe_regions", RegionNames=[cluster.region], AllRegions=True)[
        "Regions"
    ]
    status = regions[0]["OptInStatus"] if regions else "unknown"
    if status in ("opt-in-not-required", "opted-in"):
        yield REGION.ok(f"{cluster.region} is enabled")
    else:
        yield REGION.fail(
            f"{cluster.region} is not enabled in this account (state {status})",
            "enable it in the console (Account, AWS Regions; minutes to hours), or change `region`",
        )


def check_bootstrap(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    qualifier = json.loads(CDK_SETTINGS.read_text())["context"].get(QUALIFIER, DEFAULT_QUALIFIER)
    command = "make bootstrap CLUSTER=<this file>"
    # `cdk bootstrap` writes this parameter.
    found = aws.find("ssm", "get_parameter", Name=f"/cdk-bootstrap/{qualifier}/version")
    if found is None:
        yield BOOTSTRAP.fail(
            f"account {aws.account} is not bootstrapped in {cluster.region} with the qualifier {qualifier}",
            f"run `{command}` once; if the account has another qualifier, set {QUALIFIER} in cdk.json",
        )
        return
    version = int(found["Parameter"]["Value"])
    if version < MIN_BOOTSTRAP_VERSION:
        yield BOOTSTRAP.fail(
            f"version {version}; {MIN_BOOTSTRAP_VERSION} is needed", f"run `{command}`"
        )
    else:
        yield BOOTSTRAP.ok(f"version {version}")


def check_roles(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    """Warn if the quota may be too low; the exact number of roles is known only after synthesis."""
    if is_deployed(aws, cluster, "hyperpod"):
        return
    summary = aws.call("iam", "get_account_summary")["SummaryMap"]
    most = MOST_ROLES[cluster.scheduler]
    used = summary["Roles"]
    quota = summary["RolesQuota"]
    message = f"up to {most} needed, {used:,} in use, the quota is {quota:,}"
    if used + most > quota:
        yield ROLES.warn(
            message,
            "delete unneeded roles, or request more for 'Roles per account' in Service Quotas, AWS "
            "Identity and Access Management (IAM), which is in us-east-1",
        )
    else:
        yield ROLES.ok(message)
