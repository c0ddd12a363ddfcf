"""Links between Lustre and S3, which have to go before a bucket is emptied.

Ours import no deletions. One that someone else made or changed may, and then an object that is deleted from
the bucket takes its file with it.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

from botocore.exceptions import ClientError

from tools.aws_session import is_absent

POLL_SECONDS = 10.0
LIMIT_SECONDS = 3600.0
"""FSx first ends the imports and exports that are under way; it names no longest time."""


def unlink_buckets(fsx: Any, buckets: Collection[str]) -> list[str]:
    """Delete the data repository associations with any of these buckets; their files stay where they are.

    Returns the ids of the associations, when FSx no longer has them.

    Raises:
        ValueError: if FSx cannot delete one, or takes longer than an hour.
    """
    links = _links(fsx, buckets)
    for association_id, link in links.items():
        if link["Lifecycle"] != "DELETING":
            _delete(fsx, association_id)
    deadline = time.monotonic() + LIMIT_SECONDS
    while left := {key: link for key, link in _links(fsx, buckets).items() if key in links}:
        for association_id, link in left.items():
            if link["Lifecycle"] == "FAILED":
                reason = link.get("FailureDetails", {}).get("Message", "no reason given")
                raise ValueError(
                    f"data repository association {association_id} cannot be deleted: {reason}; nothing was "
                    "emptied; repair that and run `make teardown` again"
                )
        if time.monotonic() > deadline:
            raise ValueError(
                f"{', '.join(left)} still being deleted after {LIMIT_SECONDS / 3600:.0f} h; nothing was "
                "emptied; run `make teardown` again"
            )
        time.sleep(POLL_SECONDS)
    return list(links)


def _links(fsx: Any, buckets: Collection[str]) -> dict[str, dict[str, Any]]:
    """Associations with these buckets by id, whoever made them."""
    links: list[dict[str, Any]] = []
    token: dict[str, str] = {}
    while True:  # boto3 has no paginator for this operation
        page = fsx.describe_data_repository_associations(**token)
        links += page["Associations"]
        if not page.get("NextToken"):
            break
        token = {"NextToken": page["NextToken"]}
    return {
        link["AssociationId"]: link
        for link in links
        if link.get("DataRepositoryPath", "").removeprefix("s3://").partition("/")[0] in buckets
    }


def _delete(fsx: Any, association_id: str) -> None:
    try:
        fsx.delete_data_repository_association(AssociationId=association_id, DeleteDataInFileSystem=False)
    except ClientError as error:
        if not is_absent(error):
            raise
