"""Template process of a node: it imports everything once, and forks the processes of each start.

Imports would take most of the time of a restart in place. ``launch/forked_processes.py`` starts the template
and requests processes. Linux only.
"""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

TEMPLATE = "ESM2_TEMPLATE"
"""Environment variable with the descriptor of the socket of requests. Only the template has it."""
NAME = "seqlm-template"
"""Name of the template in lists of processes. Its command is that of the processes that it forks."""
_NAME_FILE = Path("/proc/self/comm")
_POLL_SECONDS = 0.001


def fork_if_template(do_imports: Callable[[], object]) -> None:
    """Import, and fork a process for each request. This returns in the forked processes alone.

    Processes that are no template return at once. A request is the environment of the process, as one line of
    JSON. The answer is its id.

    Args:
        do_imports: function that imports what the processes need, and initializes no device.

    Raises:
        SystemExit: in the template, if the launcher has ended.
    """
    descriptor = os.environ.pop(TEMPLATE, None)
    if descriptor is None:
        return
    own_name = _NAME_FILE.read_text()
    _NAME_FILE.write_text(NAME)
    do_imports()
    has_threads = threading.active_count() > 1
    with socket.socket(fileno=int(descriptor)) as launcher, launcher.makefile("rb") as requests:
        request = requests.readline()
        while request and not _is_forked(launcher):
            request = requests.readline()
    if not request:
        raise SystemExit
    _NAME_FILE.write_text(own_name)
    environment: dict[str, str] = json.loads(request)
    if has_threads or _has_used_cuda():
        # A forked process has neither the threads nor the device. It starts as without a template.
        os.execve(sys.executable, sys.orig_argv, environment)
    os.environ.clear()
    os.environ.update(environment)


def _is_forked(launcher: socket.socket) -> bool:
    """Fork a process that is a child of the launcher, and return whether this is that process.

    The process in between ends at once. The launcher then becomes the parent (``PR_SET_CHILD_SUBREAPER``).
    """
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        return False
    between = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == between:
        time.sleep(_POLL_SECONDS)
    os.setsid()  # as torchrun's own processes, which it signals by their session
    launcher.sendall(f"{os.getpid()}\n".encode())
    return True


def _has_used_cuda() -> bool:
    """Return whether the template has used CUDA, so that this forked process cannot."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda._is_in_bad_fork())
