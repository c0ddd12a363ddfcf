"""The processes of a run, and the one place where DDP and FSDP2 differ."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from .config import ParallelConfig
from .model import PackedEsm


@dataclass(frozen=True)
class Processes:
    """The place of this process in the run, as torchrun's environment describes it."""

    rank: int
    world_size: int
    device: torch.device
    control: dist.ProcessGroup
    """CPU group for flags that the host reads, so that no step waits for the device because of them."""

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum_on_host(self, *values: float) -> list[float]:
        """Sum of each value over all processes."""
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total, group=self.control)
        return [float(value) for value in total]

    def to_host(self, values: Tensor) -> list[float]:
        """Wait for the device, and so for all processes whose results went into the values."""
        return [float(value) for value in values.tolist()]


@contextlib.contextmanager
def processes(timeout: timedelta | None = None) -> Iterator[Processes]:
    """Join the process group that torchrun describes; without torchrun, a group of one.

    NCCL for tensors on CUDA, gloo for the rest. A collective that lasts longer than ``timeout`` ends the
    process; torch's default is 10 minutes with NCCL, 30 with gloo.
    """
    cuda = torch.cuda.is_available()
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend, timeout=timeout, device_id=device if cuda else None)
    else:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
    control = dist.new_group(backend="gloo", timeout=timeout)
    yield Processes(dist.get_rank(), dist.get_world_size(), device, control)
    # Not after an error: it would wait for processes that know nothing of it.
    dist.destroy_process_group()


def parallelize(
    model: PackedEsm,
    weights: dict[str, Tensor],
    config: ParallelConfig,
    here: Processes,
    dtype: torch.dtype,
) -> nn.Module:
    """Give a model made on the meta device its weights and its place on the devices.

    Args:
        model: parameters on the meta device.
        weights: full fp32 state on the first process; others may pass an empty dict with FSDP, where the
            first process sends each its share.
        config: DDP or FSDP2, and the size of an FSDP2 shard group.
        here: this process.
        dtype: type of the arithmetic. Master weights, gradients and their reduction stay in fp32.

    Raises:
        ValueError: if ``config.shard_size`` does not divide the number of processes.
    """
    if config.mode == "fsdp":
        return _shard(model, weights, _mesh(config, here), here.device, dtype)
    model.load_state_dict(weights, assign=True)
    model.tie_weights()
    model.to(here.device)  # type: ignore[arg-type]  # transformers wraps it
    if here.world_size == 1:
        return model
    return DistributedDataParallel(
        model,
        device_ids=[here.device] if here.device.type == "cuda" else None,
        forward_sync_buffers=False,
        gradient_as_bucket_view=True,
    )


def _mesh(config: ParallelConfig, here: Processes) -> DeviceMesh:
    shard_size = config.shard_size or here.world_size
    if here.world_size % shard_size:
        raise ValueError(
            f"parallel.shard_size: got {shard_size}; it must divide the number of processes "
            f"({here.world_size}), so that every group holds a whole model"
        )
    if shard_size == here.world_size:
        return init_device_mesh(here.device.type, (shard_size,), mesh_dim_names=("shard",))
    replicas = here.world_size // shard_size
    return init_device_mesh(here.device.type, (replicas, shard_size), mesh_dim_names=("replicate", "shard"))


def _shard(
    model: PackedEsm,
    weights: dict[str, Tensor],
    mesh: DeviceMesh,
    device: torch.device,
    dtype: torch.dtype,
) -> nn.Module:
    # Layer inputs stay as they are: the residual stream is fp32, as under DDP with autocast.
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    # One unit a layer, and the root: embedding and decoder share a weight, so they belong to one unit.
    for layer in model.esm.encoder.layer:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device=device)
    model.tie_weights()
    set_model_state_dict(
        model, dict(weights), options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    )
    return model


@contextlib.contextmanager
def accumulating(model: nn.Module, is_last: bool) -> Iterator[None]:
    """Around one micro-batch's forward and backward pass: reduce gradients in the last one only.

    FSDP2 reduces in each, since unreduced gradients would need the memory of an unsharded model; between
    the replicas of HSDP it too waits for the last.
    """
    if isinstance(model, FSDPModule):
        model.set_requires_all_reduce(is_last)
    if isinstance(model, DistributedDataParallel) and not is_last:
        with model.no_sync():
            yield
    else:
        yield


def bare(model: nn.Module) -> PackedEsm:
    """The model inside DDP; FSDP2 does not wrap."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    assert isinstance(inner, PackedEsm)
    return inner


def clip_gradients(model: nn.Module, max_norm: float) -> Tensor:
    """Scale all gradients to a global norm of at most ``max_norm`` (0: leave them); the norm before."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    if max_norm > 0:
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), max_norm, norm)
    return norm
