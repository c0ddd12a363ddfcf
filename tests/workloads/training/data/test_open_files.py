"""The limit of open files that a job needs."""

from __future__ import annotations

import resource
from collections.abc import Callable

import pytest

from seqlm.training.data import open_files
from seqlm.training.data.open_files import needed_files, open_files_problem, raise_limit


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], list[tuple[int, int]]]:
    """Return a function that sets a soft and a hard limit, and returns the limits in their order."""

    def limit(soft: int, hard: int) -> list[tuple[int, int]]:
        limits = [(soft, hard)]

        def set_limit(kind: int, values: tuple[int, int]) -> None:
            assert kind == resource.RLIMIT_NOFILE
            limits.append(values)

        monkeypatch.setattr(open_files.resource, "getrlimit", lambda kind: limits[-1])
        monkeypatch.setattr(open_files.resource, "setrlimit", set_limit)
        return limits

    return limit


@pytest.mark.parametrize("num_processes", [2, 506, 4096])
def test_the_limit_is_raised_to_what_the_groups_need(
    num_processes: int, limited: Callable[[int, int], list[tuple[int, int]]]
) -> None:
    limits = limited(64, 1 << 20)
    assert open_files_problem(num_processes) is None
    [_, (soft, hard)] = limits
    assert soft == needed_files(num_processes) >= 11 + 2 * num_processes
    assert hard == 1 << 20


def test_a_limit_that_suffices_is_kept(
    limited: Callable[[int, int], list[tuple[int, int]]],
) -> None:
    limits = limited(1024, 4096)
    assert open_files_problem(8) is None
    assert len(limits) == 1


def test_a_system_that_allows_too_few_is_named(
    limited: Callable[[int, int], list[tuple[int, int]]],
) -> None:
    limits = limited(1024, 4096)
    problem = open_files_problem(4096)
    assert problem is not None
    assert (
        "each of 4,096 processes opens 8,459 files" in problem and "limit there is 4,096" in problem
    )
    assert limits[-1] == (4096, 4096), "it is raised to the hard limit"
    assert open_files_problem(506) is None


@pytest.mark.parametrize("soft", [512, resource.RLIM_INFINITY])
def test_a_system_without_a_limit_is_no_problem(
    soft: int, limited: Callable[[int, int], list[tuple[int, int]]]
) -> None:
    limited(soft, resource.RLIM_INFINITY)
    assert raise_limit(8459) == 8459
    assert open_files_problem(4096) is None
