"""Give profiles of a SageMaker Studio domain their partitions of the cluster's Lustre file system.

Lambda cannot mount Lustre, so a worker on the cluster creates and removes partitions. ``request`` receives
events about created and deleted profiles, and queues requests for the worker. ``attach`` receives the
worker's acknowledgements, and attaches partitions to their profiles.

Events need a trail of CloudTrail and can be lost. So ``request`` is also called at intervals, and then looks
for profiles without a partition.
"""

import json
import os
from typing import Any

import boto3

MAKE = "make"
"""Action of the worker that creates a partition."""
REMOVE = "remove"
"""Action of the worker that removes a partition."""
ACTIONS = {"CreateUserProfile": MAKE, "DeleteUserProfile": REMOVE}
"""Actions by event of CloudTrail."""
CHANGEABLE = ("InService", "Update_Failed")
"""States of profiles that can be updated."""
GONE = ("Deleting", "Delete_Failed")
"""States of profiles that need no partition any more."""

Event = dict[str, Any]


def request(event: Event, _context: object) -> None:
    """Queue requests for an event of CloudTrail, or for all profiles without a partition.

    Environment variables are:

    * ``REQUESTS_URL``: queue of requests.
    * ``DOMAIN_ID`` and ``FILE_SYSTEM_ID``: Studio's domain and the Lustre file system.
    * ``FOLDER``: folder of all partitions.
    * ``REMOVAL``: retain or destroy.
    * ``UIDS``: JSON with the ids of the cluster users that share a profile's partition, by profile. The
      users under "" share all partitions.
    """
    detail = event.get("detail", {})
    if "eventName" not in detail:
        for name in _without_partition():
            _queue(MAKE, name, f"{event['id']}-{name}")
        return
    parameters = detail["requestParameters"]
    if parameters["domainId"] != os.environ["DOMAIN_ID"]:
        return
    action = ACTIONS[detail["eventName"]]
    if action == MAKE or os.environ["REMOVAL"] == "destroy":
        _queue(action, parameters["userProfileName"], detail["eventID"])


def attach(event: Event, _context: object) -> Event:
    """Attach new partitions to their profiles.

    A message about a profile that cannot be changed yet is returned as a failure, so that it is delivered
    again.
    """
    failures: list[Event] = []
    for record in event["Records"]:
        acknowledged = json.loads(record["body"])
        if acknowledged["action"] != MAKE or acknowledged["domain"] != os.environ["DOMAIN_ID"]:
            continue
        if not _attach(acknowledged["profile"]):
            failures.append({"itemIdentifier": record["messageId"]})
    return {"batchItemFailures": failures}


def partition(profile: str) -> Event:
    """Return the configuration of a profile's partition; the folder's name is in lower case."""
    path = f"{os.environ['FOLDER']}/{profile.lower()}"
    return {
        "FSxLustreFileSystemConfig": {
            "FileSystemId": os.environ["FILE_SYSTEM_ID"],
            "FileSystemPath": path,
        }
    }


def _attach(profile: str) -> bool:
    """Attach a profile's partition, and return whether the profile has it or is gone."""
    client = boto3.client("sagemaker")
    key = {"DomainId": os.environ["DOMAIN_ID"], "UserProfileName": profile}
    try:
        found = client.describe_user_profile(**key)
    except client.exceptions.ResourceNotFound:
        return True
    if found["Status"] in GONE:
        return True
    attached = found.get("UserSettings", {}).get("CustomFileSystemConfigs", [])
    wanted = partition(profile)
    if wanted in attached:
        return True
    if found["Status"] not in CHANGEABLE:
        print(f"profile {profile} has status {found['Status']}, and is tried again later")
        return False
    # A profile can have only one folder of a file system, so a folder that was set otherwise is replaced.
    others = [config for config in attached if _file_system(config) != _file_system(wanted)]
    client.update_user_profile(**key, UserSettings={"CustomFileSystemConfigs": [*others, wanted]})
    print(f"profile {profile} has {wanted['FSxLustreFileSystemConfig']['FileSystemPath']}")
    return True


def _file_system(config: Event) -> Any:
    """Return the id of a configuration's file system; None for other kinds."""
    return config.get("FSxLustreFileSystemConfig", {}).get("FileSystemId")


def _without_partition() -> list[str]:
    """Return the names of profiles without a partition."""
    client = boto3.client("sagemaker")
    domain = os.environ["DOMAIN_ID"]
    pages = client.get_paginator("list_user_profiles").paginate(DomainIdEquals=domain)
    without: list[str] = []
    for profile in [profile for page in pages for profile in page["UserProfiles"]]:
        name = profile["UserProfileName"]
        if profile["Status"] not in CHANGEABLE:
            continue
        found = client.describe_user_profile(DomainId=domain, UserProfileName=name)
        if partition(name) not in found.get("UserSettings", {}).get("CustomFileSystemConfigs", []):
            without.append(name)
    return without


def _queue(action: str, profile: str, request_id: str) -> None:
    """Send a request to the worker; requests with the same id are sent once."""
    uids = json.loads(os.environ["UIDS"])
    body = {
        "action": action,
        "profile": profile,
        "domain": os.environ["DOMAIN_ID"],
        "uids": uids.get(profile.lower(), []) + uids.get("", []),
    }
    boto3.client("sqs").send_message(
        QueueUrl=os.environ["REQUESTS_URL"],
        MessageBody=json.dumps(body, sort_keys=True),
        # Requests for a profile keep their order, so that a profile that is created again right after its
        # deletion keeps its partition.
        MessageGroupId=profile.lower(),
        # Lambda may handle an event more than once.
        MessageDeduplicationId=request_id,
    )
    print(f"{action} {profile}: queued")
