"""Image of a Kubernetes job: this commit's, or a check of the one given."""

import re

from botocore.exceptions import BotoCoreError, ClientError

from config.eks_cluster import EksCluster
from config.resource_names import ResourceNames
from tools.aws_session import is_denied
from tools.images.build import DEFAULT_FRAMEWORK, FRAMEWORKS, REPOSITORY, registry_tag
from tools.images.image_registry import find_repository
from tools.images.source_revision import has_package, read_revision


def commit_image(
    cluster: EksCluster, profile: str | None, framework: str = DEFAULT_FRAMEWORK
) -> str:
    """Return the image of the commit that is checked out, by digest.

    Args:
        cluster: cluster file.
        profile: name of the caller's AWS profile.
        framework: key of ``FRAMEWORKS``.

    Raises:
        ValueError: if the cluster's repository has none.
    """
    revision = read_revision(REPOSITORY)
    if revision.changes:
        raise ValueError(
            "IMAGE: the code here is not committed, so no image has it; commit it, then make image push, "
            "or name an image with IMAGE="
        )
    repository = find_repository(cluster, profile)
    digest = repository.digest_of(registry_tag(revision, FRAMEWORKS[framework]))
    if digest is None:
        wanted = "" if framework == DEFAULT_FRAMEWORK else f" FRAMEWORK={framework}"
        raise ValueError(
            f"IMAGE: {repository.uri} has no{wanted} image of commit {revision.sha[:12]}; make image "
            f"push{wanted}, or name another one with IMAGE="
        )
    return f"{repository.uri}@{digest}"


FILL_IN = "fill-in.invalid/"
"""Registry of a placeholder. No host name ends in ``.invalid``, so pods with it never start."""


def image_or_placeholder(cluster: EksCluster, profile: str | None, framework: str) -> str:
    """Return the commit's image, or a placeholder for files that are written without AWS."""
    try:
        return commit_image(cluster, profile, framework)
    except (ValueError, BotoCoreError, ClientError):
        return f"{FILL_IN}{ResourceNames(cluster).image_repository}@sha256:{'0' * 64}"


def image_note(cluster: EksCluster, image: str, profile: str | None) -> str | None:
    """Return a note about an image for the submitter; None if it is this commit's.

    Raises:
        ValueError: if it is of the cluster's own repository, which has no such digest, or if its code is of a
            commit before the package was called ``seqlm``, so that the job could not start.
    """
    name, _, digest = image.partition("@")
    uri = re.sub(r":[\w.-]+$", "", name)
    try:
        repository = find_repository(cluster, profile)
        if uri != repository.uri:
            return f"{uri} is not the cluster's repository; whether it has the image, the nodes will see"
        tags = repository.tags_of(digest)
    except ClientError as error:
        if not is_denied(error):
            raise
        return "the repository may not be read (ecr:Describe*); the nodes will find out if it has the image"
    if tags is None:
        raise ValueError(
            f"IMAGE: {uri} has no image {digest}; make push prints the one of a commit"
        )
    here = read_revision(REPOSITORY)
    commits = [tag.partition("-")[0] for tag in tags]
    if here.tag in commits:
        return None
    for commit in commits:
        if has_package(REPOSITORY, commit) is False:
            raise ValueError(
                f"IMAGE: {image} has the code of commit {commit[:12]}, which has no package seqlm; check "
                "that commit out to submit it, or use this commit's image: make image push, and leave IMAGE= "
                "out"
            )
    return (
        f"the image has the code of commit {', '.join(tag[:12] for tag in tags) or 'unknown'}, this checkout "
        f"is {here.sha[:12]}{' with changes' if here.changes else ''}; what runs is the image's"
    )
