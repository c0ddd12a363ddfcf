"""Prepared conversations and packs of them. Shapes: T tokens, S segments, K predicted tokens."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from seqlm.training.data.manifest import IGNORED
from seqlm.training.layered_model import Segments
from seqlm.training.packing import HostPack, PackStream, PlannedPack
from seqlm.training.records import RecordSplit, Split
from seqlm.training.step.staging import AnyPack, staged

ROW_STEP = 64
"""Multiple to which the number of predicted tokens is rounded up. The largest product then has few shapes."""


class ConversationSplit(RecordSplit):
    """One split of a folder that ``prepare_chat`` made. A unit is a conversation.

    Raises:
        ValueError: if the folder is not such data, lacks the split, or is damaged.
    """

    records = "conversations"
    tokens = "tokens"

    def __init__(self, folder: str | Path, split: Split) -> None:
        super().__init__(folder, split)
        columns = set(self.record_batches[0].schema.names)
        lacking = {"prompt_tokens", "question", "response"} - columns
        if lacking:
            raise ValueError(
                f"{folder} has no column {', '.join(sorted(lacking))}, so it holds no conversations; give "
                "another data.path, or delete that folder and run make data again"
            )

    def prompt_tokens(self, place: tuple[int, int]) -> int:
        """Return the number of tokens of a conversation before its response."""
        batch, row = place
        return int(self.record_batches[batch]["prompt_tokens"][row].as_py())

    def texts(self, num: int) -> list[tuple[str, str]]:
        """Return question and response of the first ``num`` conversations, each question once."""
        found: dict[str, str] = {}
        for batch in self.record_batches:
            for question, response in zip(batch["question"], batch["response"], strict=True):
                if len(found) >= num:
                    return list(found.items())
                found.setdefault(question.as_py(), response.as_py())
        return list(found.items())


@dataclass(frozen=True)
class ConversationPack(HostPack):
    """A micro-batch on the host."""

    positions: npt.NDArray[np.int64]
    """(T,) position within the conversation."""
    rows: npt.NDArray[np.int64]
    """(K,) places before a token of a response; spare entries are any places."""
    targets: npt.NDArray[np.int64]
    """(K,) next token at these places; ``IGNORED`` for spare entries."""


@dataclass(frozen=True)
class TokenPack:
    """Input of the model for one micro-batch."""

    tokens: Tensor
    """(T,) int64 ids."""
    positions: Tensor
    """(T,) int64 position within the conversation."""
    segments: Segments
    rows: Tensor
    """(K,) int64 places before a token of a response."""
    targets: Tensor
    """(K,) int64 next token at these places."""


class ConversationStream(PackStream):
    """Packs of whole conversations."""

    split: ConversationSplit

    def load(self, pack: PlannedPack | None) -> ConversationPack:
        """Read the conversations of a pack; None gives a pack of padding."""
        shape = self.shape
        tokens = np.zeros(shape.num_tokens, dtype=np.int32)
        targets = np.full(shape.num_tokens, IGNORED, dtype=np.int64)
        cumulative = np.full(shape.max_segments + 1, shape.num_tokens, dtype=np.int32)
        places = [] if pack is None else pack.places
        end = 0
        for index, place in enumerate(places):
            ids = self.split.token_ids(place)
            num_prompt = self.split.prompt_tokens(place)
            start = end
            end = start + len(ids)
            cumulative[index] = start
            tokens[start:end] = ids
            # A token is predicted at the place before it. Tokens of the prompt are not predicted.
            targets[start + num_prompt - 1 : end - 1] = ids[num_prompt:]
        padding = np.arange(end, shape.num_tokens, shape.max_length)
        cumulative[len(places) : len(places) + len(padding)] = padding
        rows = np.flatnonzero(targets != IGNORED)
        # At least one step, also for a pack without a response.
        num_rows = max(1, -(-len(rows) // ROW_STEP)) * ROW_STEP
        num_spare = num_rows - len(rows)
        first_places = np.repeat(cumulative[:-1], np.diff(cumulative))
        unused = np.zeros(shape.max_segments, dtype=np.int64)
        return ConversationPack(
            tokens=tokens,
            cumulative=cumulative,
            keys=unused,
            starts=unused,
            positions=np.arange(shape.num_tokens) - first_places,
            rows=np.concatenate([rows, np.arange(num_spare)]),
            targets=np.concatenate([targets[rows], np.full(num_spare, IGNORED)]),
        )


def token_pack(host: AnyPack, max_length: int, device: torch.device) -> TokenPack:
    """Move a ``ConversationPack`` to the device.

    Args:
        host: pack on the host, or on its way to the device.
        max_length: length of the longest segment.
        device: device of the model.
    """
    arrays = staged(host, device).arrived()
    return TokenPack(
        tokens=arrays["tokens"].long(),
        positions=arrays["positions"],
        segments=Segments(arrays["cumulative"], max_length),
        rows=arrays["rows"],
        targets=arrays["targets"],
    )
