"""Check that the platform has mounted the shared file systems, and move Lustre to EFA."""

import secrets

from node_setup.failure import SetupError
from node_setup.node import Node, log
from node_setup.slurm import runs_jobs

SECONDS_FOR_MOUNT = 900
"""Time limit. If hundreds of nodes start at once, a file system admits its clients over minutes."""
SECONDS_PER_TRY = 30
"""Time limit per try, because a server that does not answer would block without end."""
SECONDS_FOR_EFA = 1200
"""Time limit for FSx's program, which builds and loads modules, and for the mount."""


def set_up_efa(node: Node) -> None:
    """Set up the EFA client of Lustre on nodes with EFA adapters; a failure leaves the mount on TCP."""
    client = node.settings.lustre_efa
    mount_path = node.settings.lustre_mount_path
    assert client is not None and mount_path is not None
    if node.facts.hardware.num_efa_interfaces == 0:
        return
    script = node.files / "set_up_lustre_efa.sh"
    try:
        if node.facts.role == "worker" and runs_jobs(node.host, node.facts.host_name):
            log("  jobs run on this node: EFA to Lustre stays as it is until the next setup")
            return
        done = node.host.try_run(
            "bash",
            script,
            client.url,
            client.sha256 or "unknown",
            mount_path,
            timeout_seconds=SECONDS_FOR_EFA,
        )
    except SetupError as error:
        node.warn(f"Lustre may stay on TCP: {error.problem}")
    else:
        for line in done.output.splitlines():
            log(f"  {line}")
        if done.status != 0:
            node.warn(
                done.errors.strip().rpartition("\n")[2] or f"{script.name} ended with {done.status}"
            )
        elif "set up the EFA client" in done.output:
            node.changed("the EFA client of Lustre")
    verify_lustre(node)


def verify_lustre(node: Node) -> None:
    assert node.settings.lustre_mount_path is not None
    _verify(node, ("lustre",), node.settings.lustre_mount_path)


def verify_home(node: Node) -> None:
    assert node.settings.home_mount_path is not None
    # The image chooses the version of NFS; "nfs" is version 3.
    _verify(node, ("nfs", "nfs4"), node.settings.home_mount_path)


def _verify(node: Node, file_systems: tuple[str, ...], path: str) -> None:
    node.host.wait_for(
        lambda: _write_and_read_back(node, file_systems, path),
        timeout_seconds=SECONDS_FOR_MOUNT,
        what=f"{path} is no writable {file_systems[0]} mount",
        remedy=f"check that the cluster's security group lets the file system in, that it is AVAILABLE, and "
        f"`findmnt {path}` and `touch {path}/x` on the node",
        every_seconds=10,
    )


def _write_and_read_back(node: Node, file_systems: tuple[str, ...], path: str) -> bool:
    """Raise SetupError unless the path is a mount of such a type and a file can be written and read back."""
    # An automount mounts at its first use.
    node.host.try_run("stat", f"{path}/.", timeout_seconds=SECONDS_PER_TRY)
    found = node.host.try_run(
        "findmnt",
        "--noheadings",
        "--output",
        "FSTYPE",
        "--mountpoint",
        path,
        timeout_seconds=SECONDS_PER_TRY,
    )
    # The last of several mounts on one path, such as an automount and its target, is on top.
    types = found.output.split() if found.status == 0 else []
    top = types[-1] if types else "nothing"
    if top not in file_systems:
        raise SetupError(f"{top} is mounted there", "")
    # The name is random, so that no user can predict it.
    probe = f"{path}/.probe-{node.facts.host_name}-{secrets.token_hex(8)}"
    try:
        written = node.host.try_run(
            "python3",
            "-I",
            "-B",
            node.files / "write_and_read_back.py",
            probe,
            timeout_seconds=SECONDS_PER_TRY,
        )
    finally:
        # A separate process, because this one would hang with the server.
        removed = node.host.try_run("rm", "--force", probe, timeout_seconds=SECONDS_PER_TRY)
    if written.status != 0:
        raise SetupError(f"a file could not be written and read back: {written.said}", "")
    if removed.status != 0:
        node.warn(f"could not remove {probe}: {removed.said}")
    return True
