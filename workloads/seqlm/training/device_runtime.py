"""Operations that differ by the kind of device, so that the trainer is the same on all of them.

``DeviceRuntime`` serves the CPU and CUDA GPUs; most of its methods do nothing. ``XlaRuntime`` serves XLA
devices: AWS Trainium by torch-neuronx, or this machine's cores to test the same code.

torch_xla records operations instead of running them. ``flush`` compiles the recorded graph and starts it. A
known graph is not compiled again, and neuronx-cc takes minutes for each new one. A run therefore consists of
a few graphs: shapes are constant, changing numbers are tensors, and the host reads no value in between.

torch 2.9 is the last version that AWS Neuron supports by XLA (release notes of SDK 2.29). Later versions have
a device of their own, ``neuron``, which is not used here. Only functions import torch_xla, because most
machines lack it.
"""

import dataclasses
import os
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.utils.checkpoint import checkpoint

from .config import RunConfig
from .config_rules import xla_violations
from .peak_rates import NEURON_CORE_BF16_FLOPS
from .step.gradients import FlatGradients, Gradients
from .step.graph import CudaRecording, Recording

T = TypeVar("T")

PJRT_DEVICE = "PJRT_DEVICE"
"""Environment variable with the device of torch_xla: NEURON, or CPU."""
COMPILE_CACHE = "neuron-cache"
"""Folder for compiled graphs within a run's folder, for all nodes and for later starts."""
CACHE_VARIABLE = "NEURON_COMPILE_CACHE_URL"
"""Environment variable with the folder for compiled graphs."""
_CHIPS = {"trn1": "Trainium", "trn2": "Trainium2"}
"""Chips by the first four letters of instance types."""
_INSTANCE_TYPE = Path("/sys/devices/virtual/dmi/id/product_name")
"""File with the EC2 instance type."""


@dataclasses.dataclass(frozen=True)
class DeviceRuntime:
    """Runtime of the CPU or of a CUDA GPU."""

    device: torch.device
    keeps_gradients: ClassVar[bool] = False
    """Whether gradients always keep their places in memory, so that neither DDP nor FSDP2 is used."""
    checkpoints_on_host: ClassVar[bool] = False
    """Whether checkpoints are copied to the host first, by the first process alone."""
    restores_first: ClassVar[bool] = True
    """Whether a saved state is restored as soon as the model is on its device, before anything else."""
    compiles_shapes: ClassVar[bool] = False
    """Whether each new shape is compiled, for minutes. The ceiling of products is then not measured."""
    adamw: ClassVar[dict[str, bool]] = {"fused": True}
    """Options of AdamW."""

    @property
    def backend(self) -> str:
        """Backend of torch.distributed."""
        return "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"

    def group_options(self) -> dict[str, Any]:
        """Return the device's own arguments of ``init_process_group``."""
        return {"device_id": self.device} if self.device.type == "cuda" else {}

    def connect(self, compile_cache: Path | None, control: dist.ProcessGroup) -> torch.device:
        """Return the device of this process, once the process group exists.

        Args:
            compile_cache: folder for compiled graphs; None on devices that compile none.
            control: CPU group of all processes.

        Raises:
            ValueError: if the devices of all processes are not connected.
        """
        return self.device

    def check(self, config: RunConfig, others: Sequence[str] = ()) -> None:
        """Check that the device supports the settings of a run.

        Args:
            config: configuration of the run.
            others: problems of settings that the trainer does not read.

        Raises:
            ValueError: naming each field that the device does not support.
        """

    def prepare(self, optimizers: Iterable[Optimizer]) -> None:
        """Prepare optimizers for the first step, once the gradients of the run exist."""

    def failure_flag(self, optimizers: Iterable[Optimizer]) -> Tensor | None:
        """Return a () fp32 tensor of 0 that the optimizers read. Once it is 1, they change nothing.

        None if optimizers take no flag. The host must then read a failure before each update.
        """
        flag = torch.zeros((), device=self.device)
        for optimizer in optimizers:
            optimizer.found_inf = flag  # type: ignore[attr-defined]
        return flag

    @property
    def packs_on(self) -> torch.device:
        """Device on which packs are masked."""
        return self.device

    def place(self, pack: T) -> T:
        """Return a pack, a dataclass of tensors on ``packs_on``, on the device."""
        return pack

    def seed(self, number: int) -> None:
        """Seed the generators of the CPU and of the device.

        ``torch.manual_seed`` also seeds kinds of devices that are not there, and formats the stack for each.
        """
        torch.default_generator.manual_seed(number)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(number)

    def flush(self) -> None:
        """Start the operations recorded so far, without waiting for their end."""

    def gradients(
        self,
        optimizers: Sequence[Optimizer],
        world_size: int,
        *,
        are_kept: bool,
        adjacent: Sequence[Sequence[nn.Parameter]] = (),
    ) -> Gradients:
        """Return the gradients of a run.

        Args:
            optimizers: optimizers of all trained parameters.
            world_size: number of processes.
            are_kept: whether gradients keep their places in memory from step to step.
            adjacent: groups of parameters whose kept gradients lie side by side.
        """
        if are_kept:
            return FlatGradients(optimizers, world_size, adjacent)
        return Gradients(optimizers)

    def recorded(self, function: Callable[[], Tensor]) -> Recording:
        """Call a function several times, and record its operations.

        Raises:
            ValueError: if the device cannot record operations.
        """
        if self.device.type != "cuda":
            raise ValueError(f"device: got {self.device.type}; only CUDA records operations")
        return CudaRecording(function)

    def recomputed(self, layer: Callable[..., tuple[Tensor, Any]], *arguments: object) -> Tensor:
        """Return a layer's first output; the backward pass computes its activations again."""
        # Layers have no dropout, so the state of the generator is not needed.
        result: Tensor
        result, _ = checkpoint(layer, *arguments, use_reentrant=False, preserve_rng_state=False)
        return result

    def name(self) -> str | None:
        """Return the device's name for reports; None for a CPU."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else None

    @property
    def has_bf16(self) -> bool:
        """Whether every device of this kind multiplies bf16 natively."""
        return self.device.type == "cuda"

    def peak_flops(self) -> float | None:
        """Return bf16 FLOP/s of a device that is known by other than a GPU's name."""
        return None


class XlaRuntime(DeviceRuntime):
    """Runtime of an XLA device: a NeuronCore, or the CPU by torch_xla."""

    keeps_gradients = True
    checkpoints_on_host = True  # torch cannot write XLA's tensors
    restores_first = False  # the optimizers' state is created together with the gradients
    compiles_shapes = True
    # torch's fused kernel does not run on XLA devices. With ``capturable`` the number of steps is a tensor on
    # the device. As a number of the host it would change the graph: late in a run bias corrections reach 1,
    # which torch_xla turns into a constant.
    adamw: ClassVar[dict[str, bool]] = {"capturable": True}
    rendezvous: ClassVar[str] = "xla://"
    """Method by which torch_xla connects devices, from torchrun's variables."""

    @property
    def backend(self) -> str:
        return "xla"  # torch_xla allows no second backend

    def group_options(self) -> dict[str, Any]:
        return {"init_method": self.rendezvous}

    def connect(self, compile_cache: Path | None, control: dist.ProcessGroup) -> torch.device:
        assert compile_cache is not None  # requested_runtime selects this runtime only with one
        if dist.get_rank() == 0:
            drop_locks(compile_cache)
        dist.barrier(group=control)
        return self.summed_device()

    @staticmethod
    def summed_device() -> torch.device:
        """Return the device after one sum over all processes.

        Raises:
            ValueError: if the sum does not reach all processes. torch_xla raises no error, and each process
                would train alone (pytorch/xla issue 9496).
        """
        import torch_xla

        device: torch.device = torch_xla.device()
        expected = int(os.environ.get("WORLD_SIZE", "1"))
        one = torch.ones((), device=device)
        dist.all_reduce(one)
        found = round(one.item())
        if found != expected:
            raise ValueError(
                f"{PJRT_DEVICE}: got {os.environ[PJRT_DEVICE]} with {expected} processes, of which XLA adds "
                f"up {found}: they would train apart. Start one process per NeuronCore, or a single one with "
                f"{PJRT_DEVICE}=CPU, or unset it to train on the CPU"
            )
        return device

    def check(self, config: RunConfig, others: Sequence[str] = ()) -> None:
        problems = [*xla_violations(config), *others]
        if problems:
            raise ValueError(
                f"{PJRT_DEVICE}={os.environ.get(PJRT_DEVICE)}:\n  " + "\n  ".join(problems)
            )

    def prepare(self, optimizers: Iterable[Optimizer]) -> None:
        """Create the optimizers' state and, in the same graph, the gradients of 0 that are recorded so far.

        Otherwise the first micro-batch and the first update would be further graphs, as large as the later
        ones, and a checkpoint would be read into states that are created one by one.
        """
        for optimizer in optimizers:
            assert isinstance(optimizer, AdamW)  # xla_violations refuses the others
            for group in optimizer.param_groups:
                optimizer._init_group(group, [], [], [], [], [], [])
        self.flush()

    def failure_flag(self, optimizers: Iterable[Optimizer]) -> None:
        return None

    @property
    def packs_on(self) -> torch.device:
        # Masks are 64-bit hashes, and Trainium computes with 32 bits (compiler error NCC_ESFH002).
        return torch.device("cpu")

    def place(self, pack: T) -> T:
        moved: dict[str, Any] = {}
        for field in dataclasses.fields(pack):  # type: ignore[arg-type]  # a dataclass, whatever T is
            value = getattr(pack, field.name)
            if isinstance(value, Tensor):
                moved[field.name] = value.to(self.device)
            elif dataclasses.is_dataclass(value):
                moved[field.name] = self.place(value)
        return dataclasses.replace(pack, **moved)  # type: ignore[type-var]  # likewise

    def flush(self) -> None:
        import torch_xla

        torch_xla.sync()

    def gradients(
        self,
        optimizers: Sequence[Optimizer],
        world_size: int,
        *,
        are_kept: bool,
        adjacent: Sequence[Sequence[nn.Parameter]] = (),
    ) -> Gradients:
        assert not adjacent  # no kernel that needs it runs on XLA devices
        assert are_kept  # keeps_gradients
        return _XlaGradients(self, optimizers)

    def reduce_gradients(self, optimizers: Iterable[Optimizer]) -> None:
        """Record the mean over all processes as a part of the graph."""
        import torch_xla.core.xla_model as xm

        for optimizer in optimizers:
            xm.reduce_gradients(optimizer)

    def recomputed(self, layer: Callable[..., tuple[Tensor, Any]], *arguments: object) -> Tensor:
        # torch's function has no effect: XLA recognizes the second computation as equal and removes it.
        from torch_xla.utils.checkpoint import checkpoint

        return checkpoint(lambda *given: layer(*given)[0], *arguments, preserve_rng_state=False)

    def name(self) -> str:
        kind = os.environ.get(PJRT_DEVICE, "")
        if kind != "NEURON":
            return f"XLA:{kind}"
        core = f"NeuronCore of {_instance_type()}"
        chip = _chip()
        return f"{chip} {core}" if chip else core

    @property
    def has_bf16(self) -> bool:
        return os.environ.get(PJRT_DEVICE) == "NEURON"

    def peak_flops(self) -> float | None:
        """Return the peak bf16 FLOP/s of one logical NeuronCore; None if it is not known."""
        chip = _chip()
        return NEURON_CORE_BF16_FLOPS[chip] if chip and self.has_bf16 else None


class _XlaGradients(Gradients):
    """Gradients on XLA devices, which are tensors of their own: XLA has no views.

    They exist before the first micro-batch, and are set to 0 in the graph of the update, so that the first
    micro-batch of a step is the same graph as the others.

    Args:
        runtime: runtime of the device.
        optimizers: optimizers of all trained parameters.
    """

    def __init__(self, runtime: XlaRuntime, optimizers: Sequence[Optimizer]) -> None:
        super().__init__(optimizers)
        self._runtime = runtime
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = torch.zeros_like(parameter)

    def reduce(self) -> None:
        self._runtime.reduce_gradients(self._optimizers)

    def end(self) -> None:
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=False)

    def release(self) -> None:
        super().end()


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to the device, without making the host wait."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor


def uses_flash(x: Tensor) -> bool:
    """Return whether torch's varlen flash kernel computes attention for the device and type of ``x``."""
    return x.is_cuda and x.dtype in (torch.bfloat16, torch.float16)


@cache
def runtime_of(device: torch.device) -> DeviceRuntime:
    """Return the runtime of a device."""
    return (XlaRuntime if device.type == "xla" else DeviceRuntime)(device)


def requested_runtime(compile_cache: Path | None) -> DeviceRuntime:
    """Return the runtime that the environment requests for this process.

    Args:
        compile_cache: folder for compiled graphs. Without one, PJRT_DEVICE is not read.

    Raises:
        ValueError: if PJRT_DEVICE is set and torch_xla is missing.
    """
    if compile_cache is not None and os.environ.get(PJRT_DEVICE):
        register(compile_cache)
        return XlaRuntime(torch.device("xla"))
    if not torch.cuda.is_available():
        return DeviceRuntime(torch.device("cpu"))
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return DeviceRuntime(device)


def register(compile_cache: Path) -> None:
    """Register torch_xla's device and its backend ``xla`` of torch.distributed with torch.

    Args:
        compile_cache: folder for compiled graphs, unless the environment names another one.

    Raises:
        ValueError: if torch_xla is missing.
    """
    if os.environ[PJRT_DEVICE] == "NEURON":
        os.environ.setdefault(CACHE_VARIABLE, str(compile_cache.absolute()))
    try:
        import torch_xla.distributed.xla_backend  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"{PJRT_DEVICE}: got {os.environ[PJRT_DEVICE]}, and torch_xla cannot be imported ({error}); use "
            f"an image with torch-neuronx, or unset {PJRT_DEVICE} to train on a GPU or the CPU"
        ) from error


def drop_locks(compile_cache: Path) -> None:
    """Remove the locks of killed compilations, for which a process would wait for ever.

    One process calls this, before any of them compiles. A folder that the environment names is not changed,
    because other runs may use it (AWS Neuron documentation, "neuron_parallel_compile", clear-locks).
    """
    if os.environ.get(CACHE_VARIABLE) == str(compile_cache.absolute()):
        for lock in compile_cache.rglob("*.lock"):
            lock.unlink(missing_ok=True)


def _chip() -> str | None:
    """Return the name of this machine's Neuron chip; None if it is not known."""
    return _CHIPS.get(_instance_type()[:4])


def _instance_type() -> str:
    """Return the EC2 instance type of this machine, such as trn1.32xlarge."""
    try:
        return _INSTANCE_TYPE.read_text().strip()
    except OSError:
        return "an unknown machine"
