"""Gives profiles of a SageMaker Studio domain partitions of the cluster's Lustre file system.

Lambda cannot mount Lustre. ``request`` hears of profiles that are made and deleted, and queues what is to be
done for something that can; ``attach`` hears that it is done, and shows the partition to the profile. Without
a trail of CloudTrail there are no events, and one may get lost: ``request`` also comes by the clock, and
looks for profiles that have none.
"""

import json
import os
from typing import Any

import boto3

MAKE, REMOVE = "make", "remove"
ACTIONS = {"CreateUserProfile": MAKE, "DeleteUserProfile": REMOVE}
READY = ("InService", "Update_Failed")
GONE = ("Deleting", "Delete_Failed")

Event = dict[str, Any]


def request(event: Event, _context: object) -> None:
    """Queue what an event of CloudTrail, or the clock, asks for.

    The environment has ``REQUESTS_URL``, ``DOMAIN_ID``, ``FILE_SYSTEM_ID``, ``FOLDER`` of all partitions,
    ``REMOVAL`` (retain or destroy), and in ``UIDS`` as JSON the users of the cluster who share a profile's
    partition, by profile; those under "" share all.
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
    """Show partitions that were made to their profiles; messages that it is too early for come again."""
    failures = []
    for record in event["Records"]:
        said = json.loads(record["body"])
        if said["action"] != MAKE or said["domain"] != os.environ["DOMAIN_ID"]:
            continue
        if not _attach(said["profile"]):
            failures.append({"itemIdentifier": record["messageId"]})
    return {"batchItemFailures": failures}


def partition(profile: str) -> Event:
    """Return the path of a profile's partition below the file system's root, in lower case."""
    path = f"{os.environ['FOLDER']}/{profile.lower()}"
    return {
        "FSxLustreFileSystemConfig": {"FileSystemId": os.environ["FILE_SYSTEM_ID"], "FileSystemPath": path}
    }


def _attach(profile: str) -> bool:
    """Whether the profile has its partition, or is gone."""
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
    if found["Status"] not in READY:
        print(f"profile {profile} is {found['Status']}: later")
        return False
    # Of one file system a profile has one place: another one was set by hand, or before this.
    others = [config for config in attached if _file_system(config) != _file_system(wanted)]
    client.update_user_profile(**key, UserSettings={"CustomFileSystemConfigs": [*others, wanted]})
    print(f"profile {profile} has {wanted['FSxLustreFileSystemConfig']['FileSystemPath']}")
    return True


def _file_system(config: Event) -> Any:
    return config.get("FSxLustreFileSystemConfig", {}).get("FileSystemId")


def _without_partition() -> list[str]:
    client, domain = boto3.client("sagemaker"), os.environ["DOMAIN_ID"]
    pages = client.get_paginator("list_user_profiles").paginate(DomainIdEquals=domain)
    without = []
    for profile in [profile for page in pages for profile in page["UserProfiles"]]:
        name = profile["UserProfileName"]
        if profile["Status"] in READY:
            found = client.describe_user_profile(DomainId=domain, UserProfileName=name)
            if partition(name) not in found.get("UserSettings", {}).get("CustomFileSystemConfigs", []):
                without.append(name)
    return without


def _queue(action: str, profile: str, once: str) -> None:
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
        # In order for each profile: one that is made again right after its end is not removed later.
        MessageGroupId=profile.lower(),
        # An event that Lambda tries again is no other one.
        MessageDeduplicationId=once,
    )
    print(f"{action} {profile}: queued")
