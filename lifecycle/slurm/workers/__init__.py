"""Workers in the controller's view, and runs of the scripts on them through Slurm."""
