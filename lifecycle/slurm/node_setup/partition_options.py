"""Keep options of Slurm's partitions and their nodes, which a restart of slurmctld resets to slurm.conf's.

HyperPod writes the lines of partitions and nodes in slurm.conf and may write them again at any time. The
options are therefore set in the running slurmctld, by the setup and by a service that runs this file. The
service also finds nodes that join later.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from node_setup import node_weights

RESOURCE_CONFIG = "/opt/ml/config/resource_config.json"
SECONDS_BETWEEN_LOOKS = 60
SECONDS_TO_ANSWER = 60
SHOW = ("scontrol", "--oneliner", "show", "partition")

Options = Mapping[str, Mapping[str, str]]
"""Options by partition, with names and values as scontrol shows them."""


def shown_options(text: str) -> dict[str, dict[str, str]]:
    """Return the options of all partitions, from the output of ``SHOW``."""
    partitions = [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in text.splitlines()]
    return {found["PartitionName"]: found for found in partitions if "PartitionName" in found}


def updates(wanted: Options, shown: Options) -> list[list[str]]:
    """Return a command for each partition that exists and has other options."""
    found = []
    for name, options in wanted.items():
        current = shown.get(name)
        if current is None:
            continue
        different = [
            f"{key}={value}" for key, value in options.items() if current.get(key) != value
        ]
        if different:
            found.append(["scontrol", "update", f"PartitionName={name}", *different])
    return found


def _bring(partitions: Path, nodes: Path) -> None:
    """Set what differs, and print it. The next look tries again if slurmctld does not answer."""
    for command in updates(json.loads(partitions.read_text()), shown_options(_run(SHOW))):
        _run(command)
        print(*command, flush=True)
    wanted = json.loads(nodes.read_text())
    if not wanted:
        return
    config = Path(os.environ.get("SAGEMAKER_RESOURCE_CONFIG_PATH", RESOURCE_CONFIG))
    groups = node_weights.groups_by_address(json.loads(config.read_text()))
    shown = node_weights.shown_nodes(_run(node_weights.SHOW))
    for command in node_weights.updates(wanted, groups, shown):
        _run(command)
        print(*command, flush=True)


def _run(command: list[str] | tuple[str, ...]) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=SECONDS_TO_ANSWER
    )
    if done.returncode != 0:
        raise OSError(f"`{' '.join(command)}` ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def main() -> int:
    """Look again and again; the arguments are the files with the options of partitions and of groups."""
    partitions, nodes = map(Path, sys.argv[1:])
    reported = ""
    while True:
        try:
            _bring(partitions, nodes)
            reported = ""
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            if str(error) != reported:
                print(error, file=sys.stderr, flush=True)
            reported = str(error)
        time.sleep(SECONDS_BETWEEN_LOOKS)


if __name__ == "__main__":
    sys.exit(main())
