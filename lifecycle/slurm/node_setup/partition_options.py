"""Keep options of Slurm's partitions, which a restart of slurmctld resets to slurm.conf's.

HyperPod writes the lines of partitions in slurm.conf and may write them again at any time. The options are
therefore set in the running slurmctld, by the setup and by a service that runs this file alone.
"""

import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

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


def _bring(path: Path) -> None:
    """Set what differs, and print it. The next look tries again if slurmctld does not answer."""
    wanted = json.loads(path.read_text())
    shown = _run(SHOW)
    for command in updates(wanted, shown_options(shown)):
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
    """Look at the partitions again and again; the argument is the file with the options."""
    reported = ""
    while True:
        try:
            _bring(Path(sys.argv[1]))
            reported = ""
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            if str(error) != reported:
                print(error, file=sys.stderr, flush=True)
            reported = str(error)
        time.sleep(SECONDS_BETWEEN_LOOKS)


if __name__ == "__main__":
    sys.exit(main())
