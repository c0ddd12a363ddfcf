"""All single mutants of a protein, a saturation mutagenesis."""

from seqlm.proteins.alphabet import STANDARD_RESIDUES, TOKENS

from .edits import Edit, Variant, WildType


def all_single_mutants(protein: WildType, first_position: int = 1) -> list[Variant]:
    """Return every variant that replaces one standard residue by one of the 19 others.

    Args:
        protein: wild type.
        first_position: number of the protein's first residue in names.
    """
    standard = [TOKENS.index(letter) for letter in STANDARD_RESIDUES]
    variants = []
    for place, wild in enumerate(protein.tokens.tolist()):
        if wild not in standard:
            continue
        for mutant in standard:
            if mutant != wild:
                name = f"{TOKENS[wild]}{place + first_position}{TOKENS[mutant]}"
                edit = Edit(place, place + 1, bytes([mutant]))
                variants.append(Variant(name, (edit,), protein.tokens))
    return variants
