"""Section ``bionemo`` of a run file, with settings for BioNeMo's training. Standard library only."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class BionemoConfig:
    """Fields of a run that only BioNeMo has; ``docs/bionemo.md`` lists the other fields that it uses.

    ``parallel``, ``train.compile``, ``train.pack_shares`` and ``train.activation_checkpointing`` concern our
    trainer only.
    """

    micro_batch_size: int | None = None
    """Proteins that a device reads at once; null is ``tokens_per_pack`` over ``model.max_residues`` + 2."""
    tensor_parallel_size: int = 1
    """Devices that share each layer (Megatron's tensor parallelism); must divide the world size."""
    check_every_steps: int | None = None
    """Steps between evaluations, each with a checkpoint, which BioNeMo does not separate; null is
    ``train.save_every_steps``. A run of fewer steps has one at its end."""
    dataset_workers: int = 4
    """Number of processes per device that read data."""
    convert: Literal["to_transformers", "from_transformers"] = "to_transformers"
    """``make convert-bionemo``: the run's newest checkpoint to its ``model`` folder; or ``model.init_from``,
    a transformers folder or hub id, to a checkpoint in ``data.downloads`` that BioNeMo starts from."""
