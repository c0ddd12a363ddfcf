"""Entry script of new nodes, at an address that stays the same when the scripts change."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from constructs import Construct, IDependable
from constructs.storage.hashed_upload import HashedUpload

FETCH_AND_RUN = Path(__file__).parents[2] / "lifecycle" / "slurm" / "run_from_s3.sh"
FOLDER = "entry"
"""Folder beside the versions of the scripts."""
_ENTRY = """#!/usr/bin/env bash
# HyperPod runs this as root, once on each new node. It runs the version of the scripts that an object names.
set -- {region} {current} bash {script}
export SECONDS_TO_SHIP_LOG="${{SECONDS_TO_SHIP_LOG:-60}}"
# The platform's PATH may lack the folder of the aws command.
export PATH="${{PATH:-/usr/sbin:/usr/bin:/sbin:/bin}}:/usr/local/bin"
"""


def entry_script(region: str, current: str, script: str) -> str:
    """Return the entry script's text; it runs ``script`` of the version that object ``current`` names."""
    return _ENTRY.format(region=region, current=current, script=script) + FETCH_AND_RUN.read_text()


@dataclass(frozen=True)
class LifecycleEntry:
    """Uploaded entry script."""

    upload: IDependable
    """Upload that must be complete before nodes start."""
    source_s3_uri: str
    """``SourceS3Uri`` of the instance groups."""


def lifecycle_entry(
    scope: Construct,
    construct_id: str,
    *,
    scripts: HashedUpload,
    region: str,
    script: str,
    after: Sequence[IDependable] = (),
) -> LifecycleEntry:
    """Upload the entry script, and the object that names the current version of the scripts.

    New and replaced nodes run the version that was current when they started. The cluster's properties name
    no version, so a change of scripts or users does not update the cluster.

    Args:
        scope: parent construct.
        construct_id: id of the upload within the parent.
        scripts: upload of the scripts.
        region: region of the cluster.
        script: name of the script that nodes run, and of the entry script itself.
        after: uploads that must be complete before the object names the version.
    """
    files = {f"{FOLDER}/{script}": entry_script(region, scripts.current_s3_uri, script)}
    upload = scripts.point_to_current(scope, construct_id, files=files, after=after)
    parent, _, _ = scripts.current_s3_uri.rpartition("/")
    return LifecycleEntry(upload, f"{parent}/{FOLDER}")
