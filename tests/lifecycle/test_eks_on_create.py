"""EKS nodes keep pods from credentials, and containers' data on a local disk; Amazon Linux 2 and 2023."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.lifecycle.node import Result, StandIns

SCRIPTS = Path(__file__).parents[2] / "lifecycle" / "eks"
ROOT = "259:1"
NVME = "253:0"
EBS = "259:5"
RULES = "keep-pods-from-metadata.service"

# A table of mounts, "path device": the longest that fits counts; a bind mount has its source's device.
FINDMNT = """
path="${{@: -1}}" longest="" found=""
while read -r mounted device; do
    [[ $1 != --mountpoint || $path == "$mounted" ]] || continue
    [[ $path/ == "${{mounted%/}}/"* && ${{#mounted}} -ge ${{#longest}} ]] || continue
    longest="$mounted" found="$device"
done < "{table}"
[[ -n $found ]] && echo "$found"
"""
MOUNT = """
device="$(findmnt --noheadings --output MAJ:MIN --target "$2")"
echo "$3 $device" >> "{table}"
"""
SYSTEMCTL = """
case "$1" in
is-active) [[ " {active} " == *" $3 "* ]] ;;
show) echo "ActiveState=$(cat "{state}" 2>/dev/null || echo inactive)" ;;
restart)
    read -r _ program < <(tr = ' ' < "{root}/etc/systemd/system/$2" | grep ^ExecStart)
    "{root}$program" ;;
esac
"""
SYSTEMS = {
    "Amazon Linux 2": "etc/eks/containerd/containerd-config.toml",
    "Amazon Linux 2023": "etc/containerd/config.toml",
}


class EksNode:
    def __init__(self, folder: Path, system: str) -> None:
        self.root = folder / "root"
        self.bundle = folder / "bundle"
        shutil.copytree(SCRIPTS, self.bundle)
        self.table = folder / "mounts"
        self.state = folder / "dlami-nvme"
        self.stand_ins = StandIns(folder / "stand_ins")
        config = self.root / SYSTEMS[system]
        config.parent.mkdir(parents=True)
        config.write_text(
            'version = 2\nroot = "/var/lib/containerd"\nstate = "/run/containerd"\n[grpc]\n'
        )
        self.config = config
        pause = self.root / "var/lib/containerd/io.containerd.content.v1.content/pause"
        pause.parent.mkdir(parents=True)
        pause.write_text("image")
        (self.root / "var/lib/kubelet").mkdir(parents=True)
        self.mounts({"/opt/dlami/nvme": NVME, "/opt/sagemaker": EBS})
        self.systemctl()
        self.stand_ins.command("findmnt", FINDMNT.format(table=self.table))
        self.stand_ins.command("mount", MOUNT.format(table=self.table))
        for name in ("sleep", "ctr", "iptables", "ip6tables"):
            self.stand_ins.command(name)

    def systemctl(self, active: str = "") -> None:
        self.stand_ins.command(
            "systemctl", SYSTEMCTL.format(active=active, state=self.state, root=self.root)
        )

    def mounts(self, disks: dict[str, str]) -> None:
        """Also what a reboot leaves of mounts."""
        lines = [f"{self.root}/ {ROOT}"]
        for path, device in disks.items():
            (self.root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
            lines.append(f"{self.root}{path} {device}")
        self.table.write_text("\n".join(lines) + "\n")

    def run(self, script: str | Path = "on_create.sh") -> Result:
        done = subprocess.run(
            ["/bin/bash", str(self.bundle / script)],
            cwd="/",
            env={"PATH": self.stand_ins.path, "DESTDIR": str(self.root)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        return Result(done.returncode, done.stdout)

    def boot(self) -> Result:
        return self.run(self.root / "usr/local/sbin/place-container-storage")

    def bound(self) -> dict[str, str]:
        """Folders to what is mounted over them, both without the test's root."""
        calls = [call.split() for call in self.stand_ins.calls if call.startswith("mount ")]
        return {
            call[3].removeprefix(str(self.root)): call[2].removeprefix(str(self.root))
            for call in calls
        }


@pytest.fixture(params=SYSTEMS)
def node(tmp_path: Path, request: pytest.FixtureRequest) -> EksNode:
    return EksNode(tmp_path, request.param)


@pytest.fixture
def al2023(tmp_path: Path) -> EksNode:
    return EksNode(tmp_path, "Amazon Linux 2023")


def test_both_folders_are_on_the_instance_store_with_what_was_there(node: EksNode) -> None:
    before = node.config.read_text()
    result = node.run()
    assert result.status == 0, result.output
    storage = "/opt/dlami/nvme/container-storage"
    assert node.bound() == {
        "/var/lib/containerd": f"{storage}/containerd",
        "/var/lib/kubelet": f"{storage}/kubelet",
    }
    pause = node.root / storage.lstrip("/") / "containerd/io.containerd.content.v1.content/pause"
    assert pause.read_text() == "image"
    enabled = {f"systemctl enable {service}" for service in (RULES, "container-storage.service")}
    assert enabled <= set(node.stand_ins.calls)
    assert node.config.read_text() == before


def test_the_switch_leaves_pods_the_instance_metadata(al2023: EksNode) -> None:
    (al2023.bundle / "pods_reach_metadata").touch()
    result = al2023.run()
    assert result.status == 0
    assert "WARNING: pods may reach the node's credentials" in result.output
    assert not [
        call for call in al2023.stand_ins.calls if RULES in call or call.startswith("iptables")
    ]
    assert not (al2023.root / "etc/systemd/system" / RULES).exists()


def test_lustre_over_tcp_does_not_end_the_setup(al2023: EksNode) -> None:
    assert "Lustre" not in al2023.run().output
    shutil.copy(SCRIPTS.with_name("slurm") / "set_up_lustre_efa.sh", al2023.bundle)
    (al2023.bundle / "lustre_efa").write_text("https://example.org/client.zip unknown\n")
    (al2023.root / "sys/class/infiniband/rdmap0").mkdir(parents=True)
    al2023.stand_ins.command("lnetctl", "exit 1")
    result = al2023.run()
    assert result.status == 0, result.output
    assert "the checksum of FSx's EFA client is not known yet" in result.output
    assert result.output.index("WARNING: pods mount Lustre over TCP") < result.output.index("done")


def test_a_second_run_changes_nothing(node: EksNode) -> None:
    node.run()
    node.stand_ins.forget_calls()
    node.systemctl(active="kubelet containerd")
    result = node.run()
    assert result.status == 0
    assert "container storage is where it belongs" in result.output
    assert node.bound() == {}
    changing = ("systemctl stop", "systemctl restart")
    assert [call for call in node.stand_ins.calls if call.startswith(changing)] == [
        f"systemctl restart {RULES}"
    ]


def test_services_that_run_are_stopped_meanwhile_and_no_others_started(al2023: EksNode) -> None:
    al2023.systemctl(active="kubelet containerd")
    assert al2023.run().status == 0
    order = [c for c in al2023.stand_ins.calls if c.split()[1] in ("stop", "start", "restart")]
    assert order == [
        f"systemctl restart {RULES}",
        "systemctl stop kubelet",
        "systemctl stop containerd",
        "systemctl restart container-storage.service",
        "systemctl start containerd",
        "systemctl start kubelet",
    ]


def test_a_new_node_starts_its_services_by_itself(al2023: EksNode) -> None:
    assert al2023.run().status == 0
    assert not [
        call
        for call in al2023.stand_ins.calls
        if call.startswith(("systemctl start", "systemctl stop"))
    ]


def test_running_containers_keep_their_storage(al2023: EksNode) -> None:
    al2023.stand_ins.command("ctr", "echo 0123")
    result = al2023.run()
    assert result.status == 0
    assert al2023.bound() == {}
    assert "WARNING: containers run" in result.output


@pytest.mark.long
@pytest.mark.parametrize(
    ("disks", "where"),
    [
        ({"/opt/sagemaker": EBS}, "/opt/sagemaker"),
        ({"/opt/dlami/nvme": ROOT, "/opt/sagemaker": EBS}, "/opt/sagemaker"),
        ({"/opt/sagemaker": ROOT}, None),
        ({}, None),
    ],
)
def test_the_disk_is_one_that_is_there(
    al2023: EksNode, disks: dict[str, str], where: str | None
) -> None:
    al2023.mounts(disks)
    result = al2023.run()
    assert result.status == 0, result.output
    assert {path.split("/container-storage")[0] for path in al2023.bound().values()} == (
        {where} if where else set()
    )
    assert ("no local disk" in result.output) == (where is None)


@pytest.mark.long
def test_disks_of_a_new_node_are_waited_for(al2023: EksNode) -> None:
    al2023.mounts({})
    al2023.stand_ins.command(
        "sleep", f'echo "{al2023.root}/opt/sagemaker {EBS}" >> "{al2023.table}"'
    )
    assert al2023.run().status == 0
    assert "/var/lib/kubelet" in al2023.bound()


@pytest.mark.long
def test_drives_that_are_being_formatted_are_waited_for(al2023: EksNode) -> None:
    al2023.mounts({"/opt/sagemaker": EBS})
    al2023.state.write_text("activating")
    nvme = f'echo "{al2023.root}/opt/dlami/nvme {NVME}" >> "{al2023.table}"; echo active > "{al2023.state}"'
    al2023.stand_ins.command("sleep", nvme)
    assert al2023.run().status == 0
    assert al2023.bound()["/var/lib/kubelet"].startswith("/opt/dlami/nvme/")


@pytest.mark.long
def test_a_node_without_a_disk_boots_without_waiting(al2023: EksNode) -> None:
    al2023.mounts({})
    al2023.run()
    al2023.stand_ins.forget_calls()
    assert al2023.boot().status == 0
    assert "sleep 5" not in al2023.stand_ins.calls


@pytest.mark.long
def test_a_reboot_mounts_what_was_there(al2023: EksNode) -> None:
    al2023.run()
    pulled = al2023.root / "opt/dlami/nvme/container-storage/containerd/pulled"
    pulled.write_text("layer")
    al2023.mounts({"/opt/dlami/nvme": NVME})
    al2023.stand_ins.forget_calls()
    assert al2023.boot().status == 0
    assert set(al2023.bound()) == {"/var/lib/containerd", "/var/lib/kubelet"}
    assert pulled.read_text() == "layer"


@pytest.mark.long
def test_a_disk_that_was_there_is_waited_for_after_a_reboot(al2023: EksNode) -> None:
    al2023.mounts({"/opt/sagemaker": EBS})
    al2023.run()
    al2023.mounts({})
    al2023.stand_ins.forget_calls()
    al2023.stand_ins.command(
        "sleep", f'echo "{al2023.root}/opt/sagemaker {EBS}" >> "{al2023.table}"'
    )
    assert al2023.boot().status == 0
    assert al2023.bound()["/var/lib/kubelet"] == "/opt/sagemaker/container-storage/kubelet"


@pytest.mark.long
def test_a_disk_that_comes_up_empty_gets_the_images_own_files_again(al2023: EksNode) -> None:
    al2023.run()
    shutil.rmtree(al2023.root / "opt/dlami/nvme/container-storage")
    al2023.mounts({"/opt/dlami/nvme": NVME})
    assert al2023.boot().status == 0
    assert list((al2023.root / "opt/dlami/nvme/container-storage/containerd").iterdir())


@pytest.mark.long
def test_what_another_root_volume_left_is_not_used(al2023: EksNode) -> None:
    """A patched node has a new root volume and may keep its disk."""
    old = al2023.root / "opt/dlami/nvme/container-storage/containerd/of-another-image"
    old.parent.mkdir(parents=True)
    old.touch()
    assert al2023.run().status == 0
    assert not old.exists()


def test_moves_the_folder_that_containerd_is_configured_to_use(node: EksNode) -> None:
    node.config.write_text('version = 3\nroot = "/data/containerd"\n')
    (node.root / "data/containerd").mkdir(parents=True)
    assert node.run().status == 0
    assert "/data/containerd" in node.bound() and "/var/lib/containerd" not in node.bound()


@pytest.mark.long
def test_a_folder_on_a_disk_already_stays(al2023: EksNode) -> None:
    al2023.config.write_text('root = "/opt/sagemaker/containerd/data-root"\n')
    assert al2023.run().status == 0
    assert set(al2023.bound()) == {"/var/lib/kubelet"}


@pytest.mark.long
def test_a_node_without_any_configuration_of_containerd_has_the_default(al2023: EksNode) -> None:
    al2023.config.unlink()
    assert al2023.run().status == 0
    assert "/var/lib/containerd" in al2023.bound()


@pytest.mark.long
@pytest.mark.parametrize("command", ["mount", "cp"])
def test_a_failure_ends_with_a_status_and_time_to_ship_the_log(
    al2023: EksNode, command: str
) -> None:
    al2023.stand_ins.command(command, "echo 'No space left on device' >&2; exit 1")
    result = al2023.run()
    assert result.status == 1
    assert "No space left on device" in result.output
    assert al2023.stand_ins.calls[-1] == "sleep 60"
    log = (al2023.root / "var/log/provision/provisioning.log").read_text()
    assert "failed; the lines above say where" in log


def test_mounts_without_effect_fail(al2023: EksNode) -> None:
    al2023.stand_ins.command("mount", "exit 0")
    result = al2023.run()
    assert result.status == 1
    assert "ERROR: container storage is still on the root volume" in result.output


@pytest.mark.long
def test_half_a_copy_is_not_taken_for_a_whole_one(al2023: EksNode) -> None:
    al2023.run()
    storage = al2023.root / "opt/dlami/nvme/container-storage"
    (storage / "containerd").rename(storage / "containerd.partial")
    al2023.mounts({"/opt/dlami/nvme": NVME})
    assert al2023.boot().status == 0
    assert not (storage / "containerd.partial").exists()
    assert (storage / "containerd/io.containerd.content.v1.content/pause").exists()


def test_pods_are_kept_from_the_credentials_before_the_node_joins_and_after_a_reboot(
    al2023: EksNode,
) -> None:
    assert al2023.run().status == 0
    calls = al2023.stand_ins.calls
    (rule,) = (call for call in calls if call.startswith("iptables"))
    assert "--destination 169.254.169.254/32" in rule
    assert calls.index(rule) < calls.index("systemctl restart container-storage.service")
    unit = (al2023.root / "etc/systemd/system" / RULES).read_text()
    (before,) = (line for line in unit.splitlines() if line.startswith("Before="))
    assert {"containerd.service", "kubelet.service"} <= set(before.removeprefix("Before=").split())
    program = al2023.root / "usr/local/sbin/keep-pods-from-metadata"
    assert program.stat().st_mode & 0o777 == 0o755


def test_a_node_whose_pods_would_reach_the_credentials_does_not_join(al2023: EksNode) -> None:
    al2023.stand_ins.command("iptables", "exit 4")
    result = al2023.run()
    assert result.status == 1
    assert (
        f"ERROR: pods would reach the node's credentials at 169.254.169.254. See: journalctl --unit {RULES}"
        in (result.output)
    )
    assert al2023.bound() == {}


def test_containerd_and_kubelet_use_the_proxy_of_the_file(node: EksNode) -> None:
    (node.bundle / "proxy").write_text("https_proxy=http://proxy.example.com:3128\n")
    result = node.run()
    assert result.status == 0, result.output
    assert "use the proxy http://proxy.example.com:3128" in result.output
    for service in ("containerd", "kubelet"):
        unit = node.root / f"etc/systemd/system/{service}.service.d/50-node-setup-proxy.conf"
        assert unit.read_text() == "[Service]\nEnvironmentFile=/etc/node-setup/proxy\n"
    assert (node.root / "etc/node-setup/proxy").read_text().startswith("https_proxy=")
