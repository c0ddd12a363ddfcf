"""Entry script of new nodes, at an address that stays the same when the scripts change."""

from collections.abc import Sequence
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


def lifecycle_entry(
    scope: Construct, scripts: HashedUpload, region: str, script: str, after: Sequence[IDependable] = ()
) -> tuple[IDependable, str]:
    """Upload the entry script; return the upload, which nodes need, and ``SourceS3Uri`` of their groups.

    New and replaced nodes run the version that was current when they started. The cluster's properties name
    no version, so a change of scripts or users does not update the cluster.
    """
    files = {f"{FOLDER}/{script}": entry_script(region, scripts.current_s3_uri, script)}
    pointer = scripts.point_to_current(scope, files=files, after=after)
    return pointer, f"{scripts.current_s3_uri.rpartition('/')[0]}/{FOLDER}"
