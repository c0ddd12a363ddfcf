"""Errors of names that are no variants of a protein."""

from seqlm.proteins.reading.policies import Kind


class MutationError(ValueError):
    """A name that describes no variant, or none of the protein at hand."""

    def __init__(self, reason: str, kind: Kind = Kind.BAD_MUTATION) -> None:
        super().__init__(reason, kind)
        self.reason = reason
        self.kind = kind

    def __str__(self) -> str:
        return self.reason


class ResidueError(MutationError):
    """A name with a residue that is not at its position in the protein."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, Kind.OTHER_PROTEIN)
