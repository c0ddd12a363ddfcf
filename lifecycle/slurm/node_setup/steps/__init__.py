"""The steps, in the order in which they run."""

from node_setup.settings import Settings
from node_setup.step import Step
from node_setup.steps import (
    accounting,
    bucket_mount,
    cloudwatch_agent,
    container_storage,
    credentials,
    exporters,
    gpu_exporter,
    health_prolog,
    hold,
    job_memory,
    log_rotation,
    managed_mlflow,
    message_of_the_day,
    metrics_collector,
    mounts,
    pam_adopt,
    proxy,
    slurm_accounts,
    slurm_controller,
    slurm_partitions,
    slurm_qos,
    slurm_worker,
    studio,
    users,
    workload_code,
)


def _metrics(settings: Settings) -> bool:
    return settings.metrics


STEPS: tuple[Step, ...] = (
    # Before any user's program can run.
    Step("instance-credentials", credentials.block),
    # Early, so that it reports failed steps.
    Step("message-of-the-day", message_of_the_day.install),
    # If there is none, the step removes its changes.
    Step("proxy", proxy.apply),
    Step("hold-node", hold.hold, roles=("worker",)),
    Step(
        "lustre-mount",
        mounts.verify_lustre,
        switched_on=lambda settings: settings.lustre_mount_path is not None,
    ),
    # While the node is held, because the file system is mounted again.
    Step(
        "lustre-efa",
        mounts.set_up_efa,
        switched_on=lambda settings: settings.lustre_efa is not None,
    ),
    Step(
        "home-mount",
        mounts.verify_home,
        switched_on=lambda settings: settings.home_mount_path is not None,
    ),
    # If it is switched off, the step removes its changes.
    Step("bucket-mount", bucket_mount.apply),
    Step("slurm-controller", slurm_controller.verify, roles=("controller",)),
    Step("slurm-worker", slurm_worker.verify, roles=("worker",)),
    Step("slurm-client", slurm_worker.verify_login_node, roles=("login",)),
    Step("accounting", accounting.verify, roles=("controller",)),
    # Homes are on the file systems; accounts in Slurm are of users who exist.
    Step("users", users.apply),
    # Before accounts and partitions refer to them. Without a section in the file, the steps remove their
    # changes.
    Step("slurm-qos", slurm_qos.apply, roles=("controller",)),
    Step("slurm-accounts", slurm_accounts.apply, roles=("controller",)),
    Step("slurm-partitions", slurm_partitions.apply, roles=("controller",)),
    Step("slurm-old-qos", slurm_qos.remove_old, roles=("controller",)),
    # If it is switched off, the step removes its changes.
    Step("pam-adopt", pam_adopt.apply, roles=("worker",)),
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
    # If it is switched off, the step removes it.
    Step("health-prolog", health_prolog.apply, roles=("worker",)),
    Step("job-memory", job_memory.install, roles=("worker",)),
    # After Slurm's own steps, because these steps query its metrics.
    Step("node-exporter", exporters.run_node_exporter, switched_on=_metrics),
    Step("gpu-exporter", gpu_exporter.run_exporter, roles=("worker",), switched_on=_metrics),
    Step("efa-metrics", exporters.run_collector_of_efa, roles=("worker",), switched_on=_metrics),
    Step(
        "slurm-metrics",
        exporters.run_collector_of_slurm,
        roles=("controller",),
        switched_on=_metrics,
    ),
    Step(
        "metrics-collector",
        metrics_collector.run_collector,
        roles=("controller",),
        switched_on=_metrics,
    ),
    Step(
        "metrics-off",
        metrics_collector.remove_metrics,
        switched_on=lambda settings: not settings.metrics,
    ),
    # If they are switched off, the steps remove their changes.
    Step("managed-mlflow", managed_mlflow.apply, roles=("worker",)),
    Step("studio", studio.apply, roles=("controller",)),
    Step("cloudwatch-agent", cloudwatch_agent.apply),
    # After everything that writes logs.
    Step("log-rotation", log_rotation.install),
    Step("release-node", hold.release, roles=("worker",)),
)
