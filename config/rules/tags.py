"""Rules for tags that all services with resources of the cluster accept."""

import re
from collections.abc import Iterator
from functools import partial

from config.cluster import Cluster
from config.reading.violation import Violation, key_path
from config.resource_names import CLUSTER_TAG, PROJECT_TAG
from config.rules.rule import CommonRule

MAX_TAGS = 40
"""Most tags in a file. AWS allows 50 per resource; the rest is for tags of the stacks and the CDK."""
OUR_TAGS = (PROJECT_TAG, CLUSTER_TAG, "Name")
"""Tags that the stacks set themselves."""

# ECR's limits are the narrowest (CloudFormation schema of AWS::ECR::Repository). SSM documents also reject
# empty values.
_MAX_KEY = 127
"""Most characters of a key."""
_MAX_VALUE = 255
"""Most characters of a value."""
_TAG_TEXT = re.compile(r"[\w .:/=+\-@]*")
"""Characters of IAM's CreateRole. Space is the only separator, because a tag has no line breaks."""


def keys_are_free(cluster: Cluster) -> Iterator[Violation]:
    """Reject keys that differ only in case, because IAM's CreateRole treats them as the same key."""
    ours = {key.lower(): key for key in OUR_TAGS}
    seen: dict[str, str] = {}
    for key, value in cluster.tags.items():
        wrong = partial(Violation, key_path("tags", key), value)
        lower = key.lower()
        if lower.startswith("aws:"):
            yield wrong("AWS reserves keys that begin with aws:", "set another key")
        if lower in ours:
            yield wrong(
                f"the stacks set the tag {ours[lower]} themselves, and keys ignore case",
                "remove it or set another key",
            )
        elif lower in seen:
            allowed = f"IAM treats it as the key {seen[lower]}, because it ignores case"
            yield wrong(allowed, "remove one of the two")
        seen.setdefault(lower, key)


def texts_are_acceptable(cluster: Cluster) -> Iterator[Violation]:
    for key, value in cluster.tags.items():
        wrong = partial(Violation, key_path("tags", key))
        if not 1 <= len(key) <= _MAX_KEY:
            yield wrong(
                f"a key of {len(key)} characters",
                f"1 to {_MAX_KEY} are allowed",
                "set a key" if not key else "set a shorter key",
            )
        if not 1 <= len(value) <= _MAX_VALUE:
            yield wrong(
                f"a value of {len(value)} characters",
                f"1 to {_MAX_VALUE} are allowed",
                "set a value, or remove the tag" if not value else "set a shorter value",
            )
        if not (_TAG_TEXT.fullmatch(key) and _TAG_TEXT.fullmatch(value)):
            yield wrong(
                value,
                "letters, digits, spaces and _ . : / = + - @ are allowed",
                "set key and value of these characters",
            )


RULES = (
    # The services refuse a 51st tag when a resource is created (AWS General Reference, "Tag naming limits").
    CommonRule(
        "tags",
        lambda cluster: len(cluster.tags) > MAX_TAGS,
        f"at most {MAX_TAGS} are allowed: AWS takes 50 on a resource, and the stacks add their own",
        lambda cluster: f"remove {len(cluster.tags) - MAX_TAGS}",
        got=lambda cluster: f"{len(cluster.tags)} tags",
    ),
    keys_are_free,
    # The narrowest service of the stacks refuses others; constants above name it.
    texts_are_acceptable,
)
