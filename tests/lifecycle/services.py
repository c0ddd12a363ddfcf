"""systemd for steps that install services: a stand-in that remembers what is enabled and what runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lifecycle.node import StandIns

_SYSTEMCTL = """
state="{state}"; unit="${{@: -1}}"
case "$1" in
    is-active) [[ -e "$state/active-$unit" ]] ;;
    is-enabled) [[ -e "$state/enabled-$unit" ]] ;;
    enable) touch "$state/enabled-$unit" ;;
    restart)
        [[ ! -e "$state/broken" ]] || {{ echo "Job for $unit failed." >&2; exit 1; }}
        touch "$state/active-$unit"
        [[ ! -e "$state/at-start" ]] || source "$state/at-start" ;;
esac
"""


class Services:
    """Stand-in for systemd in one test."""

    def __init__(self, stand_ins: StandIns, folder: Path) -> None:
        self._state = folder / "services"
        self._state.mkdir()
        self._stand_ins = stand_ins
        stand_ins.command("systemctl", _SYSTEMCTL.format(state=self._state))
        stand_ins.command("journalctl", "echo the last line")
        stand_ins.command("ss", "exit 0")
        stand_ins.command("id", f'[[ -e "{self._state}/user-$2" ]]')
        stand_ins.command("useradd", f'touch "{self._state}/user-${{@: -1}}"')

    def break_starts(self) -> None:
        (self._state / "broken").touch()

    def at_start(self, body: str) -> None:
        """Bash to run when a unit starts."""
        (self._state / "at-start").write_text(body)

    @property
    def restarts(self) -> list[str]:
        """Units, in the order of their starts."""
        calls = [call.split() for call in self._stand_ins.calls]
        return [call[-1] for call in calls if call[:2] == ["systemctl", "restart"]]


@pytest.fixture
def services(stand_ins: StandIns, tmp_path: Path) -> Services:
    return Services(stand_ins, tmp_path)
