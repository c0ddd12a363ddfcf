"""Contents of Studio's domain are deleted in the order that SageMaker requires."""

from __future__ import annotations

import time
from contextlib import redirect_stdout
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tools.answering_aws import AnsweringAws, Parameters
from tools.aws_session import aws_client
from tools.stacks import teardown
from tools.stacks.stack_contents import StackContents, StackResource
from tools.stacks.teardown import delete_studio_contents

DOMAIN = "d-0123456789ab"


def stack(*profiles: str, form: str = "{name}|{domain}") -> StackContents:
    def resource(kind: str, physical_id: str) -> StackResource:
        return StackResource(physical_id, f"AWS::SageMaker::{kind}", physical_id, "Delete", {})

    ids = [form.format(name=name, domain=DOMAIN) for name in profiles]
    made = [resource("Domain", DOMAIN), *(resource("UserProfile", one) for one in ids)]
    return StackContents("studio", "id", "CREATE_COMPLETE", tuple(made))


class Domain:
    """Deletions take one look to be over, and SageMaker refuses them out of order."""

    def __init__(self, *, stuck: bool = False) -> None:
        self.aws = AnsweringAws("us-west-2")
        self.apps = [
            {"DomainId": DOMAIN, "SpaceName": "mine", "AppType": "JupyterLab", "AppName": "default"}
        ]
        self.spaces = [{"DomainId": DOMAIN, "SpaceName": "mine"}]
        self.profiles = [{"DomainId": DOMAIN, "UserProfileName": name} for name in ("ada", "guest")]
        self._stuck = stuck
        for kind, key, found in (
            ("App", "Apps", self.apps),
            ("Space", "Spaces", self.spaces),
            ("UserProfile", "UserProfiles", self.profiles),
        ):
            self.aws.answer("sagemaker", f"List{kind}s", self._lists(key, found))
            self.aws.answer("sagemaker", f"Delete{kind}", self._deletes(found))

    def _lists(self, key: str, found: list[dict[str, Any]]) -> Any:
        def answer(parameters: Parameters) -> dict[str, Any]:
            assert parameters["DomainIdEquals"] == DOMAIN
            listed = [{"Status": "InService", **item} for item in found]
            if not self._stuck:
                found[:] = [item for item in found if item.get("Status") != "Deleting"]
            return {key: listed}

        return answer

    def _deletes(self, found: list[dict[str, Any]]) -> Any:
        def answer(parameters: Parameters) -> dict[str, Any]:
            assert found is self.apps or not self.apps, "apps go before their spaces"
            assert found is not self.profiles or not self.spaces, "spaces go before their owners"
            for item in found:
                if all(item[key] == value for key, value in parameters.items()):
                    item["Status"] = "Deleting"
            return {}

        return answer

    def delete(self, *profiles: str, **options: str) -> list[str]:
        """Return what is printed meanwhile."""
        client = aws_client(self.aws.session, "sagemaker")
        with redirect_stdout(StringIO()) as said:
            delete_studio_contents(client, stack(*profiles, **options))
        return [line.strip() for line in said.getvalue().splitlines()]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a clock of the module alone: threads of other tests need the real one."""
    clock = SimpleNamespace(sleep=lambda seconds: None, monotonic=time.monotonic)
    monkeypatch.setattr(teardown, "time", clock)


@pytest.mark.parametrize("form", ["{name}|{domain}", "{domain}|{name}"])
def test_all_goes_but_what_the_stack_deletes_itself(form: str) -> None:
    domain = Domain()
    assert domain.delete("ada", form=form) == [
        "deleting app mine of Studio",
        "deleting space mine of Studio",
        "deleting profile guest of Studio",
    ]
    assert (domain.apps, domain.spaces) == ([], [])
    assert [profile["UserProfileName"] for profile in domain.profiles] == ["ada"]


def test_an_empty_domain_needs_nothing() -> None:
    domain = Domain()
    domain.apps.clear()
    domain.spaces.clear()
    assert domain.delete("ada", "guest") == []


def test_what_goes_already_is_waited_for() -> None:
    domain = Domain()
    domain.apps[0]["Status"] = "Deleting"
    assert domain.delete("ada", "guest") == ["deleting space mine of Studio"]
    assert domain.apps == []


def test_reports_what_cannot_be_deleted() -> None:
    with pytest.raises(
        ValueError, match=f"1 apps of Studio's domain {DOMAIN} are still there after 15 min"
    ):
        Domain(stuck=True).delete()
