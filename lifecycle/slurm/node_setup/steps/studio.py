"""What SageMaker Studio needs of the cluster: folders for its spaces, and Slurm's commands for people."""

from __future__ import annotations

from node_setup.node import Node, log
from node_setup.root_folder import make_root_folder
from node_setup.service import FOLDER, keep_running, last_log_lines, remove_units
from node_setup.settings import Studio, StudioDeployment

PARTITIONS = "studio-partitions.service"
LOGIN, LOGIN_TIMER = "studio-login.service", "studio-login.timer"
SUBFOLDER = "studio"
"""Of the Lustre file system."""
SECONDS_TO_PUBLISH = 600


def apply(node: Node) -> None:
    """Install what the cluster file asks for, and take the rest back; folders stay.

    Raises:
        SetupError: if a folder cannot be made, or a service does not start.
    """
    studio, deployment = node.settings.studio, node.deployment.studio
    if not node.facts.is_primary_controller:
        log("  left to the primary controller")
        return
    if studio and deployment:
        # Of this name on no other cluster: config/studio_people.py says why.
        node.install(f"{FOLDER}/studio_submit_{node.settings.cluster_name}.py", _program(node, "submit"))
        _bring_folders(node, studio)
        _answer_requests(node, deployment)
    _let_log_in(node, deployment if studio and studio.login_spaces else None)
    if not (deployment and deployment.requests_url):
        remove_units(node, (PARTITIONS,))


def _bring_folders(node: Node, studio: Studio) -> None:
    changed = node.install(f"{FOLDER}/studio_partitions.py", _program(node, "partitions"))
    root = f"{node.settings.lustre_mount_path}/{SUBFOLDER}"
    make_root_folder(node.host, root)
    if studio.partitions == "shared":
        uids = ",".join(str(uid) for uid in studio.shared_uids)
        there = node.host.path(f"{root}/shared").is_dir()
        node.host.run(
            *("python3", node.host.path(f"{FOLDER}/studio_partitions.py"), "shared"),
            *("--root", node.host.path(root), "--uids", uids),
            remedy=f"look at {root}: root must be able to make folders there, and to set their ACLs",
        )
        if not there:
            node.changed(f"{root}/shared")
    elif changed:
        # The unit is the same when the program it starts is another one.
        node.host.try_run("systemctl", "try-restart", PARTITIONS, timeout_seconds=120)


def _answer_requests(node: Node, deployment: StudioDeployment) -> None:
    if deployment.requests_url is None or deployment.acknowledgements_url is None:
        return
    values = {
        "@ROOT@": f"{node.settings.lustre_mount_path}/{SUBFOLDER}",
        "@REQUESTS@": deployment.requests_url,
        "@ACKNOWLEDGEMENTS@": deployment.acknowledgements_url,
        "@REGION@": node.settings.region,
    }
    changed = node.install_unit(PARTITIONS, lambda text: _filled(text, values))
    keep_running(node, PARTITIONS, changed=changed)


def _let_log_in(node: Node, deployment: StudioDeployment | None) -> None:
    """Publish once now; the timer does when Slurm's configuration changes.

    Spaces lack Slurm's commands without, and nothing else does: a warning.
    """
    if deployment is None or deployment.login_secret is None:
        remove_units(node, (LOGIN_TIMER, LOGIN))
        return
    values = {
        "@BUCKET@": node.deployment.artifact_bucket,
        "@SECRET@": deployment.login_secret,
        "@REGION@": node.settings.region,
    }
    node.install(f"{FOLDER}/studio_login_bundle.py", _program(node, "login_bundle"))
    changed = node.install_unit(LOGIN, lambda text: _filled(text, values))
    changed |= node.install_unit(LOGIN_TIMER)
    keep_running(node, LOGIN_TIMER, changed=changed)
    done = node.host.try_run("systemctl", "start", LOGIN, timeout_seconds=SECONDS_TO_PUBLISH)
    if done.status != 0:
        node.warn(f"nothing is published for login spaces of Studio: {last_log_lines(node, LOGIN)}")


def _program(node: Node, name: str) -> str:
    return (node.files / "studio" / f"{name}.py").read_text()


def _filled(text: str, values: dict[str, str]) -> str:
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text
