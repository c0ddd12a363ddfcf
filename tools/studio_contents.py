"""What people have made in a domain of Studio, and what must be gone before the domain can be deleted."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tools.stack_contents import StackContents

SECONDS_TO_GO = 900
SECONDS_BETWEEN_LOOKS = 10
GONE = "Deleted"


def delete_studio_contents(
    sagemaker: Any,
    stack: StackContents,
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Delete what runs in a domain, its spaces with their disks, and profiles that are no part of the stack.

    Raises:
        TimeoutError: if something does not go.
    """
    # The registry's schema and the documentation differ in whether the name or the domain comes first.
    own = {
        part for one in stack.of_type("AWS::SageMaker::UserProfile") for part in one.physical_id.split("|")
    }
    for domain in stack.of_type("AWS::SageMaker::Domain"):
        if domain.physical_id:
            _Contents(sagemaker, domain.physical_id, say, sleep).delete(own)


class _Contents:
    def __init__(
        self, sagemaker: Any, domain_id: str, say: Callable[[str], None], sleep: Callable[[float], None]
    ) -> None:
        self._sagemaker, self._domain_id, self._say, self._sleep = sagemaker, domain_id, say, sleep

    def delete(self, own: set[str]) -> None:
        self._empty("app", "list_apps", "Apps", self._delete_app)
        self._empty("space", "list_spaces", "Spaces", self._delete_space)
        self._empty(
            "profile",
            "list_user_profiles",
            "UserProfiles",
            self._delete_profile,
            skip=lambda found: found["UserProfileName"] in own,
        )

    def _delete_app(self, app: dict[str, Any]) -> str:
        keys = ("SpaceName", "UserProfileName", "AppType", "AppName")
        self._sagemaker.delete_app(
            DomainId=self._domain_id, **{key: app[key] for key in keys if app.get(key)}
        )
        return str(app.get("SpaceName") or app.get("UserProfileName"))

    def _delete_space(self, space: dict[str, Any]) -> str:
        self._sagemaker.delete_space(DomainId=self._domain_id, SpaceName=space["SpaceName"])
        return str(space["SpaceName"])

    def _delete_profile(self, profile: dict[str, Any]) -> str:
        name = str(profile["UserProfileName"])
        self._sagemaker.delete_user_profile(DomainId=self._domain_id, UserProfileName=name)
        return name

    def _empty(
        self,
        kind: str,
        operation: str,
        key: str,
        delete: Callable[[dict[str, Any]], str],
        skip: Callable[[dict[str, Any]], bool] = lambda found: False,
    ) -> None:
        """Delete all of a kind once, and wait until they are gone."""

        def there() -> list[dict[str, Any]]:
            pages = self._sagemaker.get_paginator(operation).paginate(DomainIdEquals=self._domain_id)
            found = [item for page in pages for item in page[key]]
            return [item for item in found if item["Status"] != GONE and not skip(item)]

        for item in there():
            if item["Status"] != "Deleting":
                self._say(f"deleting {kind} {delete(item)} of Studio")
        waited = 0.0
        while left := there():
            if waited >= SECONDS_TO_GO:
                raise TimeoutError(
                    f"{len(left)} {kind}s of Studio's domain {self._domain_id} are still there after"
                    f" {waited / 60:.0f} minutes: see them in SageMaker's console, then run this again"
                )
            self._sleep(SECONDS_BETWEEN_LOOKS)
            waited += SECONDS_BETWEEN_LOOKS
