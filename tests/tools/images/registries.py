"""The cluster's repository in ECR, checked by botocore's model; images are there once pushed."""

from __future__ import annotations

import base64
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.tools.answering_aws import AnsweringAws, Refusal, SecondPages
from tests.tools.images.container_engines import Engines
from tools.images import image_registry
from tools.images.image_registry import Repository

REGISTRY = "123456789012.dkr.ecr.us-west-2.amazonaws.com"
NAME = "esm2-slurm/training"
DIGEST = "sha256:" + "cd" * 32
PASSWORD = "password-of-the-registry"


class WholeFindings(SecondPages):
    """Findings stay on one page: their counts, which alone are read, come whole with the first one."""

    def split(
        self, operation: str, paging: dict[str, Any], response: dict[str, Any]
    ) -> dict[str, Any]:
        if operation == "describe_image_scan_findings":
            return response
        return super().split(operation, paging, response)


class Registry:
    def __init__(self, engines: Engines) -> None:
        self.aws = AnsweringAws("us-west-2")
        self.engines = engines
        self.pushed: list[str] = []
        """Tags that were there before."""
        self.scans_on_push = True
        self.scans: list[dict[str, Any] | Refusal] = [scan("COMPLETE", {"HIGH": 2, "CRITICAL": 1})]
        self.aws.answer("ecr", "DescribeRepositories", self._repository)
        self.aws.answer("ecr", "DescribeImages", self._images)
        self.aws.answer("ecr", "DescribeImageScanFindings", self._scan)
        token = base64.b64encode(f"AWS:{PASSWORD}".encode()).decode()
        data = {"authorizationToken": token, "proxyEndpoint": f"https://{REGISTRY}"}
        self.aws.answer("ecr", "GetAuthorizationToken", {"authorizationData": [data]})

    def _repository(self, parameters: dict[str, Any]) -> dict[str, Any]:
        assert parameters["repositoryNames"] == [NAME]
        scanning = {"scanOnPush": self.scans_on_push}
        return {
            "repositories": [
                {"repositoryUri": f"{REGISTRY}/{NAME}", "imageScanningConfiguration": scanning}
            ]
        }

    def _images(self, parameters: dict[str, Any]) -> dict[str, Any]:
        tag = parameters["imageIds"][0]["imageTag"]
        pushes = [
            call["arguments"][1] for call in self.engines.calls if call["arguments"][0] == "push"
        ]
        if tag not in self.pushed and f"{REGISTRY}/{NAME}:{tag}" not in pushes:
            raise Refusal("ImageNotFoundException")
        return {"imageDetails": [{"imageDigest": DIGEST}]}

    def _scan(self, parameters: dict[str, Any]) -> dict[str, Any]:
        assert parameters["imageId"] == {"imageDigest": DIGEST}
        answer = self.scans.pop(0) if len(self.scans) > 1 else self.scans[0]
        if isinstance(answer, Refusal):
            raise answer
        return answer

    def summary(self) -> str:
        """Return the scan's summary; time passes only when it waits."""
        waits: list[float] = []
        clock = SimpleNamespace(sleep=waits.append, monotonic=lambda: sum(waits))
        ecr = self.aws.session.client("ecr")
        repository = Repository(ecr, NAME, f"{REGISTRY}/{NAME}", self.scans_on_push)
        with mock.patch.object(image_registry, "time", clock):
            return repository.scan_summary(DIGEST)


def scan(status: str, counts: dict[str, int] | None = None) -> dict[str, Any]:
    return {
        "imageScanStatus": {"status": status},
        "imageScanFindings": {"findingSeverityCounts": counts or {}},
    }
