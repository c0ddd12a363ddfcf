"""Port at which a training on a cluster publishes its metrics.

Standard library alone: the nodes' own Python reads it, too.
"""

PORT = "ESM2_METRICS_PORT"
"""Variable of the port on which a training's first process answers; without it, none does."""
JOB_ID = "ESM2_JOB_ID"
"""Variable of the job's name in the metrics."""
POD_PORT = 9500
FIRST_SLURM_PORT, NUM_SLURM_PORTS = 10_000, 10_000
"""Above those of the nodes' services, below those where processes meet (``launch/node_agent.py``)."""
SLURM_COMMENT = "prometheus"
"""Comment of jobs whose first node ``collectors/discover_nodes.py`` scrapes."""


def slurm_port(job_id: int) -> int:
    """Return the port of a job on a node. Jobs with numbers 10,000 apart would share it."""
    return FIRST_SLURM_PORT + job_id % NUM_SLURM_PORTS
