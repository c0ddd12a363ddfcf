"""Totals and rates of a finished run, by their names in its results."""

from dataclasses import dataclass
from typing import Any

from seqlm.training.hardware import executed_flops, matmul_ceiling, peak_flops, peak_memory_bytes
from seqlm.training.parallel import bare
from seqlm.training.trainer import Trainer


@dataclass(frozen=True)
class Work:
    """Work of a finished run, in FLOPs of all processes together."""

    model_flops: float
    """Model FLOPs of all steps."""
    steady_model_flops: float
    """Model FLOPs of the steady steps."""
    steady_executed_flops: float
    """FLOPs of the products that the steady steps executed, padding included."""
    parameters: int
    """Number of trained parameters."""


def work_of(trainer: Trainer) -> Work:
    """Return the work of a run that has made all its steps."""
    progress = trainer.progress
    shape = trainer.shape
    device = trainer.here.device
    # Every pack has as many rows as one of padding: shapes are constant.
    padding = trainer.objective.stream(trainer.objective.split, shape, 0).load(None)
    pack = trainer.objective.pack(padding, shape, trainer.here.runtime.packs_on)
    num_packs = progress.steady_slots // shape.num_tokens
    executed = executed_flops(
        bare(trainer.model),
        progress.steady_slots,
        len(pack.rows) * num_packs,
        progress.steady_attended_pairs,
        recomputed=trainer.config.train.activation_checkpointing,
        on_cpu=device.type == "cpu",
    )
    return Work(
        model_flops=trainer.num_flops(progress.residues, progress.attended_pairs),
        steady_model_flops=trainer.num_flops(
            progress.steady_residues, progress.steady_attended_pairs
        ),
        steady_executed_flops=executed,
        parameters=sum(p.numel() for p in trainer.model.parameters() if p.requires_grad),
    )


def totals(trainer: Trainer, work: Work) -> dict[str, Any]:
    """Return totals and mean rates over all starts of a run, by their names in the results."""
    progress = trainer.progress
    seconds = max(progress.seconds, 1e-9)
    peak = peak_flops(trainer.here.device)
    return {
        "epoch": progress.epoch,
        "train_loss": progress.loss_sum / max(1, progress.step),
        "train_runtime": seconds,
        "train_samples": progress.proteins,
        "train_samples_per_second": progress.proteins / seconds,
        "train_steps_per_second": progress.step / seconds,
        "train_residues": progress.residues,
        "train_residues_per_second": progress.residues / seconds,
        "total_flos": work.model_flops,
        "fill": progress.residues / max(1, progress.slots),
        "mfu": work.model_flops / seconds / trainer.here.world_size / peak if peak else None,
    }


def steady_rates(trainer: Trainer, work: Work) -> dict[str, Any]:
    """Return rates of the steady steps and properties of the device, by their names in the results."""
    progress = trainer.progress
    here = trainer.here
    seconds = progress.steady_seconds
    peak = peak_flops(here.device)
    memory = peak_memory_bytes(here.device)  # before the matrices of the measurement below
    ceiling = None if here.runtime.compiles_shapes else matmul_ceiling(here.device, trainer.dtype)

    def share(flops: float, rate: float | None) -> float | None:
        """Return the share of a device's rate that the steady steps reached."""
        return flops / seconds / here.world_size / rate if seconds and rate else None

    return {
        "steady_seconds": seconds,
        "steady_residues_per_second": progress.steady_residues / seconds if seconds else None,
        "model_mfu": share(work.steady_model_flops, peak),
        "executed_mfu": share(work.steady_executed_flops, peak),
        "ceiling_flops_per_second": ceiling,
        "share_of_ceiling": share(work.steady_executed_flops, ceiling),
        "length_weighted_mean_length": progress.length_weighted_mean(trainer.shape.special_tokens),
        "peak_memory_bytes": memory,
    }
