"""The functions that give Studio's profiles their partitions, against the APIs' own shapes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from functions.studio_partitions import index
from tests.functions.conftest import SESSION

DOMAIN = "d-0123456789ab"
FILE_SYSTEM = "fs-0123456789abcdef0"
QUEUE = "https://sqs.us-west-2.amazonaws.com/123456789012/requests.fifo"


def partition_of(name: str) -> dict[str, Any]:
    path = f"/studio/users/{name}"
    return {"FSxLustreFileSystemConfig": {"FileSystemId": FILE_SYSTEM, "FileSystemPath": path}}


PARTITION = partition_of("ada")
EFS = {"EFSFileSystemConfig": {"FileSystemId": "fs-01234567"}}


class Aws:
    """Answers what is expected of it, service by service."""

    def __init__(self, stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
        clients = {service: SESSION.client(service) for service in ("sagemaker", "sqs")}
        monkeypatch.setattr(boto3, "client", clients.__getitem__)
        self._stubs = {
            name: stack.enter_context(Stubber(client)) for name, client in clients.items()
        }

    def profile(self, name: str, status: str, *attached: Any) -> None:
        answer = {"Status": status, "UserSettings": {"CustomFileSystemConfigs": [*attached]}}
        asked = {"DomainId": DOMAIN, "UserProfileName": name}
        self._stubs["sagemaker"].add_response("describe_user_profile", answer, asked)

    def no_profile(self) -> None:
        self._stubs["sagemaker"].add_client_error("describe_user_profile", "ResourceNotFound")

    def profiles(self, **statuses: str) -> None:
        listed = [{"UserProfileName": name, "Status": status} for name, status in statuses.items()]
        self._stubs["sagemaker"].add_response(
            "list_user_profiles", {"UserProfiles": listed}, {"DomainIdEquals": DOMAIN}
        )

    def updates(self, name: str, *attached: Any) -> None:
        settings = {"CustomFileSystemConfigs": [*attached]}
        wanted = {"DomainId": DOMAIN, "UserProfileName": name, "UserSettings": settings}
        self._stubs["sagemaker"].add_response("update_user_profile", {}, wanted)

    def queues(self, action: str, profile: str, once: str, uids: list[int]) -> None:
        body = {"action": action, "domain": DOMAIN, "profile": profile, "uids": uids}
        wanted = {
            "QueueUrl": QUEUE,
            "MessageBody": json.dumps(body),
            "MessageGroupId": profile.lower(),
            "MessageDeduplicationId": once,
        }
        self._stubs["sqs"].add_response("send_message", {}, wanted)

    def was_asked_all(self) -> None:
        for stub in self._stubs.values():
            stub.assert_no_pending_responses()


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Aws]:
    for name, value in {
        "REQUESTS_URL": QUEUE,
        "DOMAIN_ID": DOMAIN,
        "FILE_SYSTEM_ID": FILE_SYSTEM,
        "FOLDER": "/studio/users",
        "REMOVAL": "destroy",
        "UIDS": json.dumps({"ada": [2001], "": [10001]}),
    }.items():
        monkeypatch.setenv(name, value)
    with ExitStack() as stack:
        aws = Aws(stack, monkeypatch)
        yield aws
        aws.was_asked_all()


def event(name: str, profile: str, domain: str = DOMAIN) -> dict[str, Any]:
    """Return an event as CloudTrail sends it through EventBridge."""
    parameters = {"domainId": domain, "userProfileName": profile}
    return {
        "id": "e-1",
        "detail-type": "AWS API Call via CloudTrail",
        "detail": {"eventName": name, "eventID": "t-1", "requestParameters": parameters},
    }


def said(*profiles: str, action: str = "make", domain: str = DOMAIN) -> dict[str, Any]:
    return {
        "Records": [
            {
                "messageId": f"m-{name}",
                "body": json.dumps({"action": action, "profile": name, "domain": domain}),
            }
            for name in profiles
        ]
    }


CLOCK = {"id": "c-1", "detail-type": "Scheduled Event", "detail": {}}


def test_a_new_profile_is_queued_with_its_user(aws: Aws) -> None:
    aws.queues("make", "Ada", "t-1", [2001, 10001])
    index.request(event("CreateUserProfile", "Ada"), None)


def test_a_profile_of_no_user_is_queued_too(aws: Aws) -> None:
    aws.queues("make", "guest", "t-1", [10001])
    index.request(event("CreateUserProfile", "guest"), None)


def test_other_domains_are_not_ours(aws: Aws) -> None:
    index.request(event("CreateUserProfile", "ada", domain="d-9"), None)


def test_a_deleted_profile_loses_its_partition_if_the_file_says_so(
    aws: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws.queues("remove", "guest", "t-1", [10001])
    index.request(event("DeleteUserProfile", "guest"), None)
    monkeypatch.setenv("REMOVAL", "retain")
    index.request(event("DeleteUserProfile", "guest"), None)


def test_the_clock_finds_who_was_forgotten(aws: Aws) -> None:
    aws.profiles(ada="InService", ben="InService", new="Pending", leaving="Deleting")
    aws.profile("ada", "InService", PARTITION)
    aws.profile("ben", "InService")
    aws.queues("make", "ben", "c-1-ben", [10001])
    index.request(CLOCK, None)


@pytest.mark.parametrize("status", ["InService", "Update_Failed"])
def test_a_partition_is_shown_to_its_profile_beside_what_it_has(aws: Aws, status: str) -> None:
    aws.profile("ada", status, EFS)
    aws.updates("ada", EFS, PARTITION)
    assert index.attach(said("ada"), None) == {"batchItemFailures": []}


def test_another_place_of_the_same_file_system_is_replaced(aws: Aws) -> None:
    elsewhere = {"FSxLustreFileSystemConfig": {"FileSystemId": FILE_SYSTEM, "FileSystemPath": "/"}}
    aws.profile("ada", "InService", elsewhere)
    aws.updates("ada", PARTITION)
    index.attach(said("ada"), None)


def test_what_is_attached_is_left_alone(aws: Aws) -> None:
    aws.profile("ada", "InService", PARTITION)
    assert index.attach(said("ada"), None) == {"batchItemFailures": []}


@pytest.mark.parametrize("status", ["Pending", "Updating"])
def test_a_profile_that_is_not_ready_is_retried_and_delays_no_other(aws: Aws, status: str) -> None:
    aws.profile("ada", status)
    aws.profile("Ben", "InService")
    aws.updates("Ben", partition_of("ben"))
    assert index.attach(said("ada", "Ben"), None) == {
        "batchItemFailures": [{"itemIdentifier": "m-ada"}]
    }


def test_who_is_gone_needs_nothing(aws: Aws) -> None:
    aws.no_profile()
    aws.profile("ben", "Deleting")
    assert index.attach(said("ada", "ben"), None) == {"batchItemFailures": []}


def test_removals_and_other_domains_are_nothing_to_attach(aws: Aws) -> None:
    assert index.attach(said("ada", action="remove"), None) == {"batchItemFailures": []}
    assert index.attach(said("ada", domain="d-9"), None) == {"batchItemFailures": []}
