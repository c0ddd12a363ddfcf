"""Port at which a training on a cluster publishes its metrics.

The module needs only the standard library, because the nodes' own Python imports it, too.
"""

PORT = "ESM2_METRICS_PORT"
"""Environment variable with the port of a training's first process. Without it, no port is opened."""
JOB_ID = "ESM2_JOB_ID"
"""Environment variable with the job's name in the metrics."""
POD_PORT = 9500
"""Port of a training in a pod."""
FIRST_SLURM_PORT = 10_000
"""Lowest port of a job in Slurm, above the ports of the nodes' services."""
NUM_SLURM_PORTS = 10_000
"""Number of ports for jobs. All are below those where processes meet (``launch/node_agent.py``)."""
SLURM_COMMENT = "prometheus"
"""Comment of a job in Slurm, by which ``collectors/discover_nodes.py`` finds its first node."""


def slurm_port(job_id: int) -> int:
    """Return the port of a job on a node. Jobs with numbers 10,000 apart would share it."""
    return FIRST_SLURM_PORT + job_id % NUM_SLURM_PORTS
