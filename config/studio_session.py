"""Systems Manager's document by which a space submits jobs as one user of the cluster."""

from __future__ import annotations

from typing import Any

from config.cluster import Cluster

SUBMIT = "/usr/local/lib/node-setup/studio_submit_{cluster}.py"
"""On the controller: lifecycle/slurm/studio/submit.py. With the cluster's name, since roles may open sessions
with the nodes of any, and the same name may be another person's there."""
PARAMETER = "request"
MAX_REQUEST = 40_000


def session_document_name(cluster: Cluster, profile: str) -> str:
    return f"{cluster.name}-studio-{profile}"


def session_document(cluster: Cluster, user: str) -> dict[str, Any]:
    """Runs one command as ``user``, with one word that is nothing but base64: a shell finds nothing in it."""
    return {
        "schemaVersion": "1.0",
        "description": f"Slurm's commands on HyperPod cluster {cluster.name} as {user}, for SageMaker Studio",
        "sessionType": "InteractiveCommands",
        "parameters": {
            PARAMETER: {
                "type": "String",
                "description": "Base64 of JSON, which lifecycle/slurm/studio/submit.py reads",
                "allowedPattern": f"^[A-Za-z0-9+/=]{{1,{MAX_REQUEST}}}$",
            }
        },
        "properties": {
            "linux": {
                "commands": (
                    f"runuser --user {user} -- env PATH=/opt/slurm/bin:/usr/local/bin:/usr/bin:/bin"
                    f" python3 {SUBMIT.format(cluster=cluster.name)} {{{{ {PARAMETER} }}}}"
                ),
                "runAsElevated": True,
            }
        },
    }
