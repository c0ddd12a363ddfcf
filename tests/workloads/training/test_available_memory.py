"""Memory that a node and the limits of control groups leave, with files like the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest

from seqlm.training.memory import available

NODE_BYTES = 8_000 * 1024


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kernel with 8,000 KiB of memory, whose control groups the test writes."""
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 8000 kB\n")
    (tmp_path / "own").write_text("0::/slurm/job_7\n")
    monkeypatch.setattr(available, "_MEMORY_INFO", tmp_path / "meminfo")
    monkeypatch.setattr(available, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(available, "_CGROUPS", tmp_path / "groups")
    return tmp_path


def write_group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_groups_without_a_limit_leave_the_nodes_memory(kernel: Path) -> None:
    write_group(kernel / "groups/slurm/job_7", memory__max="max\n", memory__current="5\n")
    assert available.available_memory() == NODE_BYTES


def test_the_least_limit_of_a_group_and_its_parents_counts(kernel: Path) -> None:
    write_group(kernel / "groups/slurm", memory__max="3000\n", memory__current="2500\n")
    write_group(
        kernel / "groups/slurm/job_7",
        memory__max="2000\n",
        memory__current="1900\n",
        memory__stat="anon 1000\ninactive_file 700\n",
    )
    assert available.available_memory() == 500


def test_groups_of_the_first_version_count(kernel: Path) -> None:
    (kernel / "own").write_text("5:cpu:/slurm\n4:memory:/slurm\n")
    write_group(
        kernel / "groups/memory/slurm",
        memory__limit_in_bytes="1000\n",
        memory__usage_in_bytes="900\n",
        memory__stat="total_inactive_file 50\n",
    )
    assert available.available_memory() == 150
