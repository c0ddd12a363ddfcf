"""The cluster's image repository in ECR: login, existing images, scan findings, and copies into it."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from config.cluster import Cluster
from config.resource_names import ResourceNames
from tools.aws_session import aws_client, if_present, open_session

SHOWN_CHARACTERS = 600
"""Most characters of a program's output that an error message shows, from its end."""
SCAN_WAIT_SECONDS = 300.0
"""Longest wait for a basic scan, which takes a few minutes for images of this size."""
SCAN_POLL_SECONDS = 10.0
UNFINISHED = {"IN_PROGRESS", "PENDING"}
"""States of a scan that has not ended."""
SCANNED = {"COMPLETE", "ACTIVE"}
"""States of a scan with findings. ACTIVE means enhanced scanning, which continues as long as the image
exists."""
SEVERITIES = ("CRITICAL", "HIGH", "MEDIUM", "LOW", "INFORMATIONAL", "UNDEFINED", "UNTRIAGED")


@dataclass(frozen=True)
class RegistryLogin:
    registry: str
    """Host name."""
    user: str
    password: str = field(repr=False)


@dataclass(frozen=True)
class Repository:
    ecr: Any = field(repr=False)
    name: str
    uri: str
    """Address of the repository, without a tag."""
    scans_on_push: bool

    def digest_of(self, tag: str) -> str | None:
        """Return the digest of a tag, or None if the tag does not exist."""
        image = {"imageTag": tag}
        response = if_present(self.ecr.describe_images, repositoryName=self.name, imageIds=[image])
        return response and str(response["imageDetails"][0]["imageDigest"])

    def tags_of(self, digest: str) -> list[str] | None:
        """Return the tags of an image, or None if the digest does not exist."""
        image = {"imageDigest": digest}
        response = if_present(self.ecr.describe_images, repositoryName=self.name, imageIds=[image])
        return response and list(response["imageDetails"][0].get("imageTags", []))

    def scan_summary(self, digest: str) -> str:
        """Wait a limited time for the scan of an image, and return its findings in one line."""
        deadline = time.monotonic() + SCAN_WAIT_SECONDS
        image = {"imageDigest": digest}
        while True:
            # There is no scan in the first moments after a push.
            scan = if_present(
                self.ecr.describe_image_scan_findings,
                repositoryName=self.name,
                imageId=image,
                maxResults=1,
            )
            if scan is None and not self.scans_on_push:
                return "image scan: none, scanning is off for this repository"
            if scan and scan["imageScanStatus"]["status"] not in UNFINISHED:
                return _findings(scan)
            if time.monotonic() >= deadline:
                return f"image scan: not finished after {SCAN_WAIT_SECONDS:.0f} s; make push shows it later"
            time.sleep(SCAN_POLL_SECONDS)


def find_repository(cluster: Cluster, profile: str | None) -> Repository:
    """Return the cluster's repository.

    Raises:
        ValueError: if it does not exist yet.
    """
    ecr = aws_client(open_session(region=cluster.region, profile=profile), "ecr")
    name = ResourceNames(cluster).image_repository
    described = if_present(ecr.describe_repositories, repositoryNames=[name])
    if described is None:
        raise ValueError(
            f"image repository {name} does not exist in {cluster.region}; deploy the cluster's storage stack "
            "first: make deploy"
        )
    found = described["repositories"][0]
    scanning = found.get("imageScanningConfiguration", {})
    return Repository(ecr, name, found["repositoryUri"], bool(scanning.get("scanOnPush")))


def registry_login(ecr: Any) -> RegistryLogin:
    """Return credentials for pushes, which are valid for 12 hours."""
    data = ecr.get_authorization_token()["authorizationData"][0]
    user, _, password = base64.b64decode(data["authorizationToken"]).decode().partition(":")
    return RegistryLogin(data["proxyEndpoint"].removeprefix("https://"), user, password)


def _findings(scan: dict[str, Any]) -> str:
    """Describe the findings of a scan in one line."""
    state = scan["imageScanStatus"]
    if state["status"] not in SCANNED:
        return f"image scan: {state['status']}: {state.get('description', 'no reason given')}"
    counts = scan.get("imageScanFindings", {}).get("findingSeverityCounts", {})
    found = [f"{severity} {counts[severity]}" for severity in SEVERITIES if counts.get(severity)]
    return f"image scan: {', '.join(found) or 'no findings'}"


def copy_image(source: str, target: str, logins: Sequence[RegistryLogin]) -> bool:
    """Copy an image with skopeo, or docker's buildx; return False if neither is installed.

    The passwords for the registries are in a temporary file only.

    Raises:
        ValueError: if the copy fails, with the program's output.
    """
    tokens = {
        login.registry: base64.b64encode(f"{login.user}:{login.password}".encode()).decode()
        for login in logins
    }
    auths = {registry: {"auth": token} for registry, token in tokens.items()}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.touch(mode=0o600)
        config.write_text(json.dumps({"auths": auths}))
        environment = dict(os.environ)
        if shutil.which("skopeo"):
            # Copy all platforms and convert none, because a converted image has another digest.
            options = ["--all", "--preserve-digests", "--authfile", str(config)]
            command = ["skopeo", "copy", *options, f"docker://{source}", f"docker://{target}"]
        elif _has_buildx():
            # Docker looks for its plugins beside its configuration.
            plugins = Path.home() / ".docker/cli-plugins"
            if plugins.is_dir():
                (Path(folder) / "cli-plugins").symlink_to(plugins)
            command = ["docker", "buildx", "imagetools", "create", "--tag", target, source]
            environment["DOCKER_CONFIG"] = folder
        else:
            return False
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    if done.returncode:
        output = " ".join(done.stdout.split())[-SHOWN_CHARACTERS:]
        raise ValueError(f"`{' '.join(command)}` ended with {done.returncode}: {output}")
    return True


def _has_buildx() -> bool:
    if not shutil.which("docker"):
        return False
    return subprocess.run(["docker", "buildx", "version"], capture_output=True).returncode == 0
