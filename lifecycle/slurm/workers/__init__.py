"""Workers as the controller sees them, and running the scripts on them through Slurm."""
