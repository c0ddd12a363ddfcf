"""Check the node of a pod before the job prepares data and trains:
``python -m seqlm.launch.pod_check --folder FOLDER --gpus N --neuron N --efa N``.

A pod cannot move to another node: Kubernetes restarts a failed check on the same one. Therefore the message
names the node and the command that replaces it. Standard library only, so that it takes a second.
"""

import argparse
import os
import sys
from pathlib import Path

from . import neuron
from .node_check import folder_problems, gpu_problems

NODE_NAME = "NODE_NAME"
"""Environment variable with the name of the node."""
EFA_DEVICES = Path("/dev/infiniband")
"""Folder of the EFA devices that the plugin gave to a pod. /sys would show all devices of the node."""
REPLACE = "sagemaker.amazonaws.com/node-health-status=UnschedulablePendingReplacement"
"""Label that makes HyperPod replace a node."""


def device_problems(
    gpus: int, neuron_devices: int, efa: int, devices: Path = EFA_DEVICES
) -> list[str]:
    """Return the faults of the devices of a pod.

    Args:
        gpus: number of GPUs that the pod requests.
        neuron_devices: number of Neuron devices that it requests.
        efa: number of EFA interfaces that it requests.
        devices: folder of its EFA devices.
    """
    problems: list[str] = []
    if gpus:
        problems += gpu_problems(gpus, "Kubernetes", {})
    if neuron_devices:
        problems += neuron.device_problems(neuron_devices, "Kubernetes", {})
    found = len(list(devices.glob("uverbs*")))
    if found < efa:
        problems.append(
            f"Kubernetes gives the job {efa} EFA interfaces there, {devices} has {found}"
        )
    return problems


def main() -> int:
    """Check the node, print its faults, and return the exit status."""
    parser = argparse.ArgumentParser(description="Check the node of a pod.")
    parser.add_argument(
        "--folder",
        type=Path,
        required=True,
        help="folder of the job on the shared file system, which is created",
    )
    parser.add_argument("--gpus", type=int, required=True, help="number of GPUs of the pod")
    parser.add_argument(
        "--neuron", type=int, required=True, help="number of Neuron devices of the pod"
    )
    parser.add_argument(
        "--efa", type=int, required=True, help="number of EFA interfaces of the pod"
    )
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
