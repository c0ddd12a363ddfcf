"""A pod's preparation of a run's data before training."""

from __future__ import annotations

from pathlib import Path

import pytest

from seqlm.commands import kinds
from seqlm.commands import prepare as prepare_data
from seqlm.commands.kinds import prepare
from seqlm.runs.run_file import RunFile, load_config
from seqlm.training.data import waiting
from seqlm.training.data.transfer import BeingFetched
from seqlm.training.data.workspace import BeingPrepared
from tests.workloads.proteins.finetune.labelled_proteins import write_task_file

RUN = "workloads/seqlm/configs/esm2_8m_sample.yaml"


@pytest.fixture
def fasta(tmp_path: Path) -> Path:
    """A folder with two files of proteins."""
    folder = tmp_path / "fasta"
    folder.mkdir()
    for name in "ab":
        lines = [
            f">{name}{number}\nMKVLAAGIVGLLLAQPS{'ACDEFGHIKL'[number]}" for number in range(10)
        ]
        (folder / f"{name}.fasta").write_text("\n".join(lines) + "\n")
    return folder


def run_of(source: Path, *overrides: str) -> RunFile:
    path = source.parents[source.is_file()] / "shards"
    return load_config(RUN, [f"data.source=[{source}]", f"data.path={path}", *overrides])


@pytest.mark.parametrize("name", ["", "a.fasta"])
def test_data_that_are_there_need_no_source(fasta: Path, name: str) -> None:
    """A job that starts again on another node does not depend on who had the files once."""
    source = fasta / name
    config = run_of(source)
    prepare(config)
    source.rename(fasta.parent / "moved")
    prepare_data.in_pod(config)
    with pytest.raises(ValueError, match="no such file or folder"):
        prepare(config)


def test_a_table_that_is_there_needs_no_source(tiny_model: Path, tmp_path: Path) -> None:
    run_file = write_task_file(tmp_path, tiny_model, "binary")
    (tmp_path / "table.csv").rename(tmp_path / "moved.csv")
    prepare_data.in_pod(load_config(run_file))
    with pytest.raises(ValueError, match="no such file or folder"):
        prepare_data.in_pod(load_config(run_file, ["task.split.test=[2]"]))
    (tmp_path / "moved.csv").rename(tmp_path / "table.csv")
    with pytest.raises(ValueError, match=r"holds data prepared differently: task\.split\.test"):
        prepare_data.in_pod(load_config(run_file, ["task.split.test=[2]"]))


@pytest.mark.parametrize(
    "override", ["data.seed=5", "data.test_fraction=0.2", "data.source=[sample]"]
)
def test_reports_other_data_in_the_same_place(fasta: Path, override: str) -> None:
    prepare(run_of(fasta))
    with pytest.raises(ValueError, match="holds data prepared differently"):
        prepare_data.in_pod(run_of(fasta, override))


@pytest.mark.parametrize("busy", [BeingPrepared, BeingFetched])
def test_other_pods_wait_for_the_first_one(
    fasta: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    busy: type[ValueError],
) -> None:
    """Whether it prepares or still downloads."""
    config = run_of(fasta)
    asked = []

    def prepare_later(wanted: RunFile) -> None:
        asked.append(wanted)
        if len(asked) == 3:
            prepare(config)
        raise busy("another process does")

    monkeypatch.setattr(kinds, "prepare", prepare_later)
    monkeypatch.setattr(waiting, "POLL_SECONDS", 0.0)
    prepare_data.in_pod(config)
    assert len(asked) == 3
    assert capsys.readouterr().out == f"another pod prepares {config.data.path}\n"
