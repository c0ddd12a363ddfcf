"""Import the commit's training image as a file for Slurm's containers: ``python -m
tools.images.import_image``.

If the cluster's repository lacks the image, it is built and pushed. Then a worker converts it into a squashfs
file on the shared file system. The tool prints only the file's path to standard output; runs name it as
``IMAGE=``.
"""

import argparse
import getpass
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from config.cluster_files import DEFAULT_CLUSTER_FILE
from config.reading.loader import load_slurm_cluster
from config.slurm_cluster import SlurmCluster
from tools.command_line import Say, cluster_parser, run_command
from tools.images import build
from tools.images.container_engine import find_engine
from tools.images.image_registry import Repository, find_repository
from tools.images.source_revision import Revision, read_revision, require_clean
from tools.jobs.slurm.request import shared_files, worker_groups
from tools.json_output import add_json_option, publish
from tools.nodes.head_node import HeadNode, find_head_node
from tools.nodes.node_session import BrokenSession

ON_CLUSTER = Path(__file__).with_name("import_on_cluster.sh")
ENROOT_IMPORT = build.REPOSITORY / "docker" / "enroot_import.sh"
FOLDER = "images"
"""Default folder of image files, below the mount point of Lustre."""
MOST_CPUS = 4
"""Most CPUs of the job. As many processes unpack and pack layers; other CPUs stay free for training."""
REFERENCE = re.compile(
    r"[^/@\s]+/(?P<repository>[a-z0-9._/-]+):[\w.-]+@sha256:(?P<digest>[0-9a-f]{64})"
)


class Place(NamedTuple):
    """Share of a worker that runs the job."""

    partition: str
    num_cpus: int


@dataclass(frozen=True)
class ImportJob:
    """Slurm job that imports an image."""

    place: Place
    reference: str
    """``<registry>/<repository>:<tag>@sha256:<digest>``; older releases of enroot need the tag."""
    file: str
    """Squashfs file. Its name contains the digest, so it always contains the same image."""


def main() -> int:
    parser = cluster_parser(
        "Import the training image as a file on the shared file system, for pyxis."
    )
    build.add_build_options(parser)
    parser.add_argument(
        "--folder", help="folder on the shared file system (default: images/ on Lustre)"
    )
    parser.add_argument(
        "--partition",
        help="partition of the worker that converts the image (default: the first with GPUs)",
    )
    parser.add_argument(
        "--reference",
        metavar="REGISTRY/REPOSITORY:TAG@sha256:DIGEST",
        help="pushed image to import instead of this commit's; this machine does not contact the registry",
    )
    add_json_option(parser)
    options = parser.parse_args()
    framework = build.FRAMEWORKS[options.framework]
    cluster = load_slurm_cluster(options.cluster)
    folder = shared_folder(cluster, options.folder)
    place = find_place(cluster, options.partition)
    if reference := options.reference:
        job = ImportJob(place, reference, image_file(folder, reference))
        _import(find_head_node(cluster, options.profile), job, options.cluster)
        return 0
    revision = read_revision(build.REPOSITORY)
    require_clean(revision, instead=build.NOT_COMMITTED)
    # A build takes long, so everything that may be missing afterwards is looked up first.
    head = find_head_node(cluster, options.profile)
    repository = find_repository(cluster, options.profile)
    digest = _digest_in_registry(repository, revision, framework, options)
    reference = f"{repository.uri}:{build.registry_tag(revision, framework)}@{digest}"
    _import(head, ImportJob(place, reference, image_file(folder, reference)), options.cluster)
    # The scan runs during the import.
    print(repository.scan_summary(digest), file=sys.stderr)
    return 0


def shared_folder(cluster: SlurmCluster, wanted: str | None) -> str:
    """Return the folder of image files.

    Raises:
        ValueError: if the nodes do not share it, or its name has characters that make would interpret.
    """
    folder = str(PurePosixPath(wanted or f"{cluster.storage.shared_path}/{FOLDER}"))
    for problem in shared_files(cluster).folder_problems(folder):
        raise ValueError(problem)
    if not re.fullmatch(r"[\w./+-]+", folder):
        raise ValueError(f"--folder: got {folder}; allowed are letters, digits and . _ + - /")
    return folder


def find_place(cluster: SlurmCluster, wanted: str | None) -> Place:
    """Return the given partition, or the first one, with the CPUs that all its workers have.

    Raises:
        ValueError: if there is no such partition.
    """
    workers = worker_groups(cluster)
    groups = [group for group in workers if wanted in (None, group.partition)]
    if not groups:
        names = sorted({str(group.partition) for group in workers})
        raise ValueError(
            f"--partition: got {wanted}; the cluster file has {', '.join(names) or 'none'}"
        )
    partition = str(groups[0].partition)
    vcpus = [group.hardware.vcpus for group in groups if group.partition == partition]
    return Place(partition, min(MOST_CPUS, *vcpus))


def image_file(folder: str, reference: str) -> str:
    """Return the path of the squashfs file of an image.

    Raises:
        ValueError: unless the reference has both a tag and a digest.
    """
    parts = REFERENCE.fullmatch(reference)
    if not parts:
        raise ValueError(
            f"--reference: got {reference}; it must be <registry>/<repository>:<tag>@sha256:<64 hex digits>"
        )
    return f"{folder}/{parts['repository'].replace('/', '+')}+{parts['digest']}.sqsh"


def _digest_in_registry(
    repository: Repository,
    revision: Revision,
    framework: build.Framework,
    options: argparse.Namespace,
) -> str:
    """Return the digest of the commit's image; build and push the image if it is missing."""
    tag = build.registry_tag(revision, framework)
    name = f"{repository.uri}:{tag}"
    digest = repository.digest_of(tag)
    if digest:
        print(f"{name} is there already: not built again", file=sys.stderr)
        return digest
    try:
        engine = find_engine(options.engine)
    except ValueError as error:
        raise ValueError(
            f"{name} is not in the registry yet, and cannot be built here: {error}. Or run `make image push` "
            "on another machine, and this again"
        ) from None
    if options.engine_options or not engine.has_image(build.local_tag(revision, framework)):
        build.build_image(engine, build.REPOSITORY, revision, options.engine_options, framework)
    return build.push_image(repository, revision, framework, engine)


def _import(head: HeadNode, job: ImportJob, cluster_file: Path) -> None:
    """Run the import, and print the path of the file and the next command."""
    print(
        f"importing {job.reference} on a worker of partition {job.place.partition} ...",
        file=sys.stderr,
    )
    try:
        run_import(head, job, lambda line: print(line, file=sys.stderr, flush=True))
    except KeyboardInterrupt:
        print(
            "\nno longer watching; the import continues, and the same command waits for it. To end it, on "
            "the head node: sudo scancel --name=import-image",
            file=sys.stderr,
        )
        raise
    other = f" CLUSTER={cluster_file}" if cluster_file != DEFAULT_CLUSTER_FILE else ""
    print(f"next: make train-ddp TARGET=slurm{other} IMAGE={job.file}", file=sys.stderr)
    publish(file=job.file, image=job.reference)
    print(job.file, flush=True)


def run_import(head: HeadNode, job: ImportJob, say: Say) -> None:
    """Run the job to its end, as root.

    Raises:
        NoSession: if no session with the head node can be started.
        ValueError: if the file is missing afterwards, with the state of the import and a remedy.
    """
    arguments = [
        job.place.partition,
        str(job.place.num_cpus),
        job.reference,
        job.file,
        ENROOT_IMPORT.read_text(),
    ]
    try:
        if head.is_here:
            become_root = [] if os.geteuid() == 0 else ["sudo"]
            command = [
                *become_root,
                "bash",
                "-c",
                ON_CLUSTER.read_text(),
                ON_CLUSTER.name,
                *arguments,
            ]
            status = head.run(getpass.getuser(), command, say)
        else:
            status = head.run_as_root(ON_CLUSTER.read_text(), arguments, say)
    except BrokenSession as error:
        raise ValueError(
            f"{error}. Run the same command again: it waits for an import that still runs, and takes its file"
        ) from None
    if status:
        raise ValueError(
            f"{head.name}: {job.file} was not made (status {status}); the lines above say why. The image is "
            "in the registry: the same command continues from there"
        )


if __name__ == "__main__":
    run_command(main)
