"""A kubeconfig of the cluster that kubectl, helm and others use anywhere, without the aws command."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from tempfile import NamedTemporaryFile

from config.chart_cache import CACHE
from config.eks_cluster import EksCluster
from config.kubernetes_names import job_namespaces
from config.resource_names import kubernetes_cluster
from tools.kubectl import REPOSITORY, Kubectl, Manifest, Refused, kubeconfig_of
from tools.kubectl_layer import find_program


def standing_kubeconfig(cluster: EksCluster, profile: str | None) -> Manifest:
    """`kubectl.kubeconfig_of` for use from any folder, in the namespace of jobs if there is only one.

    Raises:
        ValueError: if there is no such cluster.
    """
    config = kubeconfig_of(cluster, profile)
    for user in config["users"]:
        # Tokens are made by this checkout, in its environment.
        user["user"]["exec"]["env"] = [{"name": "PYTHONPATH", "value": str(REPOSITORY)}]
    namespaces = job_namespaces(cluster)
    if len(namespaces) == 1:
        for context in config["contexts"]:
            context["context"]["namespace"] = namespaces[0]
    return config


def default_path(cluster: EksCluster) -> Path:
    """A file of its own: nothing that is in the user's config is changed."""
    return Path.home() / ".kube" / kubernetes_cluster(cluster)


def write_kubeconfig(config: Manifest, path: Path) -> None:
    """Put it there whole, for its owner alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
        try:
            json.dump(config, file, indent=2)
            file.write("\n")
        except BaseException:
            os.unlink(file.name)
            raise
    os.replace(file.name, path)


def show_nodes(cluster: EksCluster, path: Path) -> bool:
    """Print the cluster's nodes by the kubeconfig; whether it could be asked."""
    own = shutil.which("kubectl")
    program = Path(own) if own else find_program("kubectl", CACHE)
    if program is None:
        print("kubectl is missing; install kubectl 1.33 or later", file=sys.stderr)
        return False
    if not own:
        print(f"There is no kubectl on the PATH; {program} is one", file=sys.stderr)
    kubectl = Kubectl(program, path, "default", f"EKS cluster {kubernetes_cluster(cluster)}")
    try:
        print(kubectl.run("get", "nodes"), end="")
    except Refused as error:
        print(f"warning: {error}", file=sys.stderr)
        return False
    return True
