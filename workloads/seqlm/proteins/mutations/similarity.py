"""Similarity of two proteins of any lengths."""


def num_common_residues(one: bytes, other: bytes) -> int:
    """Return the number of residues that two proteins have in one order, their longest common subsequence.

    The bits of one integer stand for the residues of the first protein, so that each residue of the other one
    takes a few operations (Hyyro 2004, Bit-parallel LCS-length computation revisited).
    """
    places: dict[int, int] = {}
    for place, residue in enumerate(one):
        places[residue] = places.get(residue, 0) | 1 << place
    every = (1 << len(one)) - 1
    left = every
    for residue in other:
        matched = left & places.get(residue, 0)
        left = ((left + matched) | (left - matched)) & every
    return len(one) - left.bit_count()
