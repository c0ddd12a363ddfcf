"""Session Manager document that starts a shell on a node."""

from typing import Any

from aws_cdk import aws_kms as kms
from aws_cdk import aws_ssm as ssm

from constructs import Construct

NODE_USER = "ubuntu"
"""User of HyperPod's Slurm images."""
IDLE_MINUTES = "20"
"""Minutes without input after which a session ends."""


class ShellDocument(Construct):
    """Document that starts a login shell as ubuntu instead of root.

    With a key, input and output are encrypted with it in transit, in addition to TLS.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        name: str,
        cluster_name: str,
        key: kms.IKey | None,
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
        ssm.CfnDocument(
            self,
            "Document",
            name=name,
            document_type="Session",
            content={
                "schemaVersion": "1.0",
                "description": f"Shell on a node of HyperPod cluster {cluster_name} as {NODE_USER}",
                "sessionType": "Standard_Stream",
                "inputs": inputs,
            },
            # A document with a fixed name cannot be replaced; a change creates a new version.
            update_method="NewVersion",
        )
