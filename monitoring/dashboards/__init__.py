"""Grafana dashboards of a cluster, from code.

What they ask for is what its exporters and trainings emit, which the tests hold against each other.
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
    """Models by their uid, as Grafana's HTTP API takes them.

    ``LUSTRE_MARK`` and ``HOME_MARK`` in them stand for the ids of the file systems, and are to be replaced.
    """
    queue = slurm_queue() if scheduler == "slurm" else kueue_queue()
    made = [health(scheduler), training(scheduler), gpus(), efa(), file_systems(scheduler), queue]
    return {model["uid"]: model for model in made}
