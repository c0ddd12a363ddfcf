"""Rules that keep pods of an EKS node from its credentials, and their effect on a real kernel."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.lifecycle.node import Result, StandIns
from tests.lifecycle.test_block_instance_credentials import TABLE, rules

SCRIPT = Path(__file__).parents[2] / "lifecycle" / "eks" / "keep_pods_from_metadata.sh"
V4 = ["mangle PREROUTING --destination 169.254.169.254/32 --jump DROP"]
V6 = ["mangle PREROUTING --destination fd00:ec2::254/128 --jump DROP"]

# A node with a pod behind a veth pair, as the VPC CNI makes them, and the metadata service beyond the node.
# Nothing listens anywhere: a refusal is an answer. The CNI's own rules of mangle and FORWARD are there, too.
_NODE = r"""
mount -t tmpfs none /run  # where ip keeps namespaces' names: the test's own, gone with it
sysctl --quiet --write net.ipv4.ip_forward=1
ip link set lo up
link() {  # namespace, its address, interface here, address here
    ip netns add "$1"
    ip link add "$3" type veth peer name eth0 netns "$1"
    ip address add "$4" dev "$3"
    ip link set "$3" up
    ip -n "$1" address add "$2" dev eth0
    ip -n "$1" link set lo up
    ip -n "$1" link set eth0 up
}
link metadata 169.254.169.254/16 ens5 169.254.0.1/16
ip -n metadata route add 10.0.0.0/16 via 169.254.0.1
link pod 10.0.1.2/24 eni1 10.0.1.1/24
ip -n pod route add default via 10.0.1.1
ip address add 169.254.170.23/32 dev lo
iptables --table mangle --append PREROUTING --in-interface eni+ --jump CONNMARK --restore-mark --nfmask 0x80
iptables --append FORWARD --in-interface eni+ --jump ACCEPT
ask() {
    local said
    said="$(timeout 1 "${@:2}" bash -c "exec 3<>/dev/tcp/$1/80" 2>&1)"
    case "$?:${said}" in *refused*) echo answered ;; 124:*) echo silence ;; *) echo "${said}" ;; esac
}
everybody() {
    echo "pod $(ask 169.254.169.254 ip netns exec pod) $(ask 169.254.170.23 ip netns exec pod)" \
        "node $(ask 169.254.169.254 env) $(ask 169.254.170.23 env)"
}
everybody
bash "$1"
bash "$1"
everybody
"""


@pytest.fixture
def commands(stand_ins: StandIns, tmp_path: Path) -> StandIns:
    for name in ("iptables", "ip6tables"):
        stand_ins.command(name, TABLE.format(rules=tmp_path / f"{name}.rules"))
    (tmp_path / "root/proc/sys/net/ipv6").mkdir(parents=True)
    return stand_ins


def keep(tmp_path: Path) -> Result:
    done = subprocess.run(
        ["bash", SCRIPT],
        env={**os.environ, "DESTDIR": str(tmp_path / "root")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    return Result(done.returncode, done.stdout)


def test_what_pods_send_is_dropped_before_any_other_rule(
    commands: StandIns, tmp_path: Path
) -> None:
    for _ in range(2):  # the second time nothing is added
        result = keep(tmp_path)
        assert result.status == 0, result.output
        assert [*filter(None, rules(tmp_path, "iptables"))] == V4
        assert [*filter(None, rules(tmp_path, "ip6tables"))] == V6


def test_a_node_without_ipv6_has_no_rule_for_it(commands: StandIns, tmp_path: Path) -> None:
    (tmp_path / "root/proc/sys/net/ipv6").rmdir()
    assert keep(tmp_path).status == 0
    assert rules(tmp_path, "ip6tables") == []


def test_a_rule_that_cannot_be_made_is_an_error(commands: StandIns, tmp_path: Path) -> None:
    commands.command("iptables", "exit 4")
    assert keep(tmp_path).status == 4


def test_on_a_real_kernel_pods_get_no_answer_and_all_others_do() -> None:
    """Also from EKS Pod Identity, whose agent stands on the node."""
    if os.geteuid() or not all(
        map(shutil.which, ("unshare", "ip", "iptables", "ip6tables", "sysctl"))
    ):
        pytest.skip("needs root, iproute2 and iptables, to make networks of its own")
    isolated = ("unshare", "--net", "--mount")
    if subprocess.run(
        [*isolated, "iptables", "--list-rules"], capture_output=True, timeout=60
    ).returncode:
        pytest.skip(
            "this machine's kernel gives no network with a firewall to a process of its own"
        )
    done = subprocess.run(
        [*isolated, "bash", "-uc", _NODE, "node", str(SCRIPT)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    before, after = done.stdout.splitlines()
    assert before == "pod answered answered node answered answered"
    assert after == "pod silence answered node answered answered"
