"""Root on a node writes through nothing that a user could have planted, and reads nothing without end.

``PLACES`` are all paths below shared file systems, homes and local disks that lifecycle code opens, creates
or removes, without temporary names, which cannot be foreseen. At each one a link, a pipe, a device or an
endless file is planted before the code runs, in folders of root's too, as they may once have been open to
users.
"""

from __future__ import annotations

import json
import os
import re
import resource
import secrets
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from node_setup.failure import SetupError
from node_setup.home import make_home
from node_setup.root_folder import make_root_folder
from node_setup.steps import mounts, workload_code
from node_setup.steps.workload_code import content_hash
from studio import partitions
from tests.lifecycle.container_node import ContainerNode
from tests.lifecycle.node import SCRIPTS, StandIns, node_of

LIFECYCLE = SCRIPTS.parent
UID = os.getuid()
GID = os.getgid()
MOST_MEMORY_KB = 200_000
ENDLESS_BYTES = 1 << 40
CODE = {"esm2/train.py": "print()\n"}
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5 ada@laptop"


class Planted:
    """A machine below ``root``, and what a planted link leads to."""

    def __init__(self, folder: Path, commands: StandIns) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.commands = commands
        self.victim = folder / "victim"
        self.victims_folder = folder / "victims"
        self.victims_folder.mkdir()
        (self.victims_folder / "file").write_text("keep\n")
        self.victim.write_text("keep\n")
        self.victim.chmod(0o640)
        self.victims_folder.chmod(0o750)

    def plant(self, place: str, kind: str) -> Path:
        path = self.root / place.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        match kind:
            case "link to a file":
                path.symlink_to(self.victim)
            case "link to a folder":
                path.symlink_to(self.victims_folder)
            case "link to a device":
                path.symlink_to("/dev/zero")
            case "pipe":
                os.mkfifo(path)
            case "device":
                try:
                    os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))
                except PermissionError:
                    pytest.skip("only root can create device files here")
            case "endless file":
                path.touch()
                os.truncate(path, ENDLESS_BYTES)
        return path

    def is_unharmed(self) -> bool:
        texts = (self.victim.read_text(), (self.victims_folder / "file").read_text())
        modes = (self.victim.stat().st_mode & 0o7777, self.victims_folder.stat().st_mode & 0o7777)
        return (
            texts == ("keep\n", "keep\n")
            and modes == (0o640, 0o750)
            and [path.name for path in self.victims_folder.iterdir()] == ["file"]
        )


KINDS = ("link to a file", "link to a folder", "link to a device", "pipe", "device", "endless file")


def probe(machine: Planted, place: str, kind: str) -> None:
    """The name cannot be foreseen; here it is."""
    machine.commands.command("findmnt", "echo lustre")
    machine.plant(place, kind)
    node = node_of(machine.folder, lustre_mount_path=str(machine.root / "fsx"))
    with pytest.raises(SetupError, match="File exists"):
        mounts.verify_lustre(node)


def folder_of_roots(machine: Planted, place: str, kind: str) -> None:
    machine.plant(place, kind)
    with pytest.raises(
        SetupError, match=f"{place} must be a folder of root's that no one else can write to"
    ):
        make_root_folder(node_of(machine.folder).host, place)


def home(machine: Planted, place: str, kind: str) -> None:
    host = node_of(machine.folder).host
    make_root_folder(host, "/fsx/home")
    machine.plant(place, kind)
    with pytest.raises(SetupError):
        make_home(host, "/fsx/home/ada", UID, GID)


def ssh(machine: Planted, place: str, kind: str) -> None:
    """Run the script as the user, with no more memory than the script allows itself."""
    planted = machine.plant(place, kind)
    if planted.name.endswith(".pub"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", machine.folder / "own"],
            check=True,
        )
        (machine.folder / "own").rename(planted.with_suffix(""))
    process = subprocess.Popen(
        [sys.executable, "-I", SCRIPTS / "user_ssh.py", machine.root / "fsx/home/ada"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "USER": "ada"},
    )
    assert process.stdin and process.stderr
    process.stdin.write(json.dumps([KEY]).encode())
    process.stdin.close()
    errors = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    # A child begins with the memory of this process, until it runs another program.
    assert usage.ru_maxrss < resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + MOST_MEMORY_KB
    replaced = place.endswith("authorized_keys") and kind.startswith("link")
    assert (process.returncode, len(errors.splitlines())) == ((0, 0) if replaced else (1, 1)), (
        errors
    )
    if place.endswith((".pub", "id_ed25519")) or replaced:
        authorized = planted.with_name("authorized_keys")
        assert not authorized.is_symlink() and KEY in authorized.read_text()


def code(machine: Planted, place: str, kind: str) -> None:
    """Planted files are moved aside or removed, and the deployed version takes their place."""
    bucket = machine.folder / "bucket"
    for name, text in CODE.items():
        (bucket / name).parent.mkdir(parents=True)
        (bucket / name).write_text(text)
    version = content_hash(bucket)
    node = node_of(machine.folder, "controller", workload_code=True)
    node.deployment = replace(node.deployment, workload_s3_uri=f"s3://bucket/workloads/{version}")
    machine.commands.command("aws", f'cp --recursive "{bucket}/." "${{@: -1}}"')
    machine.plant(place.format(version=version, pid=os.getpid()), kind)
    workload_code.sync(node)
    workloads = machine.root / "fsx/workloads"
    assert os.readlink(workloads / "current") == version
    assert not (workloads / version).is_symlink()
    assert content_hash(workloads / version) == version


def partition(machine: Planted, place: str, kind: str) -> None:
    machine.plant(place, kind)
    root = machine.root / "fsx/studio"
    with suppress(OSError):
        partitions.remove_partition(root, "users/ada")
    with suppress(OSError):
        partitions.empty_trash(root)
    if not place.endswith("users/ada"):  # which has just been removed
        with pytest.raises(OSError):
            partitions.make_partition(
                root, "shared" if place.endswith("shared") else "users/ada", [2001]
            )
            partitions.empty_trash(root)


def local_disk(machine: Planted, place: str, kind: str) -> None:
    """The refusal comes before Docker gets its folder, and before a unit opens one to all users."""
    node = ContainerNode(machine.folder, machine.commands)
    (node.root / place.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
    machine.plant(place, kind)
    from node_setup.steps import container_storage

    node.write("/etc/enroot/enroot.conf", "ENROOT_CACHE_PATH /var/cache/enroot\n")
    with pytest.raises(SetupError, match=f"{place} must be a folder of root's"):
        container_storage.place(node.node)
    restarted = "docker.service" if place.endswith("docker") else "container-folders.service"
    assert f"systemctl restart {restarted}" not in machine.commands.calls


Act = Callable[[Planted, str, str], None]
PLACES: dict[str, Act] = {
    "/fsx/.probe-ip-10-0-0-31-0123456789abcdef": probe,
    "/fsx/home": folder_of_roots,
    "/home": folder_of_roots,
    "/fsx/home/ada": home,
    "/fsx/home/ada/.ssh": ssh,
    "/fsx/home/ada/.ssh/authorized_keys": ssh,
    "/fsx/home/ada/.ssh/id_ed25519": ssh,
    "/fsx/home/ada/.ssh/id_ed25519.pub": ssh,
    "/fsx/workloads": folder_of_roots,
    "/fsx/workloads/{version}": code,
    "/fsx/workloads/{version}/esm2/train.py": code,
    "/fsx/workloads/{version}/esm2": code,
    "/fsx/workloads/current": code,
    "/fsx/workloads/.current-{pid}": code,
    "/fsx/studio": partition,
    "/fsx/studio/shared": partition,
    "/fsx/studio/users": partition,
    "/fsx/studio/users/ada": partition,
    "/fsx/studio/.removed": partition,
    "/opt/dlami/nvme/docker": local_disk,
    "/opt/dlami/nvme/enroot": local_disk,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_nothing_planted_is_followed(
    place: str, kind: str, tmp_path: Path, stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "token_hex", lambda _: "0123456789abcdef")
    machine = Planted(tmp_path, stand_ins)
    PLACES[place](machine, place, kind)
    assert machine.is_unharmed()


# What leads to such a path, and the files that have it for a reason.
LEADS_THERE = re.compile(
    r"lustre_mount_path|home_mount_path|homes_folder|home_of|@LUSTRE@|@ROOT@|\.ssh\b|/fsx|INSTANCE_STORE\b"
    r"|SECOND_VOLUME|/opt/dlami|/opt/sagemaker|root_folder"
)
TESTED_HERE = {
    "slurm/node_setup/docker.py",
    "slurm/node_setup/enroot.py",
    "slurm/node_setup/home.py",
    "slurm/node_setup/root_folder.py",
    "slurm/node_setup/steps/mounts.py",
    "slurm/node_setup/steps/studio.py",
    "slurm/node_setup/steps/users.py",
    "slurm/node_setup/steps/workload_code.py",
    "slurm/studio/partitions.py",
    "slurm/user_ssh.py",
    "slurm/users_ssh.py",
}
OPENS_NOTHING = {
    "eks/place_container_storage.sh": "no users on nodes of EKS: pods do not see the disk",
    "slurm/node_setup/cluster_id.py": "leaves a state on a shared file system alone",
    "slurm/node_setup/disks.py": "asks which disk a path is on, and how large it is",
    "slurm/node_setup/settings.py": "names the paths",
    "slurm/node_setup/steps/__init__.py": "asks whether there is a second file system",
    "slurm/node_setup/steps/cloudwatch_agent.py": "hands paths to the agent, which asks how full they are",
    "slurm/node_setup/steps/health_prolog.py": "hands the path to the checks",
    "slurm/node_setup/steps/message_of_the_day.py": "names the paths",
    "slurm/units/check_node_health.sh": "asks whether it is mounted, and how full it is",
    "slurm/units/studio-partitions.service": "starts studio/partitions.py",
    "studio/set_up_space.py": "as the user of a space, in which no one else works",
}


def test_no_other_code_comes_near_such_a_path() -> None:
    files = [path for path in LIFECYCLE.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    found = {
        path.relative_to(LIFECYCLE).as_posix()
        for path in files
        if LEADS_THERE.search(path.read_text())
    }
    assert found == TESTED_HERE | set(OPENS_NOTHING)


def test_a_folder_that_is_exchanged_meanwhile_changes_nothing(tmp_path: Path) -> None:
    """Users who can write to the mount's root can rename root's folders there."""
    from node_setup.root_folder import root_folder

    node = node_of(tmp_path)
    victim = tmp_path / "victim"
    victim.mkdir()
    fsx = tmp_path / "root/fsx"
    with root_folder(node.host, "/fsx/home") as opened:
        (fsx / "home").rename(fsx / "mine")
        (fsx / "home").symlink_to(victim)
        (opened / "ada").mkdir()
        subprocess.run(["touch", opened / "ada/file"], check=True)
    assert list(victim.iterdir()) == []
    assert (fsx / "mine/ada/file").exists()


def test_a_version_that_is_not_roots_is_brought_again(tmp_path: Path, stand_ins: StandIns) -> None:
    """Right as its contents are now, users could change them as soon as jobs run them."""
    machine = Planted(tmp_path, stand_ins)
    code(machine, "/fsx/elsewhere", "pipe")
    version = next(
        path for path in (machine.root / "fsx/workloads").iterdir() if not path.is_symlink()
    )
    (version / "esm2").chmod(0o777)
    node = node_of(machine.folder, "controller", workload_code=True)
    node.deployment = replace(
        node.deployment, workload_s3_uri=f"s3://bucket/workloads/{version.name}"
    )
    workload_code.sync(node)
    assert (version / "esm2").stat().st_mode & 0o777 == 0o755
    assert f"workloads/{version.name} had been changed" in node.warnings[0]


def test_deep_trash_is_removed(tmp_path: Path) -> None:
    """A folder for each level ends Python's own way of removing them, and with it the service."""
    root = tmp_path / "studio"
    with partitions.root_folder(str(root), partitions.TRASH) as trash:
        handles = [os.dup(trash)]
        for _ in range(3000):
            os.mkdir("d", dir_fd=handles[-1])
            handles.append(os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=handles[-1]))
            os.close(handles.pop(0))
        os.close(handles.pop())
    partitions.empty_trash(root)
    assert list((root / partitions.TRASH).iterdir()) == []


ENDLESS = """
import sys
sys.path.insert(0, sys.argv.pop())
import users_ssh

def say(home, keys):
    file = {"output": sys.stdout, "errors": sys.stderr}.get(keys[0])
    while file:
        print("y" * 999, file=file)
    print("a")
    print("b", file=sys.stderr)
    return 3

users_ssh.user_ssh.set_up = say
users_ssh.main()
"""


def test_what_a_users_process_says_is_cut_off() -> None:
    """A process of the user's own may hold the pipes that the script writes to."""
    users = [
        {
            "name": says,
            "uid": os.getuid(),
            "gid": os.getgid(),
            "home": "/nonexistent",
            "keys": [says],
        }
        for says in ("output", "errors", "little")
    ]
    done = subprocess.run(
        [sys.executable, "-c", ENDLESS, "30", SCRIPTS],
        input=json.dumps(users),
        capture_output=True,
        text=True,
        check=True,
    )
    results = {result.pop("name"): result for result in json.loads(done.stdout)}
    assert results["little"] == {"status": 3, "output": "a\n", "errors": "b\n"}
    assert len(results["output"]["output"]) == len(results["errors"]["errors"]) == 65536
    assert results["output"]["status"] and results["errors"]["status"]
