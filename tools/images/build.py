"""Build a training image from the checked-out commit: ``python -m tools.images.build``.

``--push`` pushes the built image to the cluster's repository. It prints only the image's reference by digest
to standard output. Runs name images by digest, because a digest always refers to the same image.
"""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from config.cluster_kinds import AnyCluster
from config.reading.loader import load_cluster
from tools.command_line import cluster_parser, run_command
from tools.images.container_engine import ENGINES, ContainerEngine, find_engine
from tools.images.image_registry import Repository, find_repository, registry_login
from tools.images.source_revision import Revision, build_context, read_revision, require_clean
from tools.json_output import add_json_option, publish

REPOSITORY = Path(__file__).parents[2]
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Framework:
    """Training software of an image."""

    local_name: str
    """Name of the image on this machine."""
    dockerfile: Path
    versions: Path
    """JSON file with the base image; all images use the EFA installer of docker/versions.json."""
    tag_suffix: str
    """End of the tag, after the commit, in the cluster's repository, which all images share."""


DEFAULT_FRAMEWORK = "esm2"
NEURON = "neuron"
FRAMEWORKS = {
    DEFAULT_FRAMEWORK: Framework(
        local_name="esm2-training",
        dockerfile=Path("workloads/Dockerfile"),
        versions=Path("docker/versions.json"),
        tag_suffix="",
    ),
    "bionemo": Framework(
        local_name="esm2-bionemo",
        dockerfile=Path("docker/bionemo/Dockerfile"),
        versions=Path("docker/bionemo/versions.json"),
        tag_suffix="-bionemo",
    ),
    NEURON: Framework(
        local_name="esm2-neuron",
        dockerfile=Path("docker/neuron/Dockerfile"),
        versions=Path("docker/neuron/versions.json"),
        tag_suffix="-neuron",
    ),
}
NOT_COMMITTED = "check out a commit: only committed images are pushed"


def main() -> int:
    parser = cluster_parser("Build the training image, named by commit, or push the built image.")
    add_build_options(parser)
    parser.add_argument(
        "--push",
        action="store_true",
        help="push the built image to the cluster's repository, and do not build",
    )
    parser.add_argument(
        "--allow-dirty",
        action="store_true",
        help="include uncommitted changes, and tag it <commit>-dirty",
    )
    add_json_option(parser)
    options = parser.parse_args()
    framework = FRAMEWORKS[options.framework]
    revision = read_revision(REPOSITORY)
    if options.push:
        require_clean(revision, instead=NOT_COMMITTED)
        _push(load_cluster(options.cluster), options, revision, framework)
        return 0
    if not options.allow_dirty:
        require_clean(revision, instead="give ARGS=--allow-dirty: such an image cannot be pushed")
    engine = find_engine(options.engine)
    name = build_image(engine, REPOSITORY, revision, options.engine_options, framework)
    publish(image=name, can_be_pushed=not revision.changes)
    print(name)
    print("next: make push" if not revision.changes else "it cannot be pushed", file=sys.stderr)
    return 0


def add_build_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--framework",
        choices=FRAMEWORKS,
        default=DEFAULT_FRAMEWORK,
        help="training software of the image (%(default)s)",
    )
    parser.add_argument(
        "--engine", choices=ENGINES, help="container engine (default: the first that works)"
    )
    parser.add_argument(
        "engine_options", nargs="*", help="options of the engine's build command, after --"
    )


def _push(
    cluster: AnyCluster, options: argparse.Namespace, revision: Revision, framework: Framework
) -> None:
    repository = find_repository(cluster, options.profile)
    name = f"{repository.uri}:{registry_tag(revision, framework)}"
    digest = repository.digest_of(registry_tag(revision, framework))
    if digest:
        # Tags are immutable: a second push of the same commit would be refused.
        print(f"{name} is there already", file=sys.stderr)
    else:
        digest = push_image(repository, revision, framework, find_engine(options.engine))
    print(repository.scan_summary(digest), file=sys.stderr)
    print(
        f'next, for Slurm: make image TARGET=slurm ARGS="--reference {name}@{digest}"',
        file=sys.stderr,
    )
    publish(image=f"{repository.uri}@{digest}", tag=registry_tag(revision, framework))
    print(f"{repository.uri}@{digest}")


def build_image(
    engine: ContainerEngine,
    repository: Path,
    revision: Revision,
    options: Sequence[str] = (),
    framework: Framework = FRAMEWORKS[DEFAULT_FRAMEWORK],
) -> str:
    """Build an image, and return its local name.

    The build arguments depend on the commit only, and not on the time or the machine.

    Raises:
        ValueError: if the build fails, or its base image is not pinned.
    """
    tag = local_tag(revision, framework)
    with build_context(repository, revision) as context:
        engine.build(
            context=context,
            dockerfile=context / framework.dockerfile,
            arguments={
                "BASE_IMAGE": base_image(context / framework.versions),
                "GIT_SHA": registry_tag(revision, framework),
                "CREATED": revision.committed_at,
            },
            tag=tag,
            timestamp_seconds=revision.committed_at_seconds,
            options=options,
        )
    return tag


def push_image(
    repository: Repository, revision: Revision, framework: Framework, engine: ContainerEngine
) -> str:
    """Push the built image of a commit, and return its digest.

    Raises:
        ValueError: if the engine lacks the image, or the registry rejects it.
    """
    tag = local_tag(revision, framework)
    remote_tag = registry_tag(revision, framework)
    target = f"{repository.uri}:{remote_tag}"
    if not engine.has_image(tag):
        raise ValueError(f"{engine.name} has no image {tag}; run make image first")
    login = registry_login(repository.ecr)
    with engine.logged_in(login.registry, user=login.user, password=login.password):
        engine.push(tag, target)
    digest = repository.digest_of(remote_tag)
    if not digest:
        raise ValueError(f"{target} was pushed, but the repository does not show it; try again")
    return digest


def local_tag(revision: Revision, framework: Framework) -> str:
    return f"{framework.local_name}:{revision.tag}"


def registry_tag(revision: Revision, framework: Framework) -> str:
    """Return the tag in the cluster's repository, which is also ``GIT_SHA`` in the image."""
    return f"{revision.tag}{framework.tag_suffix}"


def base_image(versions: Path) -> str:
    """Return the base image by digest.

    The tag in the file is for readers. It is left out, because buildah accepts no reference with tag and
    digest.

    Raises:
        ValueError: if the file has no digest.
    """
    base = json.loads(versions.read_text())["base"]
    if not DIGEST.fullmatch(base.get("digest") or ""):
        name = f"{base['image']}:{base['tag']}"
        raise ValueError(
            f"{versions.parent.name}/{versions.name}: base.digest is {base.get('digest')!r}; images are "
            "built on a base that cannot change, so put the digest there that this prints: "
            f"docker buildx imagetools inspect {name}"
        )
    return f"{base['image']}@{base['digest']}"


if __name__ == "__main__":
    run_command(main)
