"""Strict validation of what is sent to Kubernetes: its own schemas, and those of the job kinds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate

HERE = Path(__file__).parent
VERSION = "1.34"
KINDS = {"HyperPodPyTorchJob": "hyperpod", "PyTorchJob": "kubeflow"}


def pod_templates(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the schema for a job of either kind."""
    spec = manifest["spec"]
    replicas = spec.get("replicaSpecs") or list(spec["pytorchReplicaSpecs"].values())
    return [replica["template"] for replica in replicas]


def check(manifest: dict[str, Any]) -> None:
    """Raise what is wrong with it, unknown fields included."""
    if manifest["kind"] not in KINDS:
        kubernetes_validate.validate(manifest, VERSION, strict=True)
        return
    schema = json.loads((HERE / f"{KINDS[manifest['kind']]}.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(manifest["spec"])
    for template in pod_templates(manifest):
        # The template's own place in a kind of Kubernetes'; a bare Pod must have a name.
        kubernetes_validate.validate(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "any"},
                "spec": template["spec"],
            },
            VERSION,
            strict=True,
        )
        kubernetes_validate.validate(
            {
                "apiVersion": "v1",
                "kind": "PodTemplate",
                "metadata": {"name": "any"},
                "template": template,
            },
            VERSION,
            strict=True,
        )
