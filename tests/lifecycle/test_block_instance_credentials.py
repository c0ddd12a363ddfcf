"""The firewall rules between users and the node's credentials."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lifecycle.node import Node

# A table in a file: -C succeeds for a rule that was inserted.
TABLE = r"""
rules="{rules}"; touch "$rules"
[[ "$1 $2 $3" == "--wait 60 --table" ]] || exit 2
chain="$4 $6"; action="$5"; shift 6
case "$action" in
    --check) grep --quiet --line-regexp --fixed-strings -- "$chain $*" "$rules" ;;
    --insert) [[ "$1" == 1 ]] && shift && echo "$chain $*" >> "$rules" ;;
    *) exit 2 ;;
esac
"""
V4 = [
    "filter OUTPUT --destination 169.254.169.254/32 --match owner ! --uid-owner 0 --jump REJECT",
    "mangle PREROUTING --destination 169.254.169.254/32 --jump DROP",
]
V6 = [rule.replace("169.254.169.254/32", "fd00:ec2::254/128") for rule in V4]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    for name in ("iptables", "ip6tables"):
        made.command(name, TABLE.format(rules=tmp_path / f"{name}.rules"))
    return made


def rules(folder: Path, table: str) -> list[str]:
    path = folder / f"{table}.rules"
    return path.read_text().splitlines() if path.exists() else []


def test_root_alone_and_no_bridged_container(node: Node, tmp_path: Path) -> None:
    result = node.run("block_instance_credentials.sh")
    assert result.status == 0, result.output
    assert rules(tmp_path, "iptables") == V4
    assert rules(tmp_path, "ip6tables") == V6


def test_a_second_run_adds_nothing(node: Node, tmp_path: Path) -> None:
    node.run("block_instance_credentials.sh")
    assert node.run("block_instance_credentials.sh").status == 0
    assert rules(tmp_path, "iptables") == V4


def test_a_node_without_ipv6_has_no_rules_for_it(node: Node, tmp_path: Path) -> None:
    (node.root / "proc/sys/net/ipv6").rmdir()
    assert node.run("block_instance_credentials.sh").status == 0
    assert rules(tmp_path, "ip6tables") == []


def test_a_rule_that_cannot_be_made_is_an_error(node: Node) -> None:
    node.command("iptables", "exit 4")
    assert node.run("block_instance_credentials.sh").status == 4
