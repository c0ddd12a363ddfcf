"""The real CDK command line against the local AWS, and what can be seen there afterwards."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest

from config.cluster_kinds import AnyCluster
from manifests.charts import files_folder, files_of, load_charts, lock_file, write_lock
from tests.stacks.synthesized import read_templates, synthesize

REPOSITORY = Path(__file__).parents[2]
CHARTS = REPOSITORY / "tests" / "manifests" / "stand_ins"
ACCOUNT = "123456789012"  # moto's
# What the app reads. The environments are the repository's own.
COPIED = (
    "app.py",
    "cdk.json",
    "config",
    "constructs",
    "manifests",
    "monitoring",
    "stacks",
    "functions",
    "lifecycle",
    "workloads",
    "clusters",
    "tools",
)
LINKED = (".venv", "node_modules")
COMMAND_SECONDS = 480
_SESSION: Any = boto3.Session("local", "local")


def copy_checkout(destination: Path) -> Path:
    """A copy of the repository in which files can be changed. Equal commands are synthesized once."""
    destination.mkdir()
    for name in COPIED:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(
                source, destination / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy2(source, destination / name)
    for name in LINKED:
        (destination / name).symlink_to(REPOSITORY / name)
    settings = json.loads((destination / "cdk.json").read_text())
    settings["app"] = f"{sys.executable} {Path(__file__).with_name('cached_app.py')}"
    (destination / "cdk.json").write_text(json.dumps(settings))
    return destination


def assert_accepted(*clusters: AnyCluster) -> None:
    """Synthesize clusters with the CDK's own rules, which commands in a copied checkout leave out.

    A finding raises. One process needs the rules' engine once for all its clusters.
    """
    for cluster in clusters:
        assert read_templates(synthesize(cluster))


@functools.cache
def _client(url: str, service: str, region: str) -> Any:
    """Reading a service's model takes half a second of processor time."""
    return _SESSION.client(service, region_name=region, endpoint_url=url)


def put_chart(cache: Path) -> None:
    """Put the stand-in of HyperPod's chart where `make charts` would put the chart, with that one's pins."""
    shutil.copytree(CHARTS / "hyperpod", files_folder(cache, "hyperpod"))
    table = load_charts()["hyperpod"]
    write_lock(lock_file(cache, "hyperpod"), table, files_of(files_folder(cache, "hyperpod")))


@dataclass(frozen=True)
class LocalAws:
    url: str

    @property
    def environment(self) -> dict[str, str]:
        """For commands: this AWS and no other, Node.js as the project's environment has it."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "CDK_"))}
        return inherited | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "local",
            "AWS_SECRET_ACCESS_KEY": "local",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
            "CDK_DEFAULT_ACCOUNT": ACCOUNT,
            "CDK_DISABLE_CLI_TELEMETRY": "true",
            "GIT_ALLOW_PROTOCOL": "file",  # a synthesis fetches no chart
            "NODE_NO_WARNINGS": "1",
            # jsii wants the major version named; see its banner.
            "JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION": "20",
        }

    def client(self, service: str, region: str) -> Any:
        """A client of this AWS; ``Any`` because the types of boto3 know services by literals only."""
        return _client(self.url, service, region)

    def run(self, *command: str, cwd: Path, succeeds: bool = True) -> str:
        """Return the output of ``command`` on both streams; fail the test for an unexpected exit status."""
        done = subprocess.run(
            command,
            cwd=cwd,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        if (done.returncode == 0) != succeeds:
            pytest.fail(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}")
        return done.stdout

    def cdk(self, *arguments: str, cwd: Path, succeeds: bool = True) -> str:
        """Run the pinned CLI; without network of its own (notices) and without questions."""
        node = shutil.which("node", path=self.environment["PATH"])
        cli = REPOSITORY / "node_modules" / "aws-cdk" / "bin" / "cdk"
        if node is None or not cli.exists():
            pytest.fail(
                "the CDK command line is missing: install Node.js 20 or newer, then run `npm ci`"
            )
        return self.run(
            node, str(cli), "--no-notices", "--ci", *arguments, cwd=cwd, succeeds=succeeds
        )


@dataclass(frozen=True)
class Seen:
    """Contents of one region at one moment."""

    output: str
    """Output of the previous command."""
    stacks: dict[str, dict[str, str]]
    """Outputs of each stack, by its name."""
    clusters: dict[str, dict[str, Any]]
    nodes: dict[str, list[dict[str, Any]]]
    objects: dict[str, bytes]
    """Contents of the buckets named sagemaker-*, by S3 URI."""
    file_systems: set[str]
    vpcs: set[str]


_CONTENTS: dict[str, bytes] = {}
"""Contents of objects by their MD5 digests: most are the same after each command and in each bucket."""


def _content(s3: Any, bucket: str, listed: dict[str, Any]) -> bytes:
    """Return the content of an object of a list."""
    digest = listed["ETag"]
    if digest not in _CONTENTS:
        _CONTENTS[digest] = s3.get_object(Bucket=bucket, Key=listed["Key"])["Body"].read()
    return _CONTENTS[digest]


def see(aws: LocalAws, region: str, output: str) -> Seen:
    stacks = aws.client("cloudformation", region).describe_stacks()["Stacks"]
    sagemaker = aws.client("sagemaker", region)
    s3 = aws.client("s3", region)
    names = [cluster["ClusterName"] for cluster in sagemaker.list_clusters()["ClusterSummaries"]]
    buckets = [
        item["Name"]
        for item in s3.list_buckets()["Buckets"]
        if item["Name"].startswith("sagemaker-")
    ]
    objects = {
        f"s3://{bucket}/{item['Key']}": _content(s3, bucket, item)
        for bucket in buckets
        if bucket.endswith(region)
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        for item in page.get("Contents", [])
    }
    file_systems = aws.client("fsx", region).describe_file_systems()["FileSystems"]
    own = [{"Name": "is-default", "Values": ["false"]}]
    return Seen(
        output=output,
        stacks={
            stack["StackName"]: {
                item["OutputKey"]: item["OutputValue"] for item in stack.get("Outputs", [])
            }
            for stack in stacks
        },
        clusters={
            name: sagemaker.describe_cluster(ClusterName=name) | {"ResponseMetadata": None}
            for name in names
        },
        nodes={
            name: sagemaker.list_cluster_nodes(ClusterName=name, MaxResults=100)[
                "ClusterNodeSummaries"
            ]
            for name in names
        },
        objects=objects,
        file_systems={item["FileSystemId"] for item in file_systems},
        vpcs={vpc["VpcId"] for vpc in aws.client("ec2", region).describe_vpcs(Filters=own)["Vpcs"]},
    )


def objects_below(seen: Seen, uri: str) -> dict[str, bytes]:
    """Contents by name, of what is stored there."""
    folder = uri.rstrip("/") + "/"
    return {
        key.removeprefix(folder): body
        for key, body in seen.objects.items()
        if key.startswith(folder)
    }
