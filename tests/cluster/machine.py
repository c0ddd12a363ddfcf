"""One computer of the test cluster: a systemd in namespaces, on a layer over this computer's files."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from tests.cluster.island import CGROUPS, NETWORK, Island, child_of
from tests.cluster.patience import wait_until

_BOOT = Path(__file__).with_name("boot_machine.sh")
_NAMESPACES = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
CGROUP_MOUNT_POINT = "/run/cgroup"
"""Mount point of the freezer of cgroups version 1, which Slurm uses."""
# Paths of the image come first, as for HyperPod's users.
PATH = "/usr/local/sbin:/usr/local/bin:/opt/slurm/sbin:/opt/slurm/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Result:
    status: int
    output: str
    """Standard output and standard error as they came."""


class CommandFailed(AssertionError):
    """A command on a machine ended with a status that the test did not expect."""


class Machine:
    """``ip-10-77-0-<number>``. Files written before ``boot`` are there when systemd starts."""

    def __init__(self, island: Island, number: int, *, image: Path, console: Path) -> None:
        self.number = number
        self.address = f"{NETWORK}.{number}"
        self.hostname = "ip-" + self.address.replace(".", "-")
        self.instance_id = f"i-{number:017x}"
        self.console = console
        self._island = island
        self._image = image
        self._folder = Path("machines") / self.hostname
        self._mounts: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._init = 0
        self._boots = itertools.count()
        self._cgroups = [path / f"test-cluster-{os.getpid()}" / self.hostname for path in CGROUPS]
        for name in ("upper/etc", "work", "root"):
            (island.folder / self._folder / name).mkdir(parents=True)
        self.upper = island.folder / self._folder / "upper"
        (self.upper / "etc/hostname").write_text(f"{self.hostname}\n")
        (self.upper / "etc/machine-id").write_text(f"{uuid.uuid4().hex}\n")

    def bind(self, source: Path, target: str) -> None:
        """Show a file or folder of the island, or of this computer, at ``target``."""
        self._mounts.append(f"bind {source} {target}")

    def local_disk(self, target: str, *, size_mib: int) -> None:
        """Mount a file system of its own at ``target``."""
        self._mounts.append(f"tmpfs {size_mib}m {target}")

    def boot(self) -> None:
        """Start systemd, also again after ``kill``; ``wait_until_up`` waits for it."""
        folder = self._island.folder / self._folder
        (folder / "mounts").write_text("".join(f"{line}\n" for line in self._mounts))
        for cgroup in self._cgroups:
            (self._island.folder / cgroup).mkdir(parents=True, exist_ok=True)
        inside = self._island.inner_folder / self._folder
        unshared = [
            "unshare",
            "--mount",
            "--uts",
            "--ipc",
            "--net",
            "--pid",
            "--fork",
            "--kill-child",
        ]
        lower = f"{self._island.inner_folder / self._image}:/"
        cgroups = [str(self._island.inner_folder / cgroup) for cgroup in self._cgroups]
        arguments = [str(inside), self.hostname, lower, *cgroups]
        with self.console.open("ab") as console:
            self._process = subprocess.Popen(
                self._island.command([*unshared, "bash", str(_BOOT), *arguments]),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        entered = child_of(self._process)
        wait_until(
            lambda: psutil.Process(entered).children(), f"{self.hostname}'s init", seconds=240
        )
        self._init = psutil.Process(entered).children()[0].pid
        # Another name each time: the last one's interface may not be gone yet.
        self._island.link(f"veth{self.number}-{next(self._boots)}", self._init, self.address)

    def wait_until_up(self) -> None:
        def is_up() -> bool:
            assert self._process
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.hostname} ended while it booted; see {self.console}")
            if Path(f"/proc/{self._init}/comm").read_text() != "systemd\n":
                return False
            state = self.run(["systemctl", "is-system-running"], check=False).output.strip()
            return state in ("running", "degraded")

        wait_until(is_up, f"{self.hostname} to be up; see {self.console}", seconds=240)
        # What systemd says from now on belongs to its units' logs.
        self.run(["systemctl", "log-target", "journal"])

    def command(
        self,
        arguments: Sequence[str],
        *,
        user: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> list[str]:
        """A command line for this computer that runs another one on the machine."""
        variables = [
            f"{name}={value}" for name, value in {"PATH": PATH, **(environment or {})}.items()
        ]
        become = ["runuser", "--user", user, "--"] if user else []
        entering = ["nsenter", "--target", str(self._init), *_NAMESPACES, "--"]
        return [*entering, *become, "env", "--ignore-environment", *variables, *arguments]

    def run(
        self,
        arguments: Sequence[str],
        *,
        user: str | None = None,
        environment: Mapping[str, str] | None = None,
        text: str | None = None,
        check: bool = True,
        seconds: float = 240,
    ) -> Result:
        """Run a command, as root unless ``user`` says otherwise, with ``text`` as its input.

        Raises:
            CommandFailed: its status is not 0 and ``check`` is set.
            subprocess.TimeoutExpired: if it has not ended within ``seconds``.
        """
        done = subprocess.run(
            self.command(arguments, user=user, environment=environment),
            input=text or "",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=seconds,
        )
        if check and done.returncode:
            said = (
                f"{self.hostname}: {' '.join(arguments)}: status {done.returncode}\n{done.stdout}"
            )
            raise CommandFailed(said)
        return Result(done.returncode, done.stdout)

    def read(self, path: str) -> str:
        return self.run(["cat", path]).output

    def write(self, path: str, text: str, *, mode: int = 0o644) -> None:
        """Write a file of the running machine, its folders included."""
        script = 'mkdir --parents "$(dirname "$1")" && cat >"$1" && chmod "$2" "$1"'
        self.run(["bash", "-c", script, "write", path, f"{mode:o}"], text=text)

    @property
    def is_on(self) -> bool:
        return self._process is not None

    def kill(self) -> None:
        """End it if it runs, as a loss of power would: no process gets a signal first."""
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._init, signal.SIGKILL)
            self._process.wait(timeout=240)
            self._process = None
        self._remove_cgroups()

    def _remove_cgroups(self) -> None:
        """Remove what systemd and Slurm made below its own, deepest first; the machine is gone by now."""
        for cgroup in (self._island.folder / cgroup for cgroup in self._cgroups):
            if cgroup.is_dir():
                for folder, _, _ in os.walk(cgroup, topdown=False):
                    Path(folder).rmdir()
                with contextlib.suppress(OSError):
                    # Other machines may still be in it.
                    cgroup.parent.rmdir()
