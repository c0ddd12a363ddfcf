"""Prepared conversations and packs of them. Shapes: T tokens, S segments, K predicted tokens."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from seqlm.training.data.manifest import IGNORED
from seqlm.training.device_runtime import to_device
from seqlm.training.layered_model import Segments
from seqlm.training.packing import HostPack, PackStream, PlannedPack
from seqlm.training.records import RecordSplit, Split

ROW_STEP = 64
"""Predicted tokens are rounded up to this: few shapes of the largest matrix product."""


class ConversationSplit(RecordSplit):
    """One split of a folder that ``prepare_chat`` made; a unit is a conversation, a residue a token.

    Raises:
        ValueError: if the folder is not such data, lacks the split, or is damaged.
    """

    records = "conversations"
    tokens = "tokens"

    def __init__(self, folder: str | Path, split: Split) -> None:
        super().__init__(folder, split)
        lacking = {"prompt_tokens", "question", "response"} - {*self.record_batches[0].schema.names}
        if lacking:
            raise ValueError(
                f"{folder} has no column {', '.join(sorted(lacking))}, so it holds no conversations; give "
                "another data.path, or delete that folder and run make data again"
            )

    def prompt_tokens(self, place: tuple[int, int]) -> int:
        """Return the number of tokens of a conversation before its response."""
        return int(self.record_batches[place[0]]["prompt_tokens"][place[1]].as_py())

    def texts(self, num: int) -> list[tuple[str, str]]:
        """Question and response of the first conversations, each question once."""
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
    """(T,) within the conversation."""
    rows: npt.NDArray[np.int64]
    """(K,) places whose next token is of a response; spare entries point anywhere."""
    targets: npt.NDArray[np.int64]
    """(K,) that next token; ``IGNORED`` at spare entries."""


@dataclass(frozen=True)
class TokenPack:
    """Input of the model for one micro-batch."""

    tokens: Tensor
    """(T,) int64."""
    positions: Tensor
    """(T,) int64 within the conversation."""
    segments: Segments
    rows: Tensor
    """(K,) int64."""
    targets: Tensor
    """(K,) int64."""


class ConversationStream(PackStream):
    """Packs of whole conversations, of a ``ConversationSplit``."""

    split: ConversationSplit

    def load(self, pack: PlannedPack | None) -> ConversationPack:
        shape, split = self.shape, self.split
        tokens = np.zeros(shape.num_tokens, dtype=np.int32)
        targets = np.full(shape.num_tokens, IGNORED, dtype=np.int64)
        cumulative = np.full(shape.max_segments + 1, shape.num_tokens, dtype=np.int32)
        places = [] if pack is None else pack.places
        end = 0
        for index, place in enumerate(places):
            ids = split.token_ids(place)
            first, start, end = split.prompt_tokens(place), end, end + len(ids)
            cumulative[index] = start
            tokens[start:end] = ids
            # A token is predicted at the place of the one before it; of the prompt none is.
            targets[start + first - 1 : end - 1] = ids[first:]
        padding = np.arange(end, shape.num_tokens, shape.max_length)
        cumulative[len(places) : len(places) + len(padding)] = padding
        rows = np.flatnonzero(targets != IGNORED)
        spare = -len(rows) % ROW_STEP or (0 if len(rows) else ROW_STEP)
        none = np.zeros(shape.max_segments, dtype=np.int64)
        return ConversationPack(
            tokens=tokens,
            cumulative=cumulative,
            keys=none,
            starts=none,
            positions=np.arange(shape.num_tokens) - np.repeat(cumulative[:-1], np.diff(cumulative)),
            rows=np.concatenate([rows, np.arange(spare)]),
            targets=np.concatenate([targets[rows], np.full(spare, IGNORED)]),
        )


def token_pack(host: HostPack, max_length: int, device: torch.device) -> TokenPack:
    """Move a pack to the device."""
    assert isinstance(host, ConversationPack)
    tokens, positions, cumulative, rows, targets = (
        to_device(torch.from_numpy(array), device)
        for array in (host.tokens, host.positions, host.cumulative, host.rows, host.targets)
    )
    return TokenPack(tokens.long(), positions, Segments(cumulative, max_length), rows, targets)
