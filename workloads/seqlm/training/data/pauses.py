"""Random pauses between tries, so that processes which begin together do not repeat together.

The processes of a large job would otherwise look at one file, or ask one server, at the same moments.
Standard library only.
"""

import random

SHORTEST_SHARE = 0.5
"""Shortest pause, as a share of the mean one."""
LONGEST_SHARE = 1.5
"""Longest pause, as a share of the mean one."""
_RANDOM = random.SystemRandom()
"""Generator without a state. With a copy of one, forked processes would have equal pauses. The generator of
the module ``random`` would change the random numbers of a run."""


def spread(seconds: float) -> float:
    """Return a random number of seconds with this mean."""
    return seconds * _RANDOM.uniform(SHORTEST_SHARE, LONGEST_SHARE)
