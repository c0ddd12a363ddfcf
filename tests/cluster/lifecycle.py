"""The lifecycle scripts, as HyperPod's agent runs them on a node."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tests.cluster.bundle import BUCKET
from tests.cluster.cluster import Cluster
from tests.cluster.machine import Machine, Result

# Waits of minutes, as for a large file system, are worth seconds here; the longest that is needed is that for
# Prometheus to have asked its targets, which it does every 30 s.
PATIENCE = 0.4
# The agent's own: Slurm's programs are not on it.
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_RUN = """
[[ -e "/tmp/$1/$2" ]] || aws s3 cp --recursive --only-show-errors --region us-west-2 "s3://$1/$2" "/tmp/$1/$2"
cd "/tmp/$1/$2"
exec bash ./on_init_complete.sh
"""


@dataclass
class Lifecycle:
    prefix: str
    """Of the scripts in the bucket that new nodes get."""
    first_runs: dict[str, Result] = field(default_factory=dict)

    def run(self, machine: Machine, *, patience: float = PATIENCE) -> Result:
        """Run the scripts, fetched once, whatever their status is. ``patience`` multiplies their waits."""
        return machine.run(
            ["bash", "-euc", _RUN, "agent", BUCKET, self.prefix],
            environment={"PATH": _PATH, "LIFECYCLE_PATIENCE": str(patience), "SECONDS_TO_SHIP_LOG": "0"},
            check=False,
            seconds=240,
        )

    def run_on_all(self, cluster: Cluster) -> dict[str, Result]:
        """The controller first, as the service has it; then all others at once."""
        results = {cluster.controller.hostname: self.run(cluster.controller)}
        others = [machine for machine in cluster.machines if machine is not cluster.controller]
        with ThreadPoolExecutor(max_workers=len(others)) as pool:
            runs = pool.map(self.run, others)
            results |= {machine.hostname: result for machine, result in zip(others, runs, strict=True)}
        return results
