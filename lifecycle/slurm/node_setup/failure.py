"""How a step says that a node cannot be set up."""

from __future__ import annotations


class SetupError(Exception):
    """What is wrong on this node, and what a person can do about it."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}. What to do: {remedy}")
        self.problem = problem
        self.remedy = remedy


def described(error: BaseException) -> str:
    """What is wrong and what to do, of any failure: those that no step foresaw are told like the others."""
    if isinstance(error, SetupError):
        return str(error)
    remedy = "report the lines above: these scripts have a mistake, or the image is a new one"
    if isinstance(error, OSError):
        remedy = "see `df --human-readable` and `dmesg` on the node: a disk may be full or broken"
    return f"{type(error).__name__}: {error}. What to do: {remedy}"
