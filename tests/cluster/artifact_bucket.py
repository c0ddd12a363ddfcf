"""The cluster's bucket, as the stacks fill it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.cluster import aws_services
from tests.cluster.bundle import BUCKET, REPOSITORY, write_bundle, write_downloads, write_workloads
from tests.cluster.island import GATEWAY, Island
from tests.cluster.metrics_workspace import REMOTE_WRITE_URL
from tests.cluster.patience import wait_until

ENDPOINT = f"http://{GATEWAY}:{aws_services.PORT}"
AWS_PROGRAM = REPOSITORY / ".venv-awscli/bin/aws"


class ArtifactBucket:
    """Below ``folder`` as files, and in the cluster's S3 as objects."""

    def __init__(self, island: Island, folder: Path) -> None:
        self._island = island
        self._folder = folder
        self._log = folder / "aws.log"
        self._files = folder / "buckets" / BUCKET
        write_downloads(self._files)
        self._deployment = {
            "artifact_bucket": BUCKET,
            "data_bucket": None,
            "workload_s3_uri": f"s3://{BUCKET}/{write_workloads(self._files)}",
            "remote_write_url": REMOTE_WRITE_URL,
            "mlflow": {"tracking_uri": aws_services.MLFLOW, "role_arn": aws_services.JOB_ROLE},
            "studio": None,
        }

    def start(self, settings: dict[str, Any]) -> str:
        """Start the cluster's AWS with all that is in the bucket; returns the scripts' prefix."""
        prefix = write_bundle(self._files, settings, self._deployment)
        command = [
            sys.executable,
            "-m",
            "tests.cluster.aws_services",
            str(self._folder / "buckets"),
        ]
        with self._log.open("wb") as log:
            subprocess.Popen(
                self._island.command(["env", f"--chdir={REPOSITORY}", *command]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return prefix

    def wait_until_ready(self) -> None:
        wait_until(
            lambda: aws_services.READY in self._log.read_text(),
            f"the cluster's AWS; see {self._log}",
            seconds=240,
        )

    def publish(self, settings: dict[str, Any], **deployment: Any) -> str:
        """Upload the scripts with other settings; returns the prefix that names them."""
        prefix = write_bundle(self._files, settings, {**self._deployment, **deployment})
        self.aws("s3", "cp", "--recursive", str(self._files / prefix), f"s3://{BUCKET}/{prefix}")
        return prefix

    def put(self, key: str, content: bytes) -> None:
        """Make an object what it should not be; ``restore`` undoes it."""
        path = self._folder / "other"
        path.write_bytes(content)
        self.aws("s3", "cp", str(path), f"s3://{BUCKET}/{key}")

    def remove(self, key: str) -> None:
        self.aws("s3", "rm", f"s3://{BUCKET}/{key}")

    def restore(self, key: str) -> None:
        self.aws("s3", "cp", str(self._files / key), f"s3://{BUCKET}/{key}")

    def download_of(self, name: str) -> str:
        """Key of the archive that a program comes from."""
        (found,) = (self._files / "downloads").glob(f"{name}-*")
        return str(found.relative_to(self._files))

    def aws(self, *arguments: str) -> str:
        """Return the aws command's output for an operator."""
        credentials = {"AWS_ACCESS_KEY_ID": "operator", "AWS_SECRET_ACCESS_KEY": "operator"}
        done = subprocess.run(
            self._island.command(
                [
                    str(AWS_PROGRAM),
                    "--endpoint-url",
                    ENDPOINT,
                    "--region",
                    aws_services.REGION,
                    *arguments,
                ]
            ),
            env={**os.environ, **credentials},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=True,
            timeout=240,
            text=True,
        )
        return done.stdout
