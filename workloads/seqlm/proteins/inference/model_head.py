"""Check whether a command accepts a model's head. Needs no torch."""

from collections.abc import Sequence

from seqlm.runs.inference_commands import MASKED_LM, TASK_HEADS, inference_command


def check_head(command: str, model: str, architectures: Sequence[str]) -> None:
    """Raise ValueError if the command does not accept the model's head.

    Args:
        command: command of inference.
        model: folder or hub id, for the message.
        architectures: names of the model's classes in its config.json.
    """
    accepted = inference_command(command).heads
    if _has(architectures, accepted):
        return
    if _has(architectures, (MASKED_LM,)):
        raise ValueError(
            f"{model} is a masked language model without a task, so it has nothing to predict; "
            "fine-tune it first (make finetune-lora), or use make embed or make variants"
        )
    if _has(architectures, TASK_HEADS):
        raise ValueError(
            f"{model} has been fine-tuned for a task and predicts no residues; give a masked "
            "language model, such as facebook/esm2_t6_8M_UR50D or the model of a pre-training run"
        )


def _has(architectures: Sequence[str], heads: Sequence[str]) -> bool:
    return any(name.endswith(tuple(heads)) for name in architectures)
