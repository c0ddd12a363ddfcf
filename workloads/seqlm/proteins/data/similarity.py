"""Similar proteins on both sides of a split, found by shared words of five residues.

A held-out protein counts as similar if one training protein has at least ``SHARED_WORDS`` of its words. With
substitutions alone that is an identity of about 63 %, since a word survives with the fifth power of it. Words
are thinned by their hash to one in ``THINNED``, the same ones in every protein (scaled MinHash, Brown & Irber
2016). At most ``MOST_HELD_OUT`` held-out proteins are compared, the same number from each split, with as many
training residues as take a small part of the preparation's time. The result names both numbers.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqlm.training.data.manifest import SPLITS, Manifest, Split
from seqlm.training.data.split_shards import numpy_numbers

from .shards import SCHEMA

WORD = 5
"""Residues of a word; 20^5 = 3.2 million words, of which a pair of unrelated proteins shares next to none."""
SHARED_WORDS = 0.1
"""Share of a held-out protein's words in one training protein from which on the two are similar."""
THINNED = 8
"""One word in so many is compared."""
LEAST_WORDS = 3
"""Shared words below this number are chance: two words of repeats, or a tag."""
MOST_HELD_OUT = 1000
LEAST_COMPARED_RESIDUES = 2_000_000
COMPARED_SHARE = 0.05
"""Share of the training residues that are compared, if that is more."""
_BITS = 5
"""Bits of a residue in a word."""
_OWNER_SHIFT = np.int64(32)
"""Bits below the number of a protein in a key of a protein and a word, or of two proteins."""
_LOW_HALF = np.int64((1 << 32) - 1)
_BLOCK = 1 << 15
"""Residues whose words are computed at once, so that they stay in the cache."""
_MULTIPLIER = np.uint32(2_654_435_761)
"""Knuth's multiplier for hashes: 2^32 over the golden ratio, odd."""

Tokens = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Proteins:
    """Proteins, stored one after the other."""

    ids: Sequence[str]
    tokens: Tokens
    """(residues,) of all."""
    offsets: npt.NDArray[np.int64]
    """(proteins + 1,) positions in ``tokens``."""

    @classmethod
    def of(cls, batches: Iterable[pa.RecordBatch]) -> "Proteins":
        """Take the proteins of record batches."""
        table = pa.Table.from_batches([batch.select(["id", "tokens"]) for batch in batches], SCHEMA)
        tokens = table["tokens"].combine_chunks()
        offsets = numpy_numbers(tokens.offsets)
        values = numpy_numbers(tokens.values)[offsets[0] : offsets[-1]]
        return cls(table["id"].to_pylist(), values, offsets - offsets[0])


def similar_proteins(held_out: Proteins, training: Iterable[Proteins]) -> dict[str, Any]:
    """Count the held-out proteins that have a relative in the training split.

    Returns:
        ``similar`` of ``held_out`` proteins compared with ``training`` proteins, and ``example``: the ids of
        the most similar pair, held-out protein first, and the share of words in common; null without any.
    """
    words, owners = _words(held_out)
    order = np.argsort(words, kind="stable")
    words = words[order]
    owners = owners[order]
    totals = np.bincount(owners, minlength=len(held_out.ids))
    known = np.zeros(1 << (WORD * _BITS), dtype=bool)
    known[words] = True
    best = np.zeros(len(held_out.ids))
    relatives = [""] * len(held_out.ids)
    compared = 0
    for proteins in training:
        compared += len(proteins.ids)
        pairs = _pairs(words, owners, *_words(proteins, known))
        codes, shared = np.unique(pairs, return_counts=True)
        held = codes >> _OWNER_SHIFT
        trained = codes & _LOW_HALF
        shares = np.where(shared >= LEAST_WORDS, shared / totals[held], 0.0)
        for index in np.flatnonzero(shares > best[held]).tolist():
            if shares[index] > best[held[index]]:
                best[held[index]] = shares[index]
                relatives[held[index]] = proteins.ids[trained[index]]
    similar = int((best >= SHARED_WORDS).sum())
    example = None
    if similar:
        top = int(best.argmax())
        example = [held_out.ids[top], relatives[top], round(float(best[top]), 3)]
    return {
        "similar": similar,
        "held_out": len(held_out.ids),
        "training": compared,
        "example": example,
    }


def similar_across_splits(folder: Path, splits: dict[str, Split]) -> dict[str, Any]:
    """Compare the held-out splits of a folder of shards with its training split."""
    names = [name for name in SPLITS if name != "train"]
    most = MOST_HELD_OUT // len(names)
    batches = [batch for name in names for batch in _first(_batches(folder, splits[name]), most)]
    held_out = Proteins.of(batches)
    allowed = max(LEAST_COMPARED_RESIDUES, int(COMPARED_SHARE * splits["train"].residues))

    def training() -> Iterator[Proteins]:
        compared = 0
        for batch in _batches(folder, splits["train"]):
            proteins = Proteins.of([batch])
            fitting = int(np.searchsorted(proteins.offsets, allowed - compared))
            yield (
                proteins if fitting >= len(proteins.ids) else Proteins.of([batch.slice(0, fitting)])
            )
            compared += len(proteins.tokens)
            if compared >= allowed:
                return

    return similar_proteins(held_out, training())


def similarity_warning(manifest: Manifest) -> list[str]:
    """Warn if held-out proteins of prepared data resemble training proteins."""
    if manifest.similar is None or not manifest.similar["similar"]:
        return []
    return [f"warning: {describe_similar(manifest.similar)}; held-out scores flatter the model"]


def _batches(folder: Path, split: Split) -> Iterator[pa.RecordBatch]:
    for shard in split.shards:
        yield from pa.ipc.open_stream(pa.memory_map(str(folder / shard.file)))


def _first(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
    """Yield the first ``most`` proteins."""
    for batch in batches:
        yield batch.slice(0, most)
        most -= batch.num_rows
        if most <= 0:
            return


def _words(
    proteins: Proteins, known: npt.NDArray[np.bool_] | None = None
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Return thinned words, each once per protein, and the positions of their proteins.

    Args:
        proteins: proteins.
        known: whether to return a word, for each word; None: all.
    """
    if len(proteins.tokens) < WORD:
        return np.zeros(0, np.uint32), np.zeros(0, np.int64)
    places: list[npt.NDArray[np.int64]] = []
    found: list[npt.NDArray[np.uint32]] = []
    for begin in range(0, len(proteins.tokens) - WORD + 1, _BLOCK):
        tokens = proteins.tokens[begin : begin + _BLOCK + WORD - 1].astype(np.uint32)
        tokens &= np.uint32((1 << _BITS) - 1)
        stop = len(tokens) - WORD + 1
        words = tokens[:stop].copy()
        for place in range(1, WORD):
            words <<= np.uint32(_BITS)
            words |= tokens[place : place + stop]
        kept = np.flatnonzero(words * _MULTIPLIER < np.uint32(2**32 // THINNED))
        if known is not None:
            kept = kept[known[words[kept]]]
        places.append(kept + begin)
        found.append(words[kept])
    starts = np.concatenate(places)
    words = np.concatenate(found)
    owners = np.searchsorted(proteins.offsets, starts, side="right") - 1
    whole = starts + WORD <= proteins.offsets[owners + 1]  # not across two proteins
    keys = np.sort(owners[whole] << _OWNER_SHIFT | words[whole].astype(np.int64))
    keys = keys[np.diff(keys, prepend=-1) != 0]
    return (keys & _LOW_HALF).astype(np.uint32), keys >> _OWNER_SHIFT


def _pairs(
    words: npt.NDArray[np.uint32],
    owners: npt.NDArray[np.int64],
    found: npt.NDArray[np.uint32],
    finders: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Return (held-out protein << 32 | training protein) for each word that two of them share.

    Args:
        words: sorted words of the held-out proteins.
        owners: held-out protein of each of them.
        found: words of the training proteins.
        finders: training protein of each of them.
    """
    starts = np.searchsorted(words, found)
    counts = np.searchsorted(words, found, side="right") - starts
    before = np.concatenate([[0], np.cumsum(counts)[:-1]])
    places = np.repeat(starts - before, counts) + np.arange(counts.sum())
    held: npt.NDArray[np.int64] = owners[places]
    return held << _OWNER_SHIFT | np.repeat(finders, counts)


def describe_similar(similar: Mapping[str, Any]) -> str:
    """Describe in one clause how many held-out proteins resemble training proteins."""
    text = (
        f"{similar['similar']:,} of {similar['held_out']:,} held-out proteins resemble one of "
        f"{similar['training']:,} training proteins"
    )
    if not similar["similar"]:
        return text
    held_out, trained, share = similar["example"]
    return f"{text}, for example {held_out} and {trained} ({share:.0%} of its short words)"
