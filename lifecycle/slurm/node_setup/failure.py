"""Failures of node setup, with what a person can do."""


class SetupError(Exception):
    """Problem on this node, with its remedy."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}. What to do: {remedy}")
        self.problem = problem
        self.remedy = remedy


def described(error: BaseException) -> str:
    """Return the problem and the remedy of any failure, including unexpected ones."""
    if isinstance(error, SetupError):
        return str(error)
    remedy = "report the lines above: these scripts have a mistake, or the image is a new one"
    if isinstance(error, OSError):
        remedy = "see `df --human-readable` and `dmesg` on the node: a disk may be full or broken"
    return f"{type(error).__name__}: {error}. What to do: {remedy}"
