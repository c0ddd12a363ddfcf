"""Purchase of a plan or an extension: by a person, once, at the price that was shown.

The API has no client token. A purchase is therefore sent once, without botocore's retries. If no answer
comes, the account's plans show whether it took place.
"""

import os
import sys
from collections.abc import Callable
from decimal import Decimal, InvalidOperation

from botocore.exceptions import BotoCoreError, ClientError

from tools.aws_session import error_code, explain, is_absent, is_denied
from tools.training_plans.offerings import Offering
from tools.training_plans.plans import as_amount, as_days, as_time

CREATE_ACTIONS = (
    "sagemaker:CreateTrainingPlan",
    "sagemaker:CreateReservedCapacity",
    "sagemaker:AddTags",
)
"""IAM actions that AWS checks for a purchase (SageMaker developer guide, "IAM for SageMaker training
plans")."""
EXTEND_ACTIONS = ("sagemaker:ExtendTrainingPlan",)
NAME_IN_USE = "ResourceInUse"
SERVER_ERROR = 500
"""Lowest HTTP status with which the service may have carried out the request."""


def refuse_without_person() -> None:
    """Raise ValueError in CI and without a terminal, because a person has to see the amount."""
    if os.environ.get("CI"):
        raise ValueError(
            f"CI is set to {os.environ['CI']}: no pipeline buys a training plan; use a terminal"
        )
    if not sys.stdin.isatty():
        raise ValueError(
            "standard input is no terminal; a person types the amount, and no option replaces it. Repeat the "
            "command in a terminal"
        )


def explanation(offering: Offering, purpose: str, actions: tuple[str, ...]) -> str:
    """Return what users must know before they confirm.

    Args:
        offering: offering to buy.
        purpose: plan that is bought or extended, and its place.
        actions: IAM actions that the purchase needs.
    """
    return "\n".join(
        (
            purpose,
            f"  offering  {offering.offering_id}",
            f"  capacity  {offering.capacity}",
            f"  start     {as_time(offering.start) or 'not named'} UTC",
            f"  end       {as_time(offering.end) or 'not named'} UTC ({as_days(offering.hours)} days)",
            f"  amount    {as_amount(offering.amount, offering.currency)}",
            "AWS charges the amount now, with or without a cluster. A plan cannot be cancelled or changed.",
            f"The purchase needs the IAM action {actions[0]} (docs/capacity.md).",
        )
    )


def confirm(offering: Offering) -> None:
    """Raise ValueError unless a person types the amount."""
    if not offering.amount:
        raise ValueError(
            f"OFFERING: the service names no price for {offering.offering_id}; nothing was bought"
        )
    try:
        given = input(f"\nType the amount in {offering.currency or 'its currency'} to buy: ")
    except EOFError:
        given = ""
    if not _is_amount(given.strip(), offering.amount):
        raise ValueError(f"got '{given.strip()}', expected {offering.amount}; nothing was bought")


def check_unchanged(shown: Offering, now: Offering) -> None:
    """Raise ValueError if an offering has changed since it was shown."""
    if now == shown:
        return
    before = as_amount(shown.amount, shown.currency)
    after = as_amount(now.amount, now.currency)
    change = f"the amount is {after} instead of {before}"
    if after == before:
        change = f"it is now {now.capacity}, {as_time(now.start)} to {as_time(now.end)} UTC"
    raise ValueError(
        f"OFFERING: {shown.offering_id} has changed since it was shown: {change}. Nothing was bought; repeat "
        "the command to see it"
    )


def send_once(
    request: Callable[[], object], was_bought: Callable[[], bool], actions: tuple[str, ...]
) -> bool | None:
    """Send a purchase.

    Args:
        request: function that sends the purchase, without retries.
        was_bought: function that returns whether the account has the purchase; called if no answer came.
        actions: IAM actions that the purchase needs.

    Returns:
        True if it was bought, None if that is not known.

    Raises:
        ValueError: if the service refused the purchase, with the reason.
    """
    try:
        request()
        return True
    except ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] < SERVER_ERROR:
            raise ValueError(f"{_refusal(error, actions)}; nothing was bought") from None
        failure = explain(error)
    except BotoCoreError as error:
        failure = explain(error)
    print(f"the service gave no result: {failure}", file=sys.stderr)
    try:
        return True if was_bought() else None
    except (BotoCoreError, ClientError) as error:
        print(f"the account's plans cannot be read: {explain(error)}", file=sys.stderr)
        return None


def _is_amount(given: str, amount: str) -> bool:
    try:
        return Decimal(given) == Decimal(amount)
    except InvalidOperation:
        return given == amount


def _refusal(error: ClientError, actions: tuple[str, ...]) -> str:
    if is_denied(error):
        return (
            f"{explain(error)}. Have an administrator allow {', '.join(actions)} for your role "
            "(docs/capacity.md has the statement)"
        )
    if error_code(error) == NAME_IN_USE:
        return f"{explain(error)}. A plan of this name exists; make plans-list shows it"
    if is_absent(error):
        return f"{explain(error)}. The offering was sold or has expired: make plans-search"
    return explain(error)
