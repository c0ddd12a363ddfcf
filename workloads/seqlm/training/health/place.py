"""Place of a process: its node, and the GPU with its serial number and state."""

import os
import socket
from dataclasses import asdict, dataclass
from typing import Any

import torch

from seqlm.training.hardware import printed
from seqlm.training.processes import Processes

NODE_VARIABLES = ("SLURMD_NODENAME", "NODE_NAME")
"""Environment variables with the node's name on Slurm and, by our manifests, on Kubernetes."""
_QUERY = ("index", "serial", "clocks.sm", "clocks.max.sm", "temperature.gpu")
"""Properties that nvidia-smi prints, in the order of the first fields of ``GpuState``."""
_UNKNOWN = "[N/A]"
"""Text of nvidia-smi for what a GPU does not report, such as the serial number of some boards."""


@dataclass(frozen=True)
class GpuState:
    """Answer of nvidia-smi about a GPU. A field is None if the GPU does not report it."""

    index: str | None = None
    """Number of the GPU on its node."""
    serial: str | None = None
    clock_mhz: str | None = None
    """Clock of the multiprocessors."""
    max_clock_mhz: str | None = None
    temperature: str | None = None
    """Temperature in degrees Celsius."""
    answers: bool = True
    """Whether NVML, NVIDIA's library of management, answers. Otherwise only the number is known."""

    def details(self) -> list[str]:
        """Return serial number, clock and temperature as text. An answer may leave some of them out."""
        clock = "clock unknown"
        if self.clock_mhz is not None:
            clock = f"{self.clock_mhz} of {self.max_clock_mhz or 'unknown'} MHz"
        temperature = "temperature unknown"
        if self.temperature is not None:
            temperature = f"{self.temperature} degrees Celsius"
        return [f"serial number {self.serial or 'unknown'}", clock, temperature]


@dataclass(frozen=True)
class Place:
    """Place of a process, and the state of its GPU at this moment."""

    process: int
    node: str
    gpu: GpuState | None
    """None without a GPU."""

    @property
    def gpu_index(self) -> str:
        """Number of the GPU on its node; empty if it is not known."""
        return (self.gpu.index or "") if self.gpu is not None else ""

    def __str__(self) -> str:
        parts = [f"node {self.node}"]
        gpu = self.gpu
        if gpu is not None:
            parts.append(f"GPU {gpu.index or 'of unknown number'}")
            parts += gpu.details() if gpu.answers else ["no answer from NVML"]
        return f"process {self.process} ({', '.join(parts)})"

    def to_dict(self) -> dict[str, Any]:
        """Return the place as plain data, to be sent to other processes."""
        return asdict(self)

    @classmethod
    def of(cls, values: dict[str, Any]) -> "Place":
        """Return the place from plain data."""
        gpu = values["gpu"]
        return cls(values["process"], values["node"], None if gpu is None else GpuState(**gpu))


def place_of(here: Processes) -> Place:
    """Return the place of this process. nvidia-smi has ten seconds to print the state of its GPU."""
    gpu = gpu_state(here.device) if here.device.type == "cuda" else None
    return Place(here.rank, node_name(), gpu)


def node_name() -> str:
    """Return the name by which the scheduler knows this node, or else the name of the host."""
    names = [os.environ[name] for name in NODE_VARIABLES if os.environ.get(name)]
    return names[0] if names else socket.gethostname()


def gpu_state(device: torch.device) -> GpuState:
    """Return the state of a GPU. Without an answer of nvidia-smi, only its number is known."""
    uuid = torch.cuda.get_device_properties(device).uuid
    answer = printed(
        [
            "nvidia-smi",
            f"--query-gpu={','.join(_QUERY)}",
            "--format=csv,noheader,nounits",
            f"--id=GPU-{uuid}",
        ]
    )
    state = parsed_state(answer or "")
    if state is None:
        index = device.index if device.index is not None else torch.cuda.current_device()
        return GpuState(index=str(index), answers=False)
    return state


def parsed_state(answer: str) -> GpuState | None:
    """Return the state of a GPU from a line of nvidia-smi; None for any other text."""
    texts = [text.strip() for text in answer.split(",")]
    if len(texts) != len(_QUERY):
        return None
    index, serial, clock_mhz, max_clock_mhz, temperature = (
        None if text == _UNKNOWN else text for text in texts
    )
    return GpuState(index, serial, clock_mhz, max_clock_mhz, temperature)
