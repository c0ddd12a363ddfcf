"""The aws command that starts a session with a node, and the programs behind it."""

from __future__ import annotations

import shutil
import subprocess

from tools.cluster_nodes import ClusterNodes, Node


def start_session(cluster: ClusterNodes, node: Node, *, region: str, profile: str | None) -> list[str]:
    """Without a document, which says what the session is for."""
    command = ["aws", "ssm", "start-session", "--target", cluster.target(node), "--region", region]
    return [*command, "--profile", profile] if profile else command


def check_programs() -> None:
    """Raise ValueError unless the two programs behind a session are installed."""
    if shutil.which("aws") is None:
        raise ValueError("the aws command is missing; install AWS CLI version 2 (docs/deploy.md)")
    version = subprocess.run(["aws", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if not version.startswith("aws-cli/2."):
        raise ValueError(
            f"the aws command is {version}; HyperPod sessions need AWS CLI version 2 (docs/deploy.md)"
        )
    if shutil.which("session-manager-plugin") is None:
        raise ValueError("session-manager-plugin is missing; the aws command starts it (docs/deploy.md)")
