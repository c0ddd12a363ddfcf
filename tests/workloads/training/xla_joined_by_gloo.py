"""Training by several processes on torch_xla's CPU device, with the trainer's command line.

That device exchanges nothing between processes. So what are parts of the graph on Trainium, the sums over
processes, go through gloo on the host here.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from unittest import mock

import torch.distributed as dist
import torch_xla
from torch import Tensor
from torch.optim import Optimizer

from seqlm.commands.train import train as main
from seqlm.runs.run_file import run_stage
from seqlm.training.device_runtime import XlaRuntime
from seqlm.training.processes import Processes


@cache
def _gloo() -> dist.ProcessGroup:
    return dist.new_group(backend="gloo")


def add_up(here: Processes, values: Tensor) -> None:
    on_host = values.cpu()
    dist.all_reduce(on_host, group=here.control)
    values.copy_(on_host)


def reduce_gradients(runtime: XlaRuntime, optimizers: Iterable[Optimizer]) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                on_host = parameter.grad.cpu()
                dist.all_reduce(on_host, group=_gloo())
                parameter.grad.copy_(on_host / dist.get_world_size())


if __name__ == "__main__":
    with (
        mock.patch.object(XlaRuntime, "rendezvous", "env://"),
        mock.patch.object(XlaRuntime, "summed_device", staticmethod(torch_xla.device)),
        mock.patch.object(XlaRuntime, "reduce_gradients", reduce_gradients),
        mock.patch.object(Processes, "add_up", add_up),
    ):
        run_stage(main)
