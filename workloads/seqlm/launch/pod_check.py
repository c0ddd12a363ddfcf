"""Whether a pod's node is fit for the job, before data and training: ``python -m
seqlm.launch.pod_check --folder FOLDER --gpus N --neuron N --efa N``.

A pod cannot have itself moved to another node: Kubernetes starts a failed check again on the same one. So the
message names the node, and how it is replaced. Standard library alone: it takes a second.
"""

import argparse
import os
import sys
from pathlib import Path

from . import neuron
from .node_check import folder_problems, gpu_problems

NODE_NAME = "NODE_NAME"
"""Environment variable."""
EFA_DEVICES = Path("/dev/infiniband")
"""Folder of the devices that the plugin gave to a pod; /sys shows all devices of the node."""
REPLACE = "sagemaker.amazonaws.com/node-health-status=UnschedulablePendingReplacement"


def device_problems(gpus: int, neuron_devices: int, efa: int, devices: Path = EFA_DEVICES) -> list[str]:
    """Return the faults of the devices of a pod that requests this many."""
    problems = gpu_problems(gpus, "Kubernetes", {}) if gpus else []
    problems += neuron.device_problems(neuron_devices, "Kubernetes", {}) if neuron_devices else []
    found = len(list(devices.glob("uverbs*")))
    if found < efa:
        problems.append(f"Kubernetes gives the job {efa} EFA interfaces there, {devices} has {found}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the node that a pod is on.")
    parser.add_argument(
        "--folder", type=Path, required=True, help="of the job on the shared file system; made"
    )
    for devices in ("--gpus", "--neuron", "--efa"):
        parser.add_argument(devices, type=int, required=True)
    options = parser.parse_args()
    node = os.environ[NODE_NAME]
    problems = device_problems(options.gpus, options.neuron, options.efa)
    if problems:
        problems.append(
            f"HyperPod replaces a node whose devices fail; if not: kubectl label node {node} {REPLACE} "
            "--overwrite"
        )
    try:
        options.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problems.append(f"{options.folder} cannot be made: {error.strerror}")
    else:
        problems += folder_problems(options.folder, node)
    if problems:
        print(f"error: node {node}: {'; '.join(problems)}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
