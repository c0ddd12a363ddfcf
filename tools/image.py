"""Build the training image from the commit that is checked out: ``python -m tools.image``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.command_line import run_command
from tools.container_engine import ENGINES, ContainerEngine, find_engine
from tools.source_revision import Revision, build_context, read_revision, require_clean

REPOSITORY = Path(__file__).parents[1]
LOCAL_NAME = "esm2-training"
DOCKERFILE = Path("workloads/esm2/Dockerfile")
VERSIONS = Path("docker/versions.json")


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the training image, named by commit.")
    parser.add_argument("--engine", choices=ENGINES, help="the first one that works, if not given")
    parser.add_argument(
        "--allow-dirty", action="store_true", help="build what is not committed, as <commit>-dirty"
    )
    parser.add_argument("engine_options", nargs="*", help="after --: options of the engine's build command")
    options = parser.parse_args()
    revision = read_revision(REPOSITORY)
    if not options.allow_dirty:
        require_clean(revision, instead="give ARGS=--allow-dirty: such an image cannot be pushed")
    engine = find_engine(options.engine)
    tag = build_image(engine, REPOSITORY, revision, options.engine_options)
    print(tag)
    print("next: make push" if not revision.changes else "it cannot be pushed", file=sys.stderr)
    return 0


def build_image(
    engine: ContainerEngine, repository: Path, revision: Revision, options: Sequence[str] = ()
) -> str:
    """Build, and return the image's local name.

    The same commit gives the same arguments: nothing of them is of today or of this machine.

    Raises:
        ValueError: if the build fails.
    """
    tag = local_tag(revision)
    with build_context(repository, revision) as context:
        engine.build(
            context=context,
            dockerfile=context / DOCKERFILE,
            arguments={
                "BASE_IMAGE": base_image(context / VERSIONS),
                "GIT_SHA": revision.tag,
                "CREATED": revision.committed_at,
            },
            tag=tag,
            timestamp_seconds=revision.committed_at_seconds,
            options=options,
        )
    return tag


def local_tag(revision: Revision) -> str:
    return f"{LOCAL_NAME}:{revision.tag}"


def base_image(versions: Path) -> str:
    """By digest; the tag stands in the file for people, as buildah takes no reference with both."""
    base = json.loads(versions.read_text())["base"]
    return f"{base['image']}@{base['digest']}"


if __name__ == "__main__":
    run_command(main)
