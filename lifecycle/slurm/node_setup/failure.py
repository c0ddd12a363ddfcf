"""How a step says that a node cannot be set up."""

from __future__ import annotations


class SetupError(Exception):
    """What is wrong on this node, and what a person can do about it."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}. What to do: {remedy}")
        self.problem = problem
        self.remedy = remedy
