"""Messages between the processes of a real run, recorded during one step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from seqlm.runs.run_file import load_config
from seqlm.training import train
from seqlm.training.kernels import PRODUCTS
from seqlm.training.processes import processes
from seqlm.training.step.flags import Flags
from seqlm.training.trainer import Trainer
from tests.workloads.training.kept_gradient_runs import PlainPretraining

RECORDED_STEP = 3
"""Number of the recorded step. DDP orders its buckets anew between the first and the second one."""

_LOCAL = ("_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd")
"""Operations of torch.distributed that send nothing."""


class Recorded(Exception):
    """The step has been recorded; the rest of the run is not needed."""


class Recorder(TorchDispatchMode):
    """Record the collective operations of this thread, and of the backward passes that it starts."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, Sequence[int], int]] = []
        """Collective, ranks and bytes of the whole tensor of each operation."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it calls the operations on its parts
        name = func.name().split(".")[0]
        if "c10d" in name and name not in _LOCAL:
            self.found.append(_described(name, args))
        return func(*args, **(kwargs or {}))


def _described(name: str, args: Sequence[Any]) -> tuple[str, Sequence[int], int]:
    """Return collective, ranks and bytes of an operation; others than those of a step keep their name."""
    if name == "c10d::allreduce_":
        return "all-reduce", _ranks(args[1]), sum(tensor.nbytes for tensor in args[0])
    if name == "c10d::_allgather_base_":
        return "all-gather", _ranks(args[2]), args[0].nbytes
    if name == "c10d::_reduce_scatter_base_":
        return "reduce-scatter", _ranks(args[2]), args[1].nbytes
    if name == "_c10d_functional::all_reduce":
        return "all-reduce", _ranks(args[2]), args[0].nbytes
    return name, (), sum(value.nbytes for value in args if isinstance(value, Tensor))


def _ranks(group: Any) -> Sequence[int]:
    """Return the ranks of a group, which operations take by its name or as an object of C++."""
    if isinstance(group, str):
        group = dist.distributed_c10d._resolve_process_group(group)
    elif not isinstance(group, dist.ProcessGroup):
        group = dist.ProcessGroup.unbox(group)
    return dist.get_process_group_ranks(group)


def record_messages(run_file: Path, overrides: str, *, keeps_gradients: bool) -> None:
    """Train; the messages from one step to the next go to ``<run>/messages-<rank>.json``.

    Args:
        run_file: run file.
        overrides: changes of the run file.
        keeps_gradients: whether the trainer takes a kernel to be in use that keeps gradients.
    """
    kernels = frozenset({PRODUCTS}) if keeps_gradients else None
    config = load_config(run_file, overrides.split())
    recorder = Recorder()
    steps = 0
    step = Trainer.step
    with processes() as here, ExitStack() as recording:

        def counted_step(trainer: Trainer, packs: Any, flags: Flags, **options: bool) -> None:
            nonlocal steps
            steps += 1
            if steps == RECORDED_STEP:
                recording.enter_context(recorder)
            if steps > RECORDED_STEP:
                raise Recorded
            step(trainer, packs, flags, **options)

        with (
            mock.patch.object(Trainer, "step", counted_step),
            mock.patch.object(train, "Trainer", partial(Trainer, kernels=kernels)),
            suppress(Recorded),
        ):
            train.train(PlainPretraining(config), here)
        recording.close()
        path = config.run_dir / f"messages-{here.rank}.json"
        path.write_text(json.dumps(recorder.found))
