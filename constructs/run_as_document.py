"""How a shell session on a node starts."""

from __future__ import annotations

from typing import Any

from aws_cdk import aws_kms as kms
from aws_cdk import aws_ssm as ssm

from config.resource_names import shell_document
from config.slurm_cluster import SlurmCluster
from constructs import Construct

NODE_USER = "ubuntu"
"""The user of HyperPod's Slurm images."""
IDLE_MINUTES = "20"


class RunAsDocument(Construct):
    """Session Manager document ``<cluster name>-shell``: a login shell as ubuntu instead of root.

    With a key, what is typed and shown is encrypted with it on its way, on top of TLS.
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, cluster: SlurmCluster, key: kms.IKey | None
    ) -> None:
        super().__init__(scope, construct_id)
        inputs: dict[str, Any] = {
            "runAsEnabled": True,
            "runAsDefaultUser": NODE_USER,
            "idleSessionTimeout": IDLE_MINUTES,
            "shellProfile": {"linux": "cd && exec bash --login"},
        }
        if key:
            inputs["kmsKeyId"] = key.key_arn
        self.name = shell_document(cluster)
        ssm.CfnDocument(
            self,
            "Document",
            name=self.name,
            document_type="Session",
            content={
                "schemaVersion": "1.0",
                "description": f"Shell on a node of HyperPod cluster {cluster.name} as {NODE_USER}",
                "sessionType": "Standard_Stream",
                "inputs": inputs,
            },
            # A document with a name of its own cannot be replaced; a change makes a version of it.
            update_method="NewVersion",
        )
