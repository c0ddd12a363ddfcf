"""The steps, in the order in which they run."""

from __future__ import annotations

from node_setup.step import Step
from node_setup.steps import (
    container_storage,
    credentials,
    health_prolog,
    hold,
    log_rotation,
    message_of_the_day,
    mounts,
    workload_code,
)

STEPS: tuple[Step, ...] = (
    # Before anything of a user's can run.
    Step("instance-credentials", credentials.block),
    # Early, so that it tells of steps that fail.
    Step("message-of-the-day", message_of_the_day.install),
    Step("hold-node", hold.hold, roles=("worker",)),
    Step("lustre-mount", mounts.verify_lustre),
    Step("home-mount", mounts.verify_home, switched_on=lambda settings: settings.home_mount_path is not None),
    # Before anything that runs containers.
    Step(
        "container-storage",
        container_storage.place,
        switched_on=lambda settings: settings.container_storage == "local_disk",
    ),
    Step(
        "workload-code",
        workload_code.sync,
        roles=("controller",),
        switched_on=lambda settings: settings.workload_code,
    ),
    Step(
        "health-prolog",
        health_prolog.install,
        roles=("worker",),
        switched_on=lambda settings: settings.health_check_prolog,
    ),
    # After everything that writes logs.
    Step("log-rotation", log_rotation.install),
    Step("release-node", hold.release, roles=("worker",)),
)
