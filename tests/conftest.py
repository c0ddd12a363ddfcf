from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest._code.code import ExceptionChainRepr

from tests.shared_folder import shared_folder

IN_ORDER = ("local_aws", "cluster")
GPU_TESTS = Path(__file__).parent / "gpu"
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
HANDLERS = pytest.StashKey[tuple[object, ...]]()


def pytest_configure(config: pytest.Config) -> None:
    """Prepare the environment of the tests and of all processes that they start.

    ``make test ARGS=...`` exports its variables, which a ``make`` started by a test would read as its own.
    GPUs are hidden unless the GPU tests alone run: all others would train and compare on CUDA.
    """
    shared_folder()  # before pytest-xdist starts processes, which inherit it
    # Several processes share the cores; threads that wait for each other spin.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in [
        name for name in os.environ if name.startswith("MAKE") or name in ("MFLAGS", "ARGS")
    ]:
        del os.environ[name]
    wanted = [
        Path(config.invocation_params.dir, argument.partition("::")[0]) for argument in config.args
    ]
    if not all(path.resolve().is_relative_to(GPU_TESTS) for path in wanted):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        # Processes that compile for a test's process import torch first, and then have next to nothing to do.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import without garbage collection, which would go through all that is imported, and find nothing.

    Later collections leave out what was imported.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """Keep the order of tests that build on each other; pytest-randomly shuffles the others.

    Files with long tests come first: at the end no process is left alone with one of them.
    """
    in_order = [item for item in items if set(IN_ORDER) & set(item.path.parts)]
    yield
    remaining = set(items)  # others were deselected
    others = [item for item in items if not set(IN_ORDER) & set(item.path.parts)]
    in_order = [item for item in in_order if item in remaining]
    long = {item.path for item in items if item.get_closest_marker("long")}
    items[:] = sorted([*in_order, *others], key=lambda item: item.path not in long)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failing test prints less than one screen, unless with -vv."""
    report = yield
    if report.failed and item.config.get_verbosity() < 2:
        report.sections = [
            (name, _shortened(text, 8)) for name, text in report.sections if "log" not in name
        ]
        if isinstance(report.longrepr, ExceptionChainRepr):
            for traceback, _, _ in report.longrepr.chain[-2:]:
                traceback.reprentries = [
                    *traceback.reprentries[:1],
                    *traceback.reprentries[1:][-3:],
                ]
                for entry in traceback.reprentries:
                    entry.lines = _shortened("\n".join(entry.lines), 12).splitlines()
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    item.stash[HANDLERS] = _handlers()
    yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Fail a test that leaves a signal handled otherwise.

    Processes that later tests start inherit an ignored or blocked signal, and cannot be stopped by it.
    """
    yield
    before = item.stash[HANDLERS]
    after = _handlers()
    item.stash[HANDLERS] = after
    assert after == before


def _handlers() -> tuple[object, ...]:
    return (*map(signal.getsignal, STOPPING), signal.pthread_sigmask(signal.SIG_BLOCK, ()))


def _shortened(text: str, lines: int) -> str:
    """The first line and the last ones."""
    first, *others = [line[:200] for line in text.splitlines()] or [""]
    if len(others) < lines:
        return "\n".join([first, *others])
    return "\n".join(
        [first, f"... {len(others) - lines + 2} lines, with -vv ...", *others[2 - lines :]]
    )
