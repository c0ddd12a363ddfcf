"""The ESM-2 vocabulary: 33 tokens, and the byte table that turns residues into token ids.

Ids are those of ``facebook/esm2_*`` (transformers' ``EsmTokenizer``). A token id is its position in
``TOKENS``. Unlike ``EsmTokenizer``, which collapses a run of unknown letters into one ``<unk>``,
every residue gets a token of its own, so that positions in the token array are positions in the protein.
"""

import string

import numpy as np
import numpy.typing as npt

STANDARD_RESIDUES = "LAGVSERTIDPKQNFYMHWC"
"""The 20 amino acids; their tokens follow each other."""
THREE_LETTER_CODES = {
    "L": "Leu",
    "A": "Ala",
    "G": "Gly",
    "V": "Val",
    "S": "Ser",
    "E": "Glu",
    "R": "Arg",
    "T": "Thr",
    "I": "Ile",
    "D": "Asp",
    "P": "Pro",
    "K": "Lys",
    "Q": "Gln",
    "N": "Asn",
    "F": "Phe",
    "Y": "Tyr",
    "M": "Met",
    "H": "His",
    "W": "Trp",
    "C": "Cys",
}
"""Codes of IUPAC in three letters, by those in one."""
OTHER_RESIDUES = "XBUZO"
"""Unknown or ambiguous residues (X, B, Z), selenocysteine (U) and pyrrolysine (O)."""
TOKENS = (
    "<cls>",
    "<pad>",
    "<eos>",
    "<unk>",
    *STANDARD_RESIDUES,
    *OTHER_RESIDUES,
    ".",
    "-",
    "<null_1>",
    "<mask>",
)
VOCAB_SIZE = len(TOKENS)
CLS = TOKENS.index("<cls>")
PAD = TOKENS.index("<pad>")
EOS = TOKENS.index("<eos>")
UNK = TOKENS.index("<unk>")
MASK = TOKENS.index("<mask>")
FIRST_RESIDUE = TOKENS.index(STANDARD_RESIDUES[0])
NUM_STANDARD_RESIDUES = len(STANDARD_RESIDUES)

NOT_A_RESIDUE = 255
"""Entry of ``RESIDUE_TABLE`` for bytes that are no letters."""
_LETTERS = {
    letter: TOKENS.index(letter) if letter in TOKENS else UNK for letter in string.ascii_uppercase
}
RESIDUE_TABLE = bytes(_LETTERS.get(chr(byte).upper(), NOT_A_RESIDUE) for byte in range(256))
"""Token id of every byte: letters of either case, anything else ``NOT_A_RESIDUE``.

It is for ``bytes.translate``, which makes one pass in C: two orders of magnitude faster than a tokenizer.
"""


def encode(sequence: str | bytes) -> npt.NDArray[np.uint8]:
    """Return the token ids of a protein, one per letter, without CLS and EOS.

    Returns:
        uint8 array of shape (len(sequence),).

    Raises:
        ValueError: if a character is not a letter. The message names it and its position.
    """
    raw = sequence.encode() if isinstance(sequence, str) else sequence
    tokens = raw.translate(RESIDUE_TABLE)
    bad = tokens.find(NOT_A_RESIDUE)
    if bad >= 0:
        raise ValueError(
            f"{raw[bad : bad + 1]!r} at position {bad + 1} is not a residue; "
            "allowed are the letters A-Z in either case"
        )
    return np.frombuffer(tokens, dtype=np.uint8)


def decode(tokens: npt.ArrayLike) -> str:
    """Return the text of token ids; special tokens appear by name, such as ``<mask>``."""
    return "".join(TOKENS[int(token)] for token in np.asarray(tokens).ravel())
