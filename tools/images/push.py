"""Push the training image to the cluster's repository: ``python -m tools.images.push``.

Standard output is the reference by digest alone, which is what runs name: it never comes to mean another
image. What there is to know besides goes to standard error.
"""

from __future__ import annotations

import sys
from typing import Any

from config.reading.loader import load_cluster
from config.resource_names import image_repository
from tools.aws_session import aws_client, open_session
from tools.command_line import cluster_parser, run_command
from tools.images.build import FRAMEWORKS, REPOSITORY, Framework, add_framework, local_tag, registry_tag
from tools.images.container_engine import ENGINES, ContainerEngine, find_engine
from tools.images.image_registry import Repository, digest_of, find_repository, registry_login, scan_summary
from tools.images.source_revision import Revision, read_revision, require_clean

NOT_COMMITTED = "check out a commit: only committed images are pushed"


def main() -> int:
    parser = cluster_parser("Push the training image of the commit that is checked out.")
    add_framework(parser)
    parser.add_argument("--engine", choices=ENGINES, help="the first one that works, if not given")
    options = parser.parse_args()
    framework = FRAMEWORKS[options.framework]
    cluster = load_cluster(options.cluster)
    revision = read_revision(REPOSITORY)
    require_clean(revision, instead=NOT_COMMITTED)
    ecr = aws_client(open_session(region=cluster.region, profile=options.profile), "ecr")
    repository = find_repository(ecr, image_repository(cluster))
    uri = repository.uri
    tag = registry_tag(revision, framework)
    digest = digest_of(ecr, repository, tag)
    if digest:
        # Tags are immutable: a second push of the same commit would be refused.
        print(f"{uri}:{tag} is there already", file=sys.stderr)
    else:
        digest = push_image(ecr, repository, revision, framework, find_engine(options.engine))
    print(scan_summary(ecr, repository, digest), file=sys.stderr)
    reference = f"{uri}:{tag}@{digest}"
    print(f'next, for Slurm: make image TARGET=slurm ARGS="--reference {reference}"', file=sys.stderr)
    print(f"{uri}@{digest}")
    return 0


def push_image(
    ecr: Any, repository: Repository, revision: Revision, framework: Framework, engine: ContainerEngine
) -> str:
    """Push the image of a commit, which the engine has; returns its digest.

    Raises:
        ValueError: if the engine has not got it, or the registry does not take it.
    """
    registered = registry_tag(revision, framework)
    tag, target = local_tag(revision, framework), f"{repository.uri}:{registered}"
    if not engine.has_image(tag):
        raise ValueError(f"{engine.name} has no image {tag}; run make image first")
    login = registry_login(ecr)
    with engine.logged_in(login.registry, user=login.user, password=login.password):
        engine.push(tag, target)
    digest = digest_of(ecr, repository, registered)
    if not digest:
        raise ValueError(f"{target} was pushed, but the repository does not show it; try again")
    return digest


if __name__ == "__main__":
    run_command(main)
