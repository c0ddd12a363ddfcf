"""The firewall rules between users and the node's credentials."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.lifecycle.node import SCRIPTS, Result, StandIns

# A table in a file, last inserted first: -C succeeds for a rule that is there.
TABLE = r"""
rules="{rules}"; touch "$rules"
[[ "$1 $2 $3" == "--wait 60 --table" ]] || exit 2
chain="$4 $6"; action="$5"; shift 6
case "$action" in
    --check) grep --quiet --line-regexp --fixed-strings -- "$chain $*" "$rules" ;;
    --insert) [[ "$1" == 1 ]] && shift && printf '%s\n' "$chain $*" "$(<"$rules")" > "$rules" ;;
    *) exit 2 ;;
esac
"""
USERS = "filter OUTPUT --destination 169.254.169.254/32 --match owner ! --uid-owner 0"
LOGGED = f"{USERS} --match limit --limit 10/minute --jump LOG --log-prefix instance-credentials:  --log-uid"
REFUSED = [
    f"{USERS} --jump REJECT",
    "mangle PREROUTING --destination 169.254.169.254/32 --jump DROP",
]
V4 = [REFUSED[1], LOGGED, REFUSED[0]]
"""Rules in order: a logged packet is refused next."""
V6 = [rule.replace("169.254.169.254/32", "fd00:ec2::254/128") for rule in V4]


@pytest.fixture
def commands(stand_ins: StandIns, tmp_path: Path) -> StandIns:
    for name in ("iptables", "ip6tables"):
        stand_ins.command(name, TABLE.format(rules=tmp_path / f"{name}.rules"))
    (tmp_path / "root/proc/sys/net/ipv6").mkdir(parents=True)
    return stand_ins


def block(tmp_path: Path) -> Result:
    done = subprocess.run(
        ["bash", SCRIPTS / "block_instance_credentials.sh"],
        env={**os.environ, "DESTDIR": str(tmp_path / "root")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    return Result(done.returncode, done.stdout)


def rules(folder: Path, table: str) -> list[str]:
    path = folder / f"{table}.rules"
    return path.read_text().split("\n")[:-1] if path.exists() else []


def test_root_alone_and_no_bridged_container(commands: StandIns, tmp_path: Path) -> None:
    result = block(tmp_path)
    assert result.status == 0, result.output
    assert rules(tmp_path, "iptables") == V4
    assert rules(tmp_path, "ip6tables") == V6


def test_a_second_run_adds_nothing(commands: StandIns, tmp_path: Path) -> None:
    block(tmp_path)
    assert block(tmp_path).status == 0
    assert rules(tmp_path, "iptables") == V4


def test_a_node_without_ipv6_has_no_rules_for_it(commands: StandIns, tmp_path: Path) -> None:
    (tmp_path / "root/proc/sys/net/ipv6").rmdir()
    assert block(tmp_path).status == 0
    assert rules(tmp_path, "ip6tables") == []


def test_a_kernel_that_cannot_log_refuses_all_the_same(commands: StandIns, tmp_path: Path) -> None:
    table = TABLE.format(rules=tmp_path / "iptables.rules")
    commands.command("iptables", f'[[ "$*" != *LOG* ]] || exit 4\n{table}')
    result = block(tmp_path)
    assert result.status == 0
    assert rules(tmp_path, "iptables") == REFUSED[::-1]
    assert "attempts on 169.254.169.254/32 are refused but not logged" in result.output


def test_a_rule_that_cannot_be_made_is_an_error(commands: StandIns, tmp_path: Path) -> None:
    commands.command("iptables", "exit 4")
    assert block(tmp_path).status == 4
