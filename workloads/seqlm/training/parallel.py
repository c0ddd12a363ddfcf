"""Distribution of a model over processes, with DDP or FSDP2."""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from .config import ParallelConfig
from .layered_model import LayeredModel
from .processes import Processes


def parallelize(
    model: LayeredModel,
    weights: dict[str, Tensor] | None,
    config: ParallelConfig,
    here: Processes,
    dtype: torch.dtype,
    loaded: Callable[[LayeredModel, torch.dtype], None] = lambda model, dtype: None,
) -> nn.Module:
    """Return a model with its weights on its device, with FSDP this process's share of it.

    Args:
        model: model with parameters on the meta device.
        weights: full fp32 state. With FSDP only the first process needs it, and sends each its share. None
            leaves the weights arbitrary, for a saved state that replaces all of them.
        config: settings of DDP or FSDP2.
        here: this process.
        dtype: type of the arithmetic. Master weights, gradients and their reduction stay in fp32.
        loaded: function that changes the model on the host, once it has its weights; called with DDP alone.

    Raises:
        ValueError: if ``config.shard_size`` does not divide the number of processes.
    """
    if config.mode == "fsdp":
        _shard(model, _mesh(config, here), here.device, dtype)
        if weights is not None:
            set_weights(model, weights, config)
        return model
    if weights is None:
        model.to_empty(device="cpu")
    else:
        model.load_state_dict(weights, assign=True)
    model.tie_weights()
    model.make_buffers(torch.device("cpu"))
    loaded(model, dtype)
    model.to(here.device)
    model.tie_weights()  # again: a move to some devices replaces the parameters
    return model


def set_weights(model: nn.Module, weights: dict[str, Tensor], config: ParallelConfig) -> None:
    """Set all weights of a model that ``parallelize`` has returned.

    Args:
        model: model on its device.
        weights: full fp32 state, as for ``parallelize``.
        config: settings of DDP or FSDP2.
    """
    if config.mode == "fsdp":
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(model, dict(weights), options=options)
    else:
        model.load_state_dict(weights)


def in_ddp(model: nn.Module, here: Processes) -> nn.Module:
    """Return a model inside DDP, which averages gradients during the last backward pass of a step.

    Args:
        model: whole model on its device.
        here: this process. If it is the only one, there is nothing to average, and the model is returned.
    """
    if here.world_size == 1:
        return model
    # torch 2.13 deprecates broadcast_buffers, the name in torch 2.11.
    is_new = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    no_buffers: dict[str, Any] = {"forward_sync_buffers" if is_new else "broadcast_buffers": False}
    return DistributedDataParallel(
        model,
        device_ids=[here.device] if here.device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        **no_buffers,
    )


def send_parameters(model: nn.Module, here: Processes) -> None:
    """Send the first process's parameters to all others, as the constructor of DDP does."""
    if here.world_size == 1:
        return
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), src=0)


def _mesh(config: ParallelConfig, here: Processes) -> DeviceMesh:
    """Return the mesh of an FSDP2 model: shards, or replicas of shards (HSDP)."""
    shard_size = config.shard_size or here.world_size
    if here.world_size % shard_size:
        raise ValueError(
            f"parallel.shard_size: got {shard_size}; it must divide the number of processes "
            f"({here.world_size}), so that every group holds a whole model"
        )
    if shard_size == here.world_size:
        return init_device_mesh(here.device.type, (shard_size,), mesh_dim_names=("shard",))
    replicas = here.world_size // shard_size
    return init_device_mesh(
        here.device.type, (replicas, shard_size), mesh_dim_names=("replicate", "shard")
    )


def _shard(model: LayeredModel, mesh: DeviceMesh, device: torch.device, dtype: torch.dtype) -> None:
    """Shard a model in place, with arbitrary weights on its device."""
    # Layer inputs stay as they are: the residual stream is fp32, as under DDP with autocast.
    policy = MixedPrecisionPolicy(
        param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    # Each layer is a unit. The root is another, since embedding and decoder may share a weight.
    model.is_sharded = True
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device=device)
    model.make_buffers(device)
    model.tie_weights()


@contextlib.contextmanager
def accumulating(model: nn.Module, is_last: bool) -> Iterator[None]:
    """Reduce gradients in the last micro-batch only; the block is the passes of one micro-batch.

    FSDP2 reduces within a shard group in each micro-batch, because unreduced gradients would need the memory
    of an unsharded model. Between the replicas of HSDP it reduces in the last one.
    """
    if isinstance(model, FSDPModule):
        model.set_requires_all_reduce(is_last)
    if isinstance(model, DistributedDataParallel) and not is_last:
        with model.no_sync():
            yield
    else:
        yield


def bare(model: nn.Module) -> LayeredModel:
    """Return the model inside DDP. FSDP2 does not wrap a model."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    assert isinstance(inner, LayeredModel)
    return inner


def clip_gradients(model: nn.Module, max_norm: float) -> Tensor:
    """Scale all gradients to a global norm of at most ``max_norm``, and return the norm before.

    Args:
        model: model with gradients.
        max_norm: largest norm; 0 leaves the gradients as they are.
    """
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    if max_norm > 0:
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), max_norm, norm)
    return norm
