from tests.lifecycle.node import stand_ins
from tests.lifecycle.slurm_commands import slurm

__all__ = ["slurm", "stand_ins"]
