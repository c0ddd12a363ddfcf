"""Boto3 sessions and clients of the tools, and explanations of AWS errors for the user."""

import re
from collections.abc import Callable
from typing import Any, TypeVar, cast

import boto3
from botocore import exceptions
from botocore.config import Config

T = TypeVar("T")
CLIENT_CONFIG = Config(
    retries={"mode": "standard", "max_attempts": 6}, connect_timeout=10, read_timeout=60
)
"""Settings of all clients. Service Quotas and SageMaker throttle long listings; six attempts wait up to about
half a minute."""
SENT_ONCE = CLIENT_CONFIG.merge(Config(retries={"mode": "standard", "total_max_attempts": 1}))
"""Settings of a client whose requests must not be repeated, such as purchases."""

LONGEST = 400
"""Most characters of an error message; a proxy can respond with a whole page."""
EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired"}
"""Error codes for expired credentials."""
UNKNOWN_KEY = {
    "InvalidClientTokenId",
    "UnrecognizedClientException",
    "AuthFailure",
    "SignatureDoesNotMatch",
}
"""Error codes for invalid credentials."""
ABSENT = re.compile(r"NotFound|NoSuch|^Invalid(AMIID|SubnetI[Dd]|VpcI[Dd]|Document)\b|^404$")
"""Error codes for a resource that does not exist, or whose id cannot exist."""
SAYS_ABSENT = re.compile(r"does not exist|could not find|not found", re.IGNORECASE)
"""Messages of CloudFormation and SageMaker about such a resource. Their error code is the same for any
invalid parameter."""
INVALID = ("ValidationError", "ValidationException")
"""Error codes for any invalid parameter."""
NOT_ALLOWED = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "403"}
"""Error codes for a missing permission."""


def open_session(*, region: str, profile: str | None = None) -> boto3.Session:
    """Open a session in the cluster's region with the credentials that the aws command would use.

    Raises:
        ValueError: if the profile does not exist.
    """
    try:
        return boto3.Session(profile_name=profile, region_name=region)
    except exceptions.ProfileNotFound as error:
        existing = ", ".join(boto3.Session().available_profiles) or "none"
        raise ValueError(f"{error}; existing profiles: {existing}") from None


def require_credentials(session: boto3.Session) -> None:
    """Raise NoCredentialsError if there are no credentials.

    The CDK reports this less clearly, and only after a synthesis.
    """
    if session.get_credentials() is None:
        raise exceptions.NoCredentialsError


def aws_client(session: boto3.Session, service: str, config: Config = CLIENT_CONFIG) -> Any:
    # boto3's stubs type one overload per service name, and none for a name in a variable.
    return cast(Any, session).client(service, config=config)


def all_items(client: Any, operation: str, key: str, **parameters: Any) -> list[Any]:
    """Return the items under ``key`` of all pages of an operation."""
    pages = client.get_paginator(operation).paginate(**parameters)
    return [item for page in pages for item in page.get(key, [])]


def error_code(error: exceptions.ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def is_denied(error: exceptions.ClientError) -> bool:
    """Return whether the caller lacks the permission (a missing resource is another error)."""
    return error_code(error) in NOT_ALLOWED


def is_absent(error: exceptions.ClientError) -> bool:
    """Return whether the requested resource does not exist."""
    code = error_code(error)
    message = str(error.response.get("Error", {}).get("Message", ""))
    if ABSENT.search(code):
        return True
    return code in INVALID and bool(SAYS_ABSENT.search(message))


def if_present(call: Callable[..., T], *arguments: Any, **parameters: Any) -> T | None:
    """Return what a call to AWS returns, or None if the resource does not exist."""
    try:
        return call(*arguments, **parameters)
    except exceptions.ClientError as error:
        if is_absent(error):
            return None
        raise


def has_expired(error: exceptions.BotoCoreError | exceptions.ClientError) -> bool:
    """Return whether the credentials have expired, so that no later call can succeed."""
    if isinstance(error, exceptions.ClientError):
        return error_code(error) in EXPIRED
    return isinstance(error, exceptions.SSOError | exceptions.TokenRetrievalError)


def explain(error: exceptions.BotoCoreError | exceptions.ClientError) -> str:
    """Return the cause of an error and its remedy, in one or two sentences."""
    if isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
        return "no AWS credentials found; run `aws configure sso` (or `aws configure`), or name a profile"
    if isinstance(error, exceptions.SSOError | exceptions.TokenRetrievalError):
        return "the sign-in has expired; run `aws sso login` (with --profile if you use one) and try again"
    if isinstance(error, exceptions.EndpointConnectionError):
        return f"{error}; check the network and the name of the region"
    code = error_code(error) if isinstance(error, exceptions.ClientError) else ""
    if code in EXPIRED:
        return "the credentials have expired; sign in again (`aws sso login`, or new keys) and try again"
    if code in UNKNOWN_KEY:
        return (
            f"AWS does not accept the credentials in this region ({code}): the keys are wrong or deleted, "
            "or the account has not enabled the region (Account settings, AWS Regions)"
        )
    return " ".join(str(error).split())[:LONGEST]
