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
    """Packs of a split of proteins."""

    def load(self, pack: PlannedPack | None) -> HostPack:
        """Read the residues of a planned pack. None gives a pack of padding, for a rank without work."""
        shape = self.shape
        tokens = np.full(shape.num_tokens, PAD, dtype=np.uint8)
        cumulative = np.full(shape.max_segments + 1, shape.num_tokens, dtype=np.int32)
        keys = np.zeros(shape.max_segments, dtype=np.int64)
        starts = np.zeros(shape.max_segments, dtype=np.int64)
        end = 0
        count = 0
        if pack is not None:
            count = len(pack.units)
            keys[:count] = hash64(MASK_SALT, self.seed, pack.epoch, pack.units).view(np.int64)
            starts[:count] = pack.starts
            ends = np.cumsum(pack.lengths + SPECIAL_TOKENS)
            firsts = ends - pack.lengths - SPECIAL_TOKENS
            end = int(ends[-1])
            cumulative[:count] = firsts
            is_residue = np.ones(end, dtype=np.bool_)
            is_residue[firsts] = False
            is_residue[ends - 1] = False
            filled = tokens[:end]
            filled[is_residue] = self.split.crops(pack.places, pack.starts, pack.lengths)
            filled[firsts] = CLS
            filled[ends - 1] = EOS
        # Padding is cut into segments, none of them longer than the longest protein.
        padding = np.arange(end, shape.num_tokens, shape.max_length)
        cumulative[count : count + len(padding)] = padding
        return HostPack(tokens, cumulative, keys, starts)
