"""python -m tools.jobs: the cluster file selects the scheduler."""

from __future__ import annotations

import sys

import pytest

from tools.jobs import __main__ as command
from tools.jobs.kubernetes.jobs import KubernetesJobs
from tools.jobs.slurm.jobs import SlurmJobs


@pytest.mark.parametrize(("cluster", "scheduler"), [("slurm", SlurmJobs), ("eks", KubernetesJobs)])
def test_the_cluster_file_decides(
    cluster: str, scheduler: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(
        scheduler,
        "follow_up",
        lambda self, command, options: asked.extend([command, options.job]) or 0,
    )
    monkeypatch.setattr(sys, "argv", ["jobs", "tail", "x", "--cluster", f"clusters/{cluster}.yaml"])
    assert command.main() == 0
    assert asked == ["tail", "x"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["status", "--target", "slurm", "--cluster", "clusters/eks.yaml"], "scheduler: got eks"),
        (["cancel"], "cancel: name the job"),
        (["submit", "train"], "--config: name the YAML file of the run to train"),
    ],
)
def test_what_cannot_be_done_is_one_message(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["jobs", *words])
    with pytest.raises(ValueError, match=message):
        command.main()


@pytest.mark.parametrize("words", [["nonsense"], ["submit", "nonsense"], ["status", "--team=x"]])
def test_wrong_words_show_the_usage(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["jobs", *words])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 2 and "usage: " in capsys.readouterr().err
