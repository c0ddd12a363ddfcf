"""Nodes set up EFA to Lustre with FSx's verified program, and stay on TCP whenever that fails."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from pathlib import Path

import pytest

from node_setup.node import Node
from node_setup.steps import mounts
from tests.lifecycle.node import SCRIPTS, Result, StandIns, node_of

URL = "https://example.org/configure-efa-fsx-lustre-client.zip"
SOURCE = "10.0.0.5@tcp:/abcdev4v"
SETUP = "echo 'Loading LNet'\necho {status} >{state}\n"

LNETCTL = """
[[ -e {state} ]] || exit 1
echo "        - nid: 10.0.0.31@efa"
echo "          status: $(cat {state})"
echo "              send_count: $(cat {sent})"
echo "              recv_count: $(cat {sent})"
"""
# Closing a file sends it, unless it goes over another network.
SYNC = "[[ -e {other_network} ]] || echo $(($(cat {sent}) + 16)) > {sent}"


class EfaNode:
    """A node with an adapter, a mounted file system and FSx's program to download."""

    def __init__(self, folder: Path, stand_ins: StandIns) -> None:
        self.folder = folder
        self.stand_ins = stand_ins
        self.root = folder / "root"
        self.mount_point = folder / "fsx"
        self.state = folder / "state"
        self.sent = folder / "sent"
        self.other_network = folder / "other_network"
        self.mount_point.mkdir()
        self.sent.write_text("7")
        (self.root / "sys/class/infiniband/rdmap0").mkdir(parents=True)
        places = {"state": self.state, "sent": self.sent, "other_network": self.other_network}
        stand_ins.command("lnetctl", LNETCTL.format(**places))
        stand_ins.command("sync", SYNC.format(**places))
        stand_ins.command("findmnt", f"echo {SOURCE}")
        stand_ins.command("curl", f"cp {folder / 'client.zip'} client.zip")
        for name in ("modinfo", "mount", "umount", "lustre_rmmod", "systemctl"):
            stand_ins.command(name)
        self.sha256 = self.publish(SETUP.format(state=self.state, status="up"))

    def publish(self, setup: str) -> str:
        """Put this program where it is downloaded from; returns the checksum."""
        file = self.folder / "client.zip"
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("configure-efa-fsx-lustre-client/setup.sh", setup)
        return hashlib.sha256(file.read_bytes()).hexdigest()

    def run(self, sha256: str | None = None, *, mounted: bool = True) -> Result:
        arguments = [URL, sha256 or self.sha256, *([str(self.mount_point)] if mounted else [])]
        done = subprocess.run(
            ["/bin/bash", str(SCRIPTS / "set_up_lustre_efa.sh"), *arguments],
            env={"PATH": self.stand_ins.path, "DESTDIR": str(self.root)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        return Result(done.returncode, done.stdout)

    @property
    def mount_calls(self) -> list[str]:
        return [call for call in self.stand_ins.calls if call.startswith(("mount ", "umount "))]


@pytest.fixture
def efa(tmp_path: Path, stand_ins: StandIns) -> EfaNode:
    return EfaNode(tmp_path, stand_ins)


def test_the_file_system_is_mounted_again_over_efa_and_a_second_run_only_verifies(
    efa: EfaNode,
) -> None:
    result = efa.run()
    assert result.status == 0, result.output
    assert (
        "set up the EFA client" in result.output
        and "Lustre uses EFA: 1 interfaces" in result.output
    )
    mounted = f"mount --types lustre --options relatime,flock {SOURCE} {efa.mount_point}"
    assert efa.mount_calls == [f"umount {efa.mount_point}", mounted]
    efa.stand_ins.forget_calls()
    again = efa.run()
    assert again.status == 0 and "set up the EFA client" not in again.output
    assert not [
        call for call in efa.stand_ins.calls if call.startswith(("mount ", "umount ", "curl "))
    ]
    assert list(efa.mount_point.iterdir()) == []


def test_modules_are_unloaded_and_fsx_service_starts_before_mounts(efa: EfaNode) -> None:
    (efa.root / "sys/module/libcfs").mkdir(parents=True)
    assert efa.run().status == 0
    done = [call.split()[0] for call in efa.stand_ins.calls]
    assert done.index("umount") < done.index("lustre_rmmod") < done.index("mount")
    (order,) = (efa.root / "etc/systemd/system").rglob("*.conf")
    assert "Before=remote-fs-pre.target kubelet.service" in order.read_text()


def test_the_interfaces_and_not_the_status_of_the_program_decide(efa: EfaNode) -> None:
    sha256 = efa.publish(SETUP.format(state=efa.state, status="up") + "exit 1\n")
    assert efa.run(sha256).status == 0


def test_after_a_failure_the_next_boot_uses_tcp(efa: EfaNode) -> None:
    options = efa.root / "etc/modprobe.d/modprobe.conf"
    options.parent.mkdir(parents=True)
    options.write_text("options lnet old\n")
    efa.run(efa.publish(f"echo 'options lnet efa' >{options}"))
    assert options.read_text() == "options lnet old\n"
    assert "systemctl disable --now" in efa.stand_ins.calls[-3]
    assert not list((efa.root / "etc/systemd/system").rglob("*.conf"))


def test_without_a_mount_the_client_alone_is_set_up(efa: EfaNode) -> None:
    result = efa.run(mounted=False)
    assert result.status == 0 and "Lustre uses EFA" in result.output
    assert efa.mount_calls == []


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("no checksum", "the checksum of FSx's EFA client is not known yet"),
        ("another file", "has another SHA-256 than the pinned one"),
        ("no adapter", "this node has no EFA adapter"),
        ("no module", "no module for EFA (kefalnd)"),
        ("no download", "could not be downloaded"),
        ("in use", "is in use"),
        ("setup fails", "FSx's setup.sh ended with status 5"),
        ("no interface", "setup.sh ended with status 0 and no EFA interface is up"),
        ("interface down", "setup.sh ended with status 0 and no EFA interface is up"),
        ("modules in use", "lustre_rmmod could not unload"),
        ("other network", "went over another network"),
    ],
)
def test_lustre_stays_mounted_over_tcp(efa: EfaNode, fault: str, message: str) -> None:
    sha256 = efa.sha256
    match fault:
        case "no checksum":
            sha256 = "unknown"
        case "another file":
            efa.publish("echo other")
        case "no adapter":
            (efa.root / "sys/class/infiniband/rdmap0").rmdir()
        case "no module":
            efa.stand_ins.command("modinfo", "exit 1")
        case "no download":
            efa.stand_ins.command("curl", "exit 22")
        case "in use":
            efa.stand_ins.command("umount", "exit 32")
        case "setup fails":
            sha256 = efa.publish("exit 5")
        case "no interface":
            sha256 = efa.publish("exit 0")
        case "interface down":
            sha256 = efa.publish(SETUP.format(state=efa.state, status="down"))
        case "modules in use":
            (efa.root / "sys/module/libcfs").mkdir(parents=True)
            efa.stand_ins.command("lustre_rmmod", "exit 1")
        case "other network":
            efa.other_network.touch()
    result = efa.run(sha256)
    assert result.status == 3
    assert "Lustre stays on TCP: " in result.output and message in result.output
    done = [call.split()[0] for call in efa.mount_calls]
    assert done in ([], ["umount"] if fault == "in use" else ["umount", "mount"])
    assert list(efa.mount_point.iterdir()) == []


@pytest.fixture
def node(tmp_path: Path, efa: EfaNode, monkeypatch: pytest.MonkeyPatch) -> Node:
    """The worker of that file system, where the platform's mount is of Lustre."""
    efa.stand_ins.command("findmnt", f"[[ $* == *FSTYPE* ]] && echo lustre || echo {SOURCE}")
    efa.stand_ins.command("squeue")
    monkeypatch.setenv("DESTDIR", str(efa.root))
    client = {"url": URL, "sha256": efa.sha256}
    found = node_of(
        tmp_path, group="workers", lustre_mount_path=str(efa.mount_point), lustre_efa=client
    )
    return found


def test_the_step_reports_the_change_once(node: Node) -> None:
    mounts.set_up_efa(node)
    assert (node.changes, node.warnings) == (["the EFA client of Lustre"], [])
    node.changes = []
    mounts.set_up_efa(node)
    assert (node.changes, node.warnings) == ([], [])


def test_the_step_warns_and_continues_if_lustre_stays_on_tcp(node: Node, efa: EfaNode) -> None:
    efa.stand_ins.command("curl", "exit 22")
    mounts.set_up_efa(node)
    (warning,) = node.warnings
    assert warning == f"Lustre stays on TCP: {URL} could not be downloaded"
    assert node.changes == []


def test_a_worker_with_jobs_keeps_its_mount(
    node: Node, efa: EfaNode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mounts, "runs_jobs", lambda host, name: True)
    mounts.set_up_efa(node)
    assert (node.changes, efa.mount_calls) == ([], [])
    assert "jobs run on this node" in capsys.readouterr().out
