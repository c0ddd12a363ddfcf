"""Parts of the cluster for SageMaker Studio: folders for its spaces, and Slurm's commands for users."""

from node_setup.node import Node, log
from node_setup.root_folder import make_root_folder
from node_setup.service import FOLDER, last_log_lines, remove_units, run_unit
from node_setup.settings import Studio, StudioDeployment

PARTITIONS = "studio-partitions.service"
LOGIN = "studio-login.service"
LOGIN_TIMER = "studio-login.timer"
SUBFOLDER = "studio"
"""Folder of the Lustre file system for spaces."""
SECONDS_TO_PUBLISH = 600


def apply(node: Node) -> None:
    """Install the parts that the cluster file requests, and remove the others; folders stay.

    Raises:
        SetupError: if a folder cannot be created, or a service does not start.
    """
    studio = node.settings.studio
    deployment = node.deployment.studio
    if not node.facts.is_primary_controller:
        log("  left to the primary controller")
        return
    if studio and deployment:
        # The name is unique to this cluster; config/studio_people.py gives the reason.
        program = f"{FOLDER}/studio_submit_{node.settings.cluster_name}.py"
        node.install(program, node.template("studio/submit.py"))
        _bring_folders(node, studio)
        if deployment.requests_url is not None and deployment.acknowledgements_url is not None:
            run_unit(
                node,
                PARTITIONS,
                root=f"{node.settings.shared_path}/{SUBFOLDER}",
                requests=deployment.requests_url,
                acknowledgements=deployment.acknowledgements_url,
                region=node.settings.region,
            )
    _let_log_in(node, deployment if studio and studio.login_spaces else None)
    if not (deployment and deployment.requests_url):
        remove_units(node, (PARTITIONS,))


def _bring_folders(node: Node, studio: Studio) -> None:
    changed = node.install(f"{FOLDER}/studio_partitions.py", node.template("studio/partitions.py"))
    root = f"{node.settings.shared_path}/{SUBFOLDER}"
    make_root_folder(node.host, root)
    if studio.partitions == "shared":
        uids = ",".join(str(uid) for uid in studio.shared_uids)
        exists = node.host.path(f"{root}/shared").is_dir()
        node.host.run(
            "python3",
            node.host.path(f"{FOLDER}/studio_partitions.py"),
            "shared",
            "--root",
            node.host.path(root),
            "--uids",
            uids,
            remedy=f"look at {root}: root must be able to create folders there, and to set their ACLs",
        )
        if not exists:
            node.changed(f"{root}/shared")
    elif changed:
        # A changed program does not change the unit that starts it.
        node.host.try_run("systemctl", "try-restart", PARTITIONS, timeout_seconds=120)


def _let_log_in(node: Node, deployment: StudioDeployment | None) -> None:
    """Publish once now; the timer publishes again when Slurm's configuration changes.

    A failure is a warning, because spaces then lack only Slurm's commands.
    """
    if deployment is None or deployment.login_secret is None:
        remove_units(node, (LOGIN_TIMER, LOGIN))
        return
    node.install(f"{FOLDER}/studio_login_bundle.py", node.template("studio/login_bundle.py"))
    changed = node.install_unit(
        LOGIN,
        bucket=node.deployment.artifact_bucket,
        secret=deployment.login_secret,
        region=node.settings.region,
    )
    run_unit(node, LOGIN_TIMER, changed=changed)
    if (
        node.host.try_run("systemctl", "start", LOGIN, timeout_seconds=SECONDS_TO_PUBLISH).status
        != 0
    ):
        node.warn(f"nothing is published for login spaces of Studio: {last_log_lines(node, LOGIN)}")
