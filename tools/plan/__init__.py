"""What a run will need on a cluster: memory, days, dollars, checkpoints, and emissions."""
