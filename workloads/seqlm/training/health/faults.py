"""Errors of a step whose loss or gradient is not finite: the fault of the run, or of a process's hardware."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from seqlm.training.command_line import DeviceError, RunError
from seqlm.training.processes import Processes

from .place import Place, place_of
from .repetition import OwnFigures, Verdict, judge


class NonFiniteLossError(RunError):
    """Loss or gradient is NaN or infinite. Weights and optimizer state are those before the step."""


class SickHardwareError(DeviceError):
    """Loss or gradient is not finite, and a repetition of the step blames the hardware of a process.

    Weights and optimizer state are those before the step.

    Args:
        message: message for people.
        reasons: reasons by the names of the nodes that are the likely cause; empty if none stands out.
    """

    def __init__(self, message: str, reasons: dict[str, str]) -> None:
        super().__init__(message)
        self.reasons = reasons


@dataclass(frozen=True)
class StepFigures:
    """Figures of a step that is not finite, over all processes."""

    number: int
    loss: float
    norm: float
    """Norm of the gradient."""
    learning_rate: float

    def __str__(self) -> str:
        return (
            f"step {self.number}: loss {self.loss}, gradient norm {self.norm} at learning rate "
            f"{self.learning_rate:.3g}"
        )


def fault_of(
    step: StepFigures, own: OwnFigures | None, here: Processes, lr_field: str
) -> NonFiniteLossError | SickHardwareError:
    """Return the error of a step that is not finite. Every process calls this, and gets the same error.

    Args:
        step: figures of the step.
        own: figures of this process's repetition; None if steps cannot be repeated on the device.
        here: this process.
        lr_field: field of the run file with the learning rate.
    """
    advice = f"Lower {lr_field} or lengthen optim.warmup_steps, then start the same command again"
    if own is None:
        return NonFiniteLossError(f"{step}; the weights were not touched. {advice}")
    mine = {"own": asdict(own), "place": place_of(here).to_dict()}
    found = here.gather({here.rank: mine})
    verdict = judge([OwnFigures(**found[rank]["own"]) for rank in range(here.world_size)])
    if not verdict.is_hardware:
        return NonFiniteLossError(f"{step}; {verdict.why}; the weights were not touched. {advice}")
    places = [Place.of(found[rank]["place"]) for rank in verdict.suspects]
    reasons = {place.node: f"{place}: {step}; {verdict.why}" for place in places}
    return SickHardwareError(_hardware_message(step, verdict, places, lr_field), reasons)


def _hardware_message(
    step: StepFigures, verdict: Verdict, places: Sequence[Place], lr_field: str
) -> str:
    who = ", ".join(map(str, places)) or "no process stands out"
    return (
        f"{step}; {verdict.why}, so the likely cause is hardware: {who}; the weights were not touched. Start "
        "the same command again: it continues from the newest checkpoint. If a message names the same GPU "
        "again, have its node replaced. If the same step fails on another GPU, the run is the cause: lower "
        f"{lr_field}"
    )
