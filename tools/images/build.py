"""Build a training image from the commit that is checked out: ``python -m tools.images.build``."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.command_line import run_command
from tools.images.container_engine import ENGINES, ContainerEngine, find_engine
from tools.images.source_revision import Revision, build_context, read_revision, require_clean

REPOSITORY = Path(__file__).parents[2]
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Framework:
    """What trains in an image."""

    local_name: str
    dockerfile: Path
    versions: Path
    """JSON with the base image; the EFA installer is that of docker/versions.json for all."""
    tag_suffix: str
    """After the commit, in the cluster's repository, which all images share."""


FRAMEWORKS = {
    "esm2": Framework("esm2-training", Path("workloads/esm2/Dockerfile"), Path("docker/versions.json"), ""),
    **{
        name: Framework(
            f"esm2-{name}",
            Path(f"docker/{name}/Dockerfile"),
            Path(f"docker/{name}/versions.json"),
            f"-{name}",
        )
        for name in ("bionemo", "neuron")
    },
}
DEFAULT_FRAMEWORK, NEURON = "esm2", "neuron"
FRAMEWORK_OF = {"train-bionemo": "bionemo", "convert-bionemo": "bionemo"}
"""Of stages that the default one's image has not got."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the training image, named by commit.")
    add_framework(parser)
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
    tag = build_image(engine, REPOSITORY, revision, options.engine_options, FRAMEWORKS[options.framework])
    print(tag)
    print("next: make push" if not revision.changes else "it cannot be pushed", file=sys.stderr)
    return 0


def add_framework(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--framework", choices=FRAMEWORKS, default=DEFAULT_FRAMEWORK, help=f"{DEFAULT_FRAMEWORK} if not given"
    )


def build_image(
    engine: ContainerEngine,
    repository: Path,
    revision: Revision,
    options: Sequence[str] = (),
    framework: Framework = FRAMEWORKS[DEFAULT_FRAMEWORK],
) -> str:
    """Build, and return the image's local name.

    The same commit gives the same arguments: nothing of them is of today or of this machine.

    Raises:
        ValueError: if the build fails, or its base is not pinned.
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


def local_tag(revision: Revision, framework: Framework) -> str:
    return f"{framework.local_name}:{revision.tag}"


def registry_tag(revision: Revision, framework: Framework) -> str:
    """In the cluster's repository; the image says the same of itself in its ``GIT_SHA``."""
    return f"{revision.tag}{framework.tag_suffix}"


def base_image(versions: Path) -> str:
    """By digest; the tag stands in the file for people, as buildah takes no reference with both.

    Raises:
        ValueError: if the file pins none.
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
