"""The lifecycle scripts, as HyperPod's agent runs them on a node."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from tests.cluster.bundle import BUCKET
from tests.cluster.cluster import Cluster, at_once
from tests.cluster.machine import Machine, Result

# Waits of minutes, as for a large file system, are worth seconds here.
PATIENCE = 0.4
# Nodes that start together share the cores of this machine. In 0.4 of a minute, slurmctld may not answer.
PATIENCE_OF_ALL = 1.0
_ENVIRONMENT = {
    # The agent's own: Slurm's programs are not on it.
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    # The steps' own retries are tried here, and not those of the aws command below them.
    "AWS_MAX_ATTEMPTS": "1",
    "SECONDS_TO_SHIP_LOG": "0",
}
_RUN = """
[[ -e "/tmp/$1/$2" ]] || aws s3 cp --recursive --only-show-errors --region us-west-2 "s3://$1/$2" "/tmp/$1/$2"
cd "/tmp/$1/$2"
exec bash ./on_init_complete.sh
"""


@dataclass
class Lifecycle:
    prefix: str
    """Hash of the scripts in the bucket for new nodes."""
    first_runs: dict[str, Result] = field(default_factory=dict)

    def run(self, machine: Machine, *, patience: float = PATIENCE, step: str = "") -> Result:
        """Run the scripts, fetched once, whatever their status is.

        ``patience`` multiplies their waits. With ``step``, only this step runs.
        """
        return machine.run(
            ["bash", "-euc", _RUN, "agent", BUCKET, self.prefix],
            environment={
                **_ENVIRONMENT,
                "LIFECYCLE_PATIENCE": str(patience),
                "NODE_SETUP_STEPS": step,
            },
            check=False,
            seconds=240,
        )

    @property
    def folder(self) -> str:
        """Folder of the scripts on each node."""
        return f"/tmp/{BUCKET}/{self.prefix}"

    def run_on_all(self, cluster: Cluster) -> dict[str, Result]:
        """On all nodes at once, as when they start together: those that need the controller wait for it."""
        results = at_once(partial(self.run, patience=PATIENCE_OF_ALL), cluster.machines)
        names = (machine.hostname for machine in cluster.machines)
        return dict(zip(names, results, strict=True))
