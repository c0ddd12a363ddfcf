"""Data in buckets: export from Lustre, copy between buckets, and import into Lustre.

FSx keeps owner, group, permissions and time of each file in the metadata of its object, and a copy within S3
keeps the metadata. Objects are copied by ``aws s3 sync``: the copies stay within S3, only missing and changed
objects are copied, and the program is required for sessions anyway.
"""

import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from seqlm.training.strict_yaml import shown
from tools.migrate.record import Record
from tools.migrate.storage import Storage

EXPORT = "EXPORT_TO_REPOSITORY"
IMPORT = "IMPORT_METADATA_FROM_REPOSITORY"
POLL_SECONDS = 20.0
RUNNING = {"PENDING", "EXECUTING"}
MOST_SHOWN = 10
"""Most keys that a message names."""


@dataclass(frozen=True)
class BucketDifference:
    """Objects of the old bucket that the new one lacks, or has with another size."""

    num_objects: int
    """Number of objects in the old bucket."""
    missing: list[str]
    """Keys of the objects, in their order."""


def run_task(fsx: Any, record: Record, step: str, kind: str, storage: Storage) -> str:
    """Export or import the linked folder of a Lustre file system, and wait for the end.

    A task that an earlier call has started is waited for, and not started again.

    Returns: a sentence on the files.

    Raises:
        ValueError: if FSx ends the task otherwise, or could not treat all files.
    """
    assert storage.lustre
    path = storage.linked_path()
    assert path
    task_id = record.tasks.get(step)
    if task_id is None:
        created = fsx.create_data_repository_task(
            Type=kind,
            FileSystemId=storage.lustre.file_system_id,
            Paths=[path],
            Report={"Enabled": False},
        )
        task_id = created["DataRepositoryTask"]["TaskId"]
        record.start_task(step, task_id)
    while (task := _task(fsx, task_id))["Lifecycle"] in RUNNING:
        status = task.get("Status", {})
        print(
            f"  {step}: {status.get('SucceededCount', 0):,} of {status.get('TotalCount', 0):,} files",
            flush=True,
        )
        time.sleep(POLL_SECONDS)
    status = task.get("Status", {})
    # The next call starts another task.
    record.end_task(step)
    failed = status.get("FailedCount", 0)
    if task["Lifecycle"] != "SUCCEEDED" or failed:
        reason = task.get("FailureDetails", {}).get("Message", "")
        raise ValueError(
            f"{step}: task {task_id} of FSx is {task['Lifecycle']}, and {failed} files failed. "
            f"{shown(reason)} The log group /aws/fsx/<cluster>-lustre names them. Run this again to continue"
        )
    return f"{status.get('SucceededCount', 0):,} files"


def _task(fsx: Any, task_id: str) -> dict[str, Any]:
    found: dict[str, Any] = fsx.describe_data_repository_tasks(TaskIds=[task_id])[
        "DataRepositoryTasks"
    ][0]
    return found


def sync_command(source: Storage, target: Storage, *, profile: str | None) -> list[str]:
    """Return the command that copies missing and changed objects within S3."""
    command = [
        *("aws", "s3", "sync", f"s3://{source.bucket}", f"s3://{target.bucket}"),
        *("--source-region", source.region, "--region", target.region),
        *("--no-progress", "--only-show-errors"),
    ]
    return [*command, "--profile", profile] if profile else command


def copy_objects(source: Storage, target: Storage, *, profile: str | None) -> None:
    """Copy the objects of a bucket into another one.

    Raises:
        ValueError: if the aws command is missing, or fails.
    """
    command = sync_command(source, target, profile=profile)
    try:
        status = subprocess.run(command, check=False).returncode
    except FileNotFoundError:
        raise ValueError(
            "the aws command is missing; install AWS CLI version 2 (docs/deploy.md)"
        ) from None
    if status:
        raise ValueError(f"`{' '.join(command)}` ended with {status}. Run this again to continue")


def compare_buckets(
    source_s3: Any, target_s3: Any, source: Storage, target: Storage
) -> BucketDifference:
    """Compare names and sizes of all objects; both listings are read side by side, in S3's order of names."""
    present = _objects(target_s3, target.bucket)
    other = next(present, None)
    missing = []
    num_objects = 0
    for key, size in _objects(source_s3, source.bucket):
        num_objects += 1
        # S3 lists keys in the order of their bytes.
        while other is not None and other[0].encode() < key.encode():
            other = next(present, None)
        if other != (key, size):
            missing.append(key)
    return BucketDifference(num_objects, missing)


def _objects(s3: Any, bucket: str) -> Iterator[tuple[str, int]]:
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for found in page.get("Contents", []):
            yield found["Key"], found["Size"]


def named(keys: list[str]) -> str:
    """Return the first keys as text."""
    more = len(keys) - MOST_SHOWN
    return ", ".join(map(shown, keys[:MOST_SHOWN])) + (f" and {more:,} more" if more > 0 else "")
