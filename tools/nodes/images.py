"""Images of a cluster's nodes: which release runs in each group, and whether a newer one exists.

The same listing has the types of the nodes, which differ in groups with several types.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from tools.aws_session import all_items, explain
from tools.command_line import format_table
from tools.json_output import publish

UP_TO_DATE = "UpToDate"
NOT_REPORTED = "not reported"
"""Release and status of nodes with an image of the account, or of nodes that have not started."""


@dataclass(frozen=True)
class ImageUse:
    """Nodes of a group and type that run one image."""

    group: str
    instance_type: str
    release: str
    status: str
    """Status that the service reports, such as ``UpdateAvailable``."""
    num_nodes: int

    @property
    def is_stale(self) -> bool:
        return self.status not in (UP_TO_DATE, NOT_REPORTED)


def image_uses(sagemaker: Any, cluster_name: str) -> list[ImageUse]:
    """Return the images of a cluster's nodes by group, from one listing of the nodes."""
    summaries = all_items(
        sagemaker, "list_cluster_nodes", "ClusterNodeSummaries", ClusterName=cluster_name
    )
    counts = Counter(
        (
            summary["InstanceGroupName"],
            summary["InstanceType"],
            summary.get("CurrentImageReleaseVersion", NOT_REPORTED),
            summary.get("ImageVersionStatus", NOT_REPORTED),
        )
        for summary in summaries
    )
    return [ImageUse(*use, num_nodes) for use, num_nodes in sorted(counts.items())]


def images_report(sagemaker: Any, cluster_name: str) -> str:
    """Return the stale images and the types of groups with several as text, and publish all images.

    If they cannot be read, the text is the reason, because the report only adds to another one.
    """
    try:
        uses = image_uses(sagemaker, cluster_name)
    except (BotoCoreError, ClientError) as error:
        return f"images: cannot be read: {explain(error)}"
    publish(images=[asdict(use) for use in uses])
    lines = list(_stale_lines(uses))
    releases = {use.release for use in uses} - {NOT_REPORTED}
    if len(releases) > 1:
        lines.append(
            f"images: the nodes have {len(releases)} releases, {', '.join(sorted(releases))}. A new group "
            "starts with the image of the cluster's oldest group"
        )
    found = lines or ["images: none is reported as stale"]
    return "\n".join([*found, *_type_lines(uses)])


def _stale_lines(uses: Iterable[ImageUse]) -> Iterable[str]:
    stale = [use for use in uses if use.is_stale]
    if not stale:
        return
    yield "stale images:"
    rows = [[use.group, f"{use.num_nodes} node(s)", use.release, use.status] for use in stale]
    yield from (f"  {line}" for line in format_table(rows[0], rows[1:]).splitlines())
    groups = " ".join(sorted({use.group for use in stale}))
    yield f'  make patch GROUP="{groups}" installs the newest one; see docs/patching.md first'


def _type_lines(uses: Iterable[ImageUse]) -> Iterable[str]:
    """Yield the number of nodes of each type, for groups whose nodes have several types."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for use in uses:
        counts[use.group][use.instance_type] += use.num_nodes
    for group, count in counts.items():
        if len(count) > 1:
            numbers = ", ".join(f"{number} * {name}" for name, number in count.items())
            yield f"types of {group}: {numbers}"
