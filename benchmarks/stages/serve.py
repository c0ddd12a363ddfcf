"""Stage 9: the server over loopback with 1, 8 and 64 users. Each sends the next request after an answer."""

import http.client
import importlib.util
import itertools
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks.case import Case, Settings
from benchmarks.ours import drawn_proteins, model_folder
from seqlm.proteins.alphabet import decode

SECONDS = 20.0
"""Time in which answers count."""
SETTLE_SECONDS = 2.0
"""Time before that, until all users have connected."""
NUM_PROTEINS = 2000
REHEARSED_SECONDS = 1.0
REHEARSED_PROTEINS = 20
START_SECONDS = 120
TIMEOUT_SECONDS = 60


class Answer(NamedTuple):
    """Answer to a request of one protein."""

    seconds: float
    residues: int


def cases(settings: Settings) -> list[Case]:
    return [
        Case("serve", "8M", f"users={users}", "proteins_per_request=1", 40) for users in (1, 8, 64)
    ]


def run(case: Case, settings: Settings) -> dict[str, Any]:
    """Load a server in a process of its own. The verdict is ``skipped`` if its packages are missing."""
    missing = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        return {
            "verdict": "skipped",
            "error": f"not installed: {', '.join(missing)}, which the server needs; install requirements.txt",
        }
    users = int(case.contestant.removeprefix("users="))
    seconds = REHEARSED_SECONDS if settings.rehearsal else SECONDS
    settle = 0.0 if settings.rehearsal else SETTLE_SECONDS
    num_proteins = REHEARSED_PROTEINS if settings.rehearsal else NUM_PROTEINS
    proteins = [decode(tokens) for tokens in drawn_proteins(settings, num_proteins)]
    with TemporaryDirectory(prefix="bench-serve-") as folder:
        model = model_folder(case.size, settings, Path(folder))
        with serving(model) as port:
            figures = load(port, users, proteins, settle, seconds)
    has_failed = figures["errors"] or not figures["requests"]
    return {**figures, "verdict": "missed" if has_failed else "measured"}


@contextmanager
def serving(model: Path) -> Iterator[int]:
    """Serve a model while the context lasts, and yield the port.

    Raises:
        RuntimeError: if the server does not answer ``GET /ping`` with 200 in time.
    """
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    command = [sys.executable, "-m", "seqlm", "serve", "--model", str(model), "--port", str(port)]
    with subprocess.Popen(command, env=os.environ | {"ESM2_SERVE_DRAIN_SECONDS": "0"}) as server:
        try:
            deadline = time.monotonic() + START_SECONDS
            while not _is_ready(port):
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(
                        f"the server did not answer /ping with 200 in {START_SECONDS} s (exit status "
                        f"{server.poll()}); see its messages"
                    )
                time.sleep(0.1)
            yield port
        finally:
            server.terminate()


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=TIMEOUT_SECONDS):
            return True  # urlopen raises for statuses other than 2xx
    except OSError:
        return False


def load(
    port: int, users: int, proteins: Sequence[str], settle: float, seconds: float
) -> dict[str, Any]:
    """Send requests of ``users`` for ``seconds`` after ``settle``, and return times of answers in seconds."""
    begin = time.monotonic() + settle

    def use(seed: int) -> list[Answer | str]:
        return list(_use(port, proteins, begin, begin + seconds, seed))

    with ThreadPoolExecutor(users) as pool:
        found = list(itertools.chain.from_iterable(pool.map(use, range(users))))
    errors = [error for error in found if isinstance(error, str)]
    answers = [answer for answer in found if not isinstance(answer, str)]
    times = sorted(answer.seconds for answer in answers)
    return {
        "users": users,
        "requests": len(times),
        "p50_seconds": statistics.median(times) if times else None,
        "p99_seconds": times[len(times) * 99 // 100] if times else None,
        "residues_per_second": sum(answer.residues for answer in answers) / seconds,
        "errors": len(errors),
        "first_error": errors[0] if errors else None,
    }


def _use(
    port: int, proteins: Sequence[str], begin: float, end: float, seed: int
) -> Iterator[Answer | str]:
    """Send requests until ``end``, and yield errors, and the answers to requests from ``begin`` on."""
    draw = random.Random(seed)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    while (started := time.monotonic()) < end:
        protein = draw.choice(proteins)
        try:
            body = json.dumps({"proteins": [protein]})
            connection.request("POST", "/invocations", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            yield f"{type(error).__name__}: {error}"
            connection.close()  # the next request opens it again
            continue
        if answer.status != http.HTTPStatus.OK:
            yield f"{answer.status}: {text[:200]}"
        elif started >= begin and (now := time.monotonic()) <= end:
            yield Answer(seconds=now - started, residues=len(protein))
    connection.close()
