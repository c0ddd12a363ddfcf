"""Command line of every stage: ``--config RUN``, ``section.field=value``, and short forms of some fields.

The module also ends stages, with a message of one line or after a signal.
"""

import argparse
import contextlib
import ctypes
import errno
import gc
import importlib.util
import json
import logging
import os
import select
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

USAGE_ERROR = 2
"""Exit status after a message that says what the user has to change."""
INTERRUPTED = 130
"""Exit status after Ctrl-C (128 + SIGINT)."""
STOPPED_BY_SIGNAL = 143
"""Exit status after SIGTERM (128 + SIGTERM): not finished, to be started again."""
OUTPUT_CLOSED = 141
"""Exit status after the reader of the output, such as ``head``, has closed it (128 + SIGPIPE)."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
"""Signals that stop a run. HyperPod's agent sends SIGUSR1 before a job on Kubernetes continues with another
number of nodes (hyperpod_elastic_agent 1.1.3, ``plr_hyperpod_elastic_agent.py``)."""
ERROR_FILE = "ESM2_ERROR_FILE"
"""Environment variable with the file to which the processes of a run write their last message. The program
that started them prints it once."""
LAUNCHER = "ESM2_LAUNCHER"
"""Environment variable with the process id of the program that started the processes of a run."""
_PR_SET_PDEATHSIG = 1
"""Number of prctl's operation (linux/prctl.h)."""
_MAX_ERROR_CHARS = 500
"""Length to which the text of an error is cut in a message."""

_ADVICE = {
    errno.EACCES: "change its permissions or those of its folder (ls -ld), or name another place",
    errno.EROFS: "name a place on a file system that can be written",
    errno.ENAMETOOLONG: "use a shorter name",
    errno.ENOSPC: "free space or name a place on another disk",
    errno.EDQUOT: "free space or name a place on another disk",
    errno.EIO: "check the disk or the network file system (dmesg), and copy the file again",
}
"""Advice by number of the system error."""
_DAMAGED = {"SafetensorError", "UnpicklingError", "StrictDataclassError"}
"""Errors of libraries that read models and checkpoints, by name because their import takes seconds."""
OTHER_ENDED = "another process of the run has ended, or the network to it is broken"
"""Beginning of the message about a lost connection between processes, which is the consequence of a fault."""
_LOST_CONNECTIONS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Connection was likely closed",
    "Connection closed by remote peer",
    "ncclRemoteError",
)
"""Texts of gloo, of torch's store and of NCCL, whose error has the class ``DistBackendError``, for a lost
connection. Their other errors are faults of this process (torch 2.13, NCCL 2.28)."""
_PACKAGES = {"sklearn": "scikit-learn"}
"""Names of packages for pip, if a package is imported by another name."""


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Import without garbage collection, which takes a seventh of the time and finds nothing.

    Later collections leave out what was imported: 400,000 objects of torch and transformers.
    """
    num_known = len(sys.modules)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > num_known:
            gc.freeze()
        if was_enabled:
            gc.enable()


class RunError(RuntimeError):
    """A run cannot continue, for the reason in the message. Every process of the run raises it."""


class DeviceError(RuntimeError):
    """A device or node has failed, as the message says. Another start may succeed."""


@dataclass(frozen=True)
class Usage:
    """Command line of a stage, besides ``--config`` and ``section.field=value``."""

    summary: str = ""
    """Description of the stage for ``--help``."""
    reads: Sequence[str] = ()
    """Sections and fields of the run file that the stage reads; empty for those that training reads."""
    run_file: str | None = None
    """Run file that is used without ``--config``; None requires the option."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Fields by the options that set them."""
    files: str | None = None
    """Field that is set by arguments without ``=``; None allows no such arguments."""


NO_USAGE = Usage()


def stage_parser(usage: Usage, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the options of a stage to a parser."""
    default = f"; default {usage.run_file}" if usage.run_file else ""
    parser.add_argument(
        "--config",
        default=usage.run_file,
        required=not usage.run_file,
        metavar="RUN",
        help=f"YAML file of the run, or the name of a bundled one{default}",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="check the run file, print it whole, and stop"
    )
    for option, name in usage.options.items():
        parser.add_argument(option, metavar=option[2:].upper(), help=f"short for {name}=")
    files = f"files for {usage.files}=, and " if usage.files else ""
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="FILE|section.field=value" if usage.files else "section.field=value",
        help=f"{files}changes to single fields",
    )
    return parser


def overrides_of(usage: Usage, parsed: argparse.Namespace) -> list[str]:
    """Return the overrides of single fields; those of options and names of files come first."""
    values: dict[str, object] = {}
    for option, name in usage.options.items():
        value = getattr(parsed, option[2:])
        if value is not None:
            values[name] = value
    overrides = list(parsed.overrides)
    if usage.files is not None:
        files = [text for text in parsed.overrides if "=" not in text]
        overrides = [text for text in parsed.overrides if "=" in text]
        if files:
            values[usage.files] = files if len(files) > 1 else files[0]
    fields = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]
    return fields + overrides


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """End the program with one line instead of a traceback if an error occurs that users can correct.

    The exit status is 2 for wrong input and 130 after Ctrl-C. It is 1 for a missing package and for a failing
    file or device, after which a cluster tries again. A fault of this project keeps its traceback.

    Names from files reach the terminal escaped, also in tracebacks, warnings and what libraries log.
    """
    _escape_log_records()
    warnings.formatwarning = _escaped_warning
    with ending_with_reader(), _explained_errors():
        yield


@contextlib.contextmanager
def ending_with_reader() -> Iterator[None]:
    """End the program without a message if the reader of its output, such as ``head``, has closed it.

    Python ignores the signal SIGPIPE, because a closed network connection must not end a program.
    """
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        closed = _outputs_without_reader()
        if not closed:
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for number in closed:
            os.dup2(nowhere, number)  # Python writes the rest at its end
        _leave(OUTPUT_CLOSED)


def _outputs_without_reader() -> list[int]:
    """Return which of the standard output and the standard error are pipes that nothing reads any more."""
    poll = select.poll()
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None:
            poll.register(stream.fileno(), 0)
    return [number for number, event in poll.poll(0) if event & (select.POLLERR | select.POLLHUP)]


@contextlib.contextmanager
def _explained_errors() -> Iterator[None]:
    """End the program as ``one_line_errors`` says, unless the reader of its output has closed it."""
    try:
        yield
    except (ValueError, RunError) as error:
        tell(f"error: {error}")
        _leave(USAGE_ERROR)
    except DeviceError as error:
        tell(f"error: {error}")
        _leave(1)
    except KeyboardInterrupt:
        tell("stopped by Ctrl-C; run the same command again to continue", first=True)
        _leave(INTERRUPTED)
    except (SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # torch's CheckpointException is no Exception
        if isinstance(error, BrokenPipeError) and _outputs_without_reader():
            raise
        line = _explained(error)
        if line is None:
            print(_escaped_lines(traceback.format_exc()), file=sys.stderr)
        if line is not None or ERROR_FILE in os.environ:
            tell(f"error: {line or f'{type(error).__name__}: {error}'}", first=True)
        _leave(1)


def _explained(error: BaseException) -> str | None:
    """Return the problem, its file and what to do; None for a fault of this project."""
    text = " ".join(str(error).split())[:_MAX_ERROR_CHARS]
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        if package and importlib.util.find_spec(package) is None:
            name = _PACKAGES.get(package, package)
            return f"the package {name} is missing; install it (pip install {name}) and try again"
    if isinstance(error, OSError):
        files = " and ".join(
            str(name) for name in (error.filename, error.filename2) if name is not None
        )
        problem = error.strerror or text or type(error).__name__
        advice = _ADVICE.get(error.errno or 0, "correct this and run the same command again")
        return f"{files}{': ' if files else ''}{problem}; {advice}"
    failures = getattr(error, "failures", None)
    if failures:  # torch's CheckpointException has the failure of each rank
        return _explained(next(iter(failures.values()))[0])
    if isinstance(error, RuntimeError) and any(lost in text for lost in _LOST_CONNECTIONS):
        cause = text.partition(". This is typically caused by")[0]
        return f"{OTHER_ENDED}; see the log of that process. Here: {cause}"
    # torch raises RuntimeError for wrong names or shapes of weights.
    is_wrong_state = text.startswith("Error(s) in loading state_dict")
    if is_wrong_state or not _DAMAGED.isdisjoint(kind.__name__ for kind in type(error).__mro__):
        return f"a file of the model or checkpoint is damaged: {text}; copy or write it again"
    if (
        isinstance(error, RecursionError)
        and "json" in traceback.extract_tb(error.__traceback__)[-1].filename
    ):
        return "a JSON file is nested too deeply to be read; write it again"
    return None


def require(package: str) -> None:
    """Raise ModuleNotFoundError if a package is not installed, so that a run fails at its beginning."""
    if importlib.util.find_spec(package) is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def _leave(status: int) -> NoReturn:
    """Exit. One of several processes exits at once, because its threads may wait for the others."""
    sys.stdout.flush()
    sys.stderr.flush()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        os._exit(status)
    raise SystemExit(status)


def tell(message: str, *, first: bool = False) -> None:
    """Print the last message of a process, or write it to ``ERROR_FILE``.

    Args:
        message: text, in which characters that control a terminal are escaped.
        first: whether to keep the message of another process that was first.
    """
    message = _escaped_lines(message)
    path = os.environ.get(ERROR_FILE)
    if path:
        with contextlib.suppress(FileExistsError), Path(path).open("x" if first else "w") as file:
            file.write(message)
    else:
        with contextlib.suppress(OSError):  # a full disk, or a closed pipe
            print(message, file=sys.stderr)


def escaped(text: str) -> str:
    """Return a text in which the characters that control a terminal are escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _escaped_lines(text: str) -> str:
    """Return a text of several lines in which the other characters that control a terminal are escaped."""
    return "\n".join(map(escaped, text.split("\n")))


_format_warning = warnings.formatwarning


def _escaped_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """Return the text of a warning of Python's, escaped."""
    return _escaped_lines(_format_warning(message, category, filename, lineno, line))


def _escape_log_records() -> None:
    """Escape what this process logs from now on, in whichever library: it may hold names from files."""
    create = logging.getLogRecordFactory()
    if isinstance(create, _EscapingFactory):
        return
    logging.setLogRecordFactory(_EscapingFactory(create))


class _EscapingFactory:
    """Factory of log records whose messages control no terminal.

    Args:
        create: factory of the records.
    """

    def __init__(self, create: Callable[..., logging.LogRecord]) -> None:
        self._create = create

    def __call__(self, *arguments: Any, **named: Any) -> logging.LogRecord:
        record = self._create(*arguments, **named)
        try:
            text = record.getMessage()
        except (TypeError, ValueError):  # the handler reports the wrong arguments
            return record
        safe = _escaped_lines(text)
        if safe != text:
            record.msg = safe
            record.args = ()
        return record


def end_with_launcher() -> None:
    """Have the kernel send SIGTERM to this process when the program that started it dies, even by SIGKILL.

    Otherwise the processes of a run would train on without a program that waits for them. Linux alone can do
    this.
    """
    launcher = os.environ.get(LAUNCHER)
    if launcher is None or not sys.platform.startswith("linux"):
        return
    if os.getppid() == int(launcher):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        os.kill(int(launcher), 0)
    except ProcessLookupError:  # it died before this call
        os.kill(os.getpid(), signal.SIGTERM)


class Stopped(SystemExit):
    """One of the processes got a signal to stop. Every process raises it, at the same place."""

    def __init__(self) -> None:
        super().__init__(STOPPED_BY_SIGNAL)


class StopSignal:
    """Flag that a signal to stop sets, and the name of the signal."""

    def __init__(self) -> None:
        self.received = False
        self.name = "a signal to another process"

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.received = True
        self.name = signal.Signals(number).name
        if number == signal.SIGINT:
            # A second Ctrl-C ends the process at once. A second SIGTERM does not: supervisors repeat it.
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def signals_to(stop: StopSignal) -> Iterator[None]:
    """Turn SIGTERM, SIGUSR1 and Ctrl-C into a flag."""
    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
