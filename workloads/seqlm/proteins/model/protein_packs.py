"""Splits of proteins, and packs of proteins, each between <cls> and <eos>."""

import numpy as np

from seqlm.proteins.alphabet import CLS, EOS, PAD
from seqlm.training.hashing import hash64
from seqlm.training.packing import MASK_SALT, SPECIAL_TOKENS, HostPack, PackStream, PlannedPack
from seqlm.training.records import RecordSplit


class ProteinSplit(RecordSplit):
    """One split of a folder of prepared proteins. A unit is a protein, or a cluster of proteins.

    Raises:
        ValueError: if the folder is not prepared data, lacks the split, or is damaged.
    """

    records = "proteins"
    tokens = "residues"


class ProteinStream(PackStream):
    """The packs of a split of proteins."""

    def load(self, pack: PlannedPack | None) -> HostPack:
        """Read a planned pack's residues; None gives a pack of padding, for a rank with nothing to do."""
        shape = self.shape
        tokens = np.full(shape.num_tokens, PAD, dtype=np.uint8)
        cumulative = np.full(shape.max_segments + 1, shape.num_tokens, dtype=np.int32)
        keys = np.zeros(shape.max_segments, dtype=np.int64)
        starts = np.zeros(shape.max_segments, dtype=np.int64)
        end = count = 0
        if pack is not None:
            count = len(pack.units)
            keys[:count] = hash64(MASK_SALT, self.seed, pack.epoch, pack.units).view(np.int64)
            starts[:count] = pack.starts
            for index, place in enumerate(pack.places):
                cumulative[index] = end
                start, length = int(pack.starts[index]), int(pack.lengths[index])
                tokens[end] = CLS
                tokens[end + 1 : end + 1 + length] = self.split.token_ids(place)[start : start + length]
                tokens[end + 1 + length] = EOS
                end += length + SPECIAL_TOKENS
        padding = np.arange(end, shape.num_tokens, shape.max_length)
        cumulative[count : count + len(padding)] = padding
        return HostPack(tokens, cumulative, keys, starts)
