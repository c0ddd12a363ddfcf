"""Limit of open files of a process, which a large job needs for its connections. Standard library only.

gloo connects every pair of processes in each of a run's two groups. Beyond the limit, it ends the process
from C++ without a message that names the cause.
"""

import contextlib
import resource

OWN_FILES = 11
"""Open files of a process besides those of its groups, measured with 2 to 16 processes."""
FILES_PER_PROCESS = 2
"""Open files for each process of the job, one for each of the two groups."""
SPARE_FILES = 256
"""Open files for data, logs and libraries."""


def needed_files(num_processes: int) -> int:
    """Return the number of files that each process of a job opens at once."""
    return OWN_FILES + FILES_PER_PROCESS * num_processes + SPARE_FILES


def raise_limit(num_files: int) -> int:
    """Raise this process's limit of open files to a number, as far as the system allows.

    Processes that it starts have the same limit.

    Returns:
        The limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = num_files if hard == resource.RLIM_INFINITY else min(num_files, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        # Some systems set a lower bound than the hard limit that they report.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return num_files if soft == resource.RLIM_INFINITY else soft


def open_files_problem(num_processes: int) -> str | None:
    """Raise the limit to what a job needs; return the problem if the system does not allow that much.

    Args:
        num_processes: number of processes of the job.
    """
    needed = needed_files(num_processes)
    limit = raise_limit(needed)
    if limit >= needed:
        return None
    return (
        f"each of {num_processes:,} processes opens {needed:,} files ({OWN_FILES} + {FILES_PER_PROCESS} per "
        f"process, and {SPARE_FILES} for data), and the limit there is {limit:,}; raise the hard limit "
        "(ulimit -Hn, LimitNOFILE of slurmd or of the container runtime)"
    )
