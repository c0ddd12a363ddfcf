"""Grafana dashboards of a cluster.

They query the metrics that exporters and trainings emit; the tests compare both.
"""

from monitoring.dashboards.devices import efa, gpus
from monitoring.dashboards.file_systems import HOME_MARK, LUSTRE_MARK, file_systems
from monitoring.dashboards.health import health
from monitoring.dashboards.model import CLOUDWATCH_UID, PROMETHEUS_UID, Model
from monitoring.dashboards.queues import kueue_queue, slurm_queue
from monitoring.dashboards.selection import Scheduler
from monitoring.dashboards.training import training

__all__ = ["CLOUDWATCH_UID", "HOME_MARK", "LUSTRE_MARK", "PROMETHEUS_UID", "dashboards"]


def dashboards(scheduler: Scheduler) -> dict[str, Model]:
    """Return the models of the dashboards by uid, in the form of Grafana's HTTP API.

    Before use, ``LUSTRE_MARK`` and ``HOME_MARK`` must be replaced with the ids of the file systems.
    """
    models = [
        health(scheduler),
        training(scheduler),
        gpus(),
        efa(),
        file_systems(scheduler),
        slurm_queue() if scheduler == "slurm" else kueue_queue(),
    ]
    return {model["uid"]: model for model in models}
