"""Exit of launchers whose processes were stopped by a signal."""

from __future__ import annotations

import os
import signal
import sys

import pytest
from torch.distributed.elastic.multiprocessing.api import SignalException

from seqlm.launch.agent_exit import exit_after_signal
from seqlm.training.command_line import STOPPED_BY_SIGNAL


def test_a_signal_ends_a_launcher_without_waiting_for_its_threads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit) as ended, exit_after_signal():
        raise SignalException("stopped", signal.SIGTERM)
    assert ended.value.code == STOPPED_BY_SIGNAL
    assert capsys.readouterr().err == "ended by signal 15\n"


def test_other_errors_are_torchs() -> None:
    with pytest.raises(ValueError, match="other"), exit_after_signal():
        raise ValueError("other")
