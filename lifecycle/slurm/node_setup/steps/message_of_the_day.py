"""Message at login: the node, the outcome of its setup, and important paths."""

import json

from node_setup.node import Node
from node_setup.step import STATE

FOLDER = "/etc/update-motd.d"
NAME = "99-cluster"
"""The number is higher than the system's, so that the message comes last and stays visible."""
FOR_LOGIN_SHELLS = "/etc/profile.d/cluster-message.sh"
LOG = "/var/log/provision/provisioning.log"


def install(node: Node) -> None:
    """Install the script that the system runs at login, and run it once; warn if it is not shown."""
    # JSON inside a Python string: backslashes are interpreted twice.
    facts = json.dumps(_facts(node), indent=1).replace("\\", "\\\\")
    text = node.template(
        "units/message_of_the_day.py", facts=facts, state=str(node.host.path(STATE))
    )
    node.install(f"{FOLDER}/{NAME}", text, mode=0o755)
    node.install(FOR_LOGIN_SHELLS, node.template("units/message_of_the_day.sh"))
    listed = node.host.try_run("run-parts", "--test", node.host.path(FOLDER))
    shown = node.host.try_run(node.host.path(FOLDER) / NAME)
    if NAME not in listed.output or node.settings.cluster_name not in shown.output:
        reason = shown.errors.strip() or listed.said or "it is not run"
        node.warn(
            f"log-ins do not show {FOLDER}/{NAME}: {reason}; run it, and `run-parts --test {FOLDER}`, to see "
            "why"
        )


def _facts(node: Node) -> dict[str, object]:
    settings = node.settings
    partitions = {group.partition for group in settings.instance_groups.values() if group.partition}
    home = settings.home_mount_path or f"{settings.shared_path}/home"
    speed = "fast; " if settings.lustre_mount_path else ""
    places = [("Shared", f"{settings.shared_path} ({speed}outlives nodes), homes in {home}")]
    if settings.bucket_mount_path:
        places.append(
            ("Data", f"{settings.bucket_mount_path} (files of the bucket; never changed)")
        )
    if settings.workload_code:
        places.append(("Code", f"{settings.shared_path}/workloads/current"))
    partition = " or ".join(sorted(partitions)) or "<partition>"
    places += [
        (
            "Local disks",
            "/opt/dlami/nvme, /opt/sagemaker: files are lost when the node is replaced",
        ),
        ("Jobs", f"sinfo; sbatch --partition={partition} <script>; squeue --me"),
        ("Log", f"{LOG} (setup of this node)"),
    ]
    return {
        "cluster": settings.cluster_name,
        "role": node.facts.role,
        "group": node.facts.group,
        "log": LOG,
        "places": places,
    }
