"""Error of a name that is no variant of a protein."""

from seqlm.proteins.reading.policies import Kind


class MutationError(ValueError):
    """A name that describes no variant, or none of the protein at hand."""

    def __init__(self, reason: str, kind: Kind = Kind.BAD_MUTATION) -> None:
        super().__init__(reason, kind)
        self.reason = reason
        self.kind = kind

    def __str__(self) -> str:
        return self.reason
