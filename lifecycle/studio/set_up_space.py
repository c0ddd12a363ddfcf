"""Set up a SageMaker Studio space for the cluster: its folder, MLflow, and commands that submit jobs.

``start_space.sh`` runs it at every start, with ``settings.json`` beside it. The home folder survives restarts
and is changed only where necessary. Everything else is created again each time. It needs the standard library
and the aws command.
"""

import json
import shutil
import sys
import zipfile
from pathlib import Path

import slurm_login
from session_plugin import install_plugin
from space import Space, SpaceError

FILES = Path(__file__).parent
MOUNTS = "/mnt/custom-file-systems/fsx_lustre"
"""Mount points, by file system id, of Lustre file systems that a space's owner has attached."""
COMMANDS = ("sacct", "sbatch", "scancel", "scontrol", "sinfo", "squeue")
LIBRARY = "/usr/local/lib/cluster"


def main() -> int:
    space = Space(json.loads((FILES / "settings.json").read_text()))
    try:
        set_up(space)
    except SpaceError as error:
        print(f"ERROR: {error}")
        return 1
    return 0


def set_up(space: Space) -> None:
    lines = [line for line in (folder(space), mlflow(space)) if line]
    set_up_scheduler = kubernetes if space.settings["scheduler"] == "eks" else slurm
    set_up_scheduler(space)
    space.profile_lines(lines)
    print("done")


def folder(space: Space) -> str:
    """Link the partition at the nodes' path, so that paths are the same in scripts and jobs."""
    mounted = space.path(f"{MOUNTS}/{space.settings['file_system_id']}")
    own = partition(space)
    if not mounted.is_dir():
        print(f"the file system is not attached: attach it to the space to have {own}")
        return ""
    target = space.path(own)
    if not target.is_symlink():
        space.as_root("mkdir", "--parents", str(target.parent))
        space.as_root("ln", "--symbolic", "--no-dereference", "--force", str(mounted), str(target))
    return f"export CLUSTER_FOLDER={own}"


def partition(space: Space) -> str:
    """Return the nodes' path of the folder that the space sees."""
    settings = space.settings
    own = "shared" if settings["partitions"] == "shared" else f"users/{space.profile}"
    return f"{settings['lustre_mount_path']}/studio/{own}"


def mlflow(space: Space) -> str:
    """Make notebooks and shells log to the cluster's MLflow."""
    uri = space.settings["mlflow_tracking_uri"]
    startup = space.home / ".ipython/profile_default/startup/00-cluster-mlflow.py"
    if not uri:
        startup.unlink(missing_ok=True)
        return ""
    startup.parent.mkdir(parents=True, exist_ok=True)
    startup.write_text(f"import os\n\nos.environ.setdefault('MLFLOW_TRACKING_URI', {uri!r})\n")
    return f"export MLFLOW_TRACKING_URI={uri}"


def slurm(space: Space) -> None:
    """Install Slurm's programs in a login space; in other spaces, install wrappers for the controller's."""
    person = space.settings["profiles"].get(space.profile)
    if not person:
        print(
            f"studio.profiles has no cluster_user for {space.profile}: this space submits no jobs"
        )
        return
    if person["login_secret"]:
        slurm_login.set_up(space, person, partition(space))
        return
    install_plugin(space)
    for name in ("slurm_session.py", "space.py"):
        space.install(f"{LIBRARY}/{name}", (FILES / name).read_text(), 0o755)
    session = {
        "cluster_name": space.settings["cluster_name"],
        "region": space.settings["region"],
        "controller_group": space.settings["controller_group"],
        "file_system_id": space.settings["file_system_id"],
        "document": person["document"],
        "partition": partition(space),
    }
    space.install(f"{LIBRARY}/session.json", json.dumps(session))
    for command in COMMANDS:
        text = f'#!/bin/sh\nexec python3 {LIBRARY}/slurm_session.py {command} "$@"\n'
        space.install(f"/usr/local/bin/{command}", text, 0o755)


def kubernetes(space: Space) -> None:
    """Install kubectl and helm in the versions of the deployment, and write the kubeconfig."""
    archive = Path("/tmp/cluster-tools.zip")
    space.aws("s3", "cp", "--only-show-errors", space.settings["tools"], str(archive))
    with zipfile.ZipFile(archive) as tools:
        for name in ("kubectl", "helm"):
            unpacked = Path("/tmp") / f"cluster-{name}"
            with tools.open(f"{name}/{name}") as source, unpacked.open("wb") as target:
                shutil.copyfileobj(source, target)
            place = str(space.path(f"/usr/local/bin/{name}"))
            space.as_root("install", "-D", "--mode=755", str(unpacked), place)
            unpacked.unlink()
    archive.unlink()
    kubeconfig = space.home / ".kube/config"
    cluster = space.settings["cluster_name"]
    space.aws("eks", "update-kubeconfig", "--name", cluster, "--kubeconfig", str(kubeconfig))
    kubectl = str(space.path("/usr/local/bin/kubectl"))
    namespace = space.settings["namespaces"][0]
    space.run(
        kubectl,
        "config",
        "set-context",
        "--current",
        f"--namespace={namespace}",
        f"--kubeconfig={kubeconfig}",
    )
    kubeconfig.chmod(0o600)


if __name__ == "__main__":
    sys.exit(main())
