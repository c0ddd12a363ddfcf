"""Stand-in on the CPU for a CUDA graph: it really computes again, on the memory of the recording alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from seqlm.proteins.pretraining.objective import Pretraining
from seqlm.runs.run_file import RunFile
from seqlm.training.device_runtime import DeviceRuntime
from seqlm.training.kernels import GRAPH
from seqlm.training.processes import Processes
from seqlm.training.step.graph import Recording
from seqlm.training.trainer import Trainer


class RehearsedRecording(Recording):
    """Function that each replay calls again, with the gradients and weights that the recording found.

    Like a graph, it adds to the gradients of the recording even if the parameters have others by then.

    Args:
        function: function to record.
        parameters: trained parameters.
    """

    def __init__(self, function: Callable[[], Tensor], parameters: list[nn.Parameter]) -> None:
        for _ in range(2):
            function()
        self._function = function
        self._parameters = parameters
        self._gradients = [parameter.grad for parameter in parameters]
        self._places = [parameter.data_ptr() for parameter in parameters]
        self._result = torch.full((), torch.nan)
        self.num_replays = 0

    def replay(self) -> Tensor:
        self.num_replays += 1
        assert [parameter.data_ptr() for parameter in self._parameters] == self._places
        now = [parameter.grad for parameter in self._parameters]
        self._set_gradients(self._gradients)
        self._result.copy_(self._function())
        self._set_gradients(now)
        return self._result

    def _set_gradients(self, gradients: list[Tensor | None]) -> None:
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient


class RecordedPretraining(Pretraining):
    """Pre-training that knows its model."""

    def on_meta(self) -> Any:
        self.model = super().on_meta()
        return self.model


@contextmanager
def recordings(objective: RecordedPretraining) -> Iterator[list[RehearsedRecording]]:
    """Record on the CPU within the block; yield the recordings."""
    made: list[RehearsedRecording] = []

    def recorded(runtime: DeviceRuntime, function: Callable[[], Tensor]) -> Recording:
        trained = [p for p in objective.model.parameters() if p.requires_grad]
        made.append(RehearsedRecording(function, trained))
        return made[-1]

    with mock.patch.object(DeviceRuntime, "recorded", recorded):
        yield made


def recording_trainer(config: RunFile, here: Processes) -> tuple[Trainer, RehearsedRecording]:
    """Return a trainer that replays its passes, and the recording."""
    objective = RecordedPretraining(config)
    with recordings(objective) as made:
        trainer = Trainer(objective, here, frozenset({GRAPH}))
    assert trainer.kernels == {GRAPH}
    return trainer, made.pop()
