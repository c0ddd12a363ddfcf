"""The layer that stands for HyperPod's machine image: above this computer's files, below each machine's."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

_HERE = Path(__file__).parent
# Where the image has them; findmnt's asks the real one.
_STAND_INS = (
    *("usr/bin/docker", "usr/bin/enroot", "usr/bin/nvidia-smi"),
    *("usr/local/bin/aws", "usr/local/bin/findmnt"),
)

# The image has none of the state of what is installed here, and nothing that Debian has not.
_EMPTIED = (
    "etc/systemd/system",
    "etc/munge",
    "home",
    "usr/local/bin",
    "usr/local/sbin",
    "var/lib/mysql",
    "var/lib/prometheus",
    "var/lib/slurm",
    "var/log",
    "var/spool",
)
# Mounts that are the computer's rather than a machine's, and consoles that a machine has none of.
_MASKED = (
    "dev-hugepages.mount",
    "sys-fs-fuse-connections.mount",
    "sys-kernel-config.mount",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "getty.target",
    "systemd-udevd.service",
    "systemd-udev-trigger.service",
)
# They use the aws command, whose Python may be in a home of this computer's, or below its /tmp.
_USE_AWS = ("job-credentials", "studio-login", "studio-partitions")
_STARTED = ("docker.service", "logrotate.timer", "ssh.service")
_PROGRAMS = (
    "sacct",
    "sacctmgr",
    "salloc",
    "sbatch",
    "scancel",
    "scontrol",
    "sinfo",
    "squeue",
    "srun",
    "sstat",
)
_MORE_PROGRAMS = ("sdiag", "sshare", "sreport", "sprio", "strigger", "sattach", "sbcast")
_DAEMONS = ("slurmctld", "slurmd", "slurmdbd", "slurmstepd")
# DCGM's exporter joins GPUs to jobs by this file.
_JOB_MAP = """#!/bin/bash
mkdir -p /var/run/dcgm_job_map
for gpu in ${CUDA_VISIBLE_DEVICES//,/ }; do
    %s
done
"""
# The first of them is in memory, as enroot has it by default; the others are on the root volume.
_ENROOT_CONF = """\
ENROOT_RUNTIME_PATH /run/enroot/user-$(id -u)
ENROOT_CACHE_PATH /var/cache/enroot/user-$(id -u)
ENROOT_DATA_PATH /var/lib/enroot/user-$(id -u)
"""


def build_image(folder: Path, *, endpoint: str, aws_program: Path) -> None:
    """Write the layer; ``folder`` does not exist yet. ``endpoint`` is the URL of the machines' AWS."""
    for path in _EMPTIED:
        (folder / path).mkdir(parents=True)
        # overlayfs: nothing of the layers below is seen in it.
        os.setxattr(folder / path, "trusted.overlay.opaque", b"y")
    _system(folder)
    _slurm(folder)
    _accounts(folder)
    _containers(folder)
    _efa_adapter(folder)
    _made(folder / "etc/test-cluster/aws-endpoint").write_text(f"{endpoint}\n")
    _made(folder / "etc/test-cluster/aws-program").write_text(f"{aws_program}\n")
    for stand_in in _STAND_INS:
        shutil.copy(_HERE.parent / "stand_ins" / Path(stand_in).name, _made(folder / stand_in))


def _made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _system(folder: Path) -> None:
    units = folder / "etc/systemd/system"
    for unit in _MASKED:
        (units / unit).symlink_to("/dev/null")
    for unit in _STARTED:
        own = (_HERE / "units" / unit).exists()
        target = f"/{'etc' if own else 'lib'}/systemd/system/{unit}"
        _made(units / "multi-user.target.wants" / unit).symlink_to(target)
    for file in (_HERE / "units").iterdir():
        shutil.copy(file, units / file.name)
    for name in _USE_AWS:
        override = _made(units / f"{name}.service.d" / "python.conf")
        override.write_text(
            "[Service]\nProtectHome=read-only\nPrivateTmp=no\nReadWritePaths=/tmp\n"
        )
    (units / "default.target").symlink_to("/lib/systemd/system/multi-user.target")
    nsswitch = "passwd: files systemd\ngroup: files systemd\nshadow: files\nhosts: files\n"
    (folder / "etc/nsswitch.conf").write_text(nsswitch)
    (folder / "etc/hosts").write_text("")
    (folder / "var/log/journal").mkdir()
    for name, owner in (("slurm", "slurm"), ("munge", "munge"), ("mysql", "mysql")):
        (folder / "var/log" / name).mkdir()
        shutil.chown(folder / "var/log" / name, owner, owner)


def _slurm(folder: Path) -> None:
    opt = folder / "opt/slurm"
    for program in (*_PROGRAMS, *_MORE_PROGRAMS):
        _made(opt / "bin" / program).symlink_to(f"/usr/bin/{program}")
    for daemon in _DAEMONS:
        _made(opt / "sbin" / daemon).symlink_to(f"/usr/sbin/{daemon}")
    etc = opt / "etc"
    plugin = folder / "usr/local/lib/slurm/spank_pyxis.so"
    _made(etc / "plugstack.conf.d/pyxis.conf").write_text(
        "required /usr/local/lib/slurm/spank_pyxis.so\n"
    )
    compiler = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(
        [*compiler, "-o", str(_made(plugin)), str(_HERE / "srun_options.c")],
        check=True,
        timeout=240,
    )
    for kind, line in (
        ("prolog", 'echo "$SLURM_JOB_ID" >"/var/run/dcgm_job_map/$gpu"'),
        ("epilog", ': >"/var/run/dcgm_job_map/$gpu"'),
    ):
        script = _made(etc / f"{kind}.d" / f"700_dcgm_job_map_{kind}.sh")
        script.write_text(_JOB_MAP % line)
        script.chmod(0o755)
    # Debian's programs look for their configuration there.
    (folder / "etc/slurm").symlink_to("/opt/slurm/etc")
    (folder / "var/spool/slurmd").mkdir()
    (folder / "var/spool/slurmctld").mkdir()
    shutil.chown(folder / "var/spool/slurmctld", "slurm", "slurm")
    key = folder / "etc/munge/munge.key"
    key.write_bytes(os.urandom(128))
    for path, mode in ((key, 0o400), (key.parent, 0o700)):
        path.chmod(mode)
        shutil.chown(path, "munge", "munge")
    shutil.chown(folder / "var/lib/mysql", "mysql", "mysql")


def _containers(folder: Path) -> None:
    """Docker and enroot as an image leaves them: their data on the root volume."""
    _made(folder / "etc/docker/daemon.json").write_text('{"log-driver": "json-file"}\n')
    _made(folder / "etc/enroot/enroot.conf").write_text(_ENROOT_CONF)


def _efa_adapter(folder: Path) -> None:
    """One adapter, in the form in which the kernel's driver shows it: none is here."""
    device = folder / "etc/test-cluster/sys-class/infiniband/rdmap0s0"
    for name, text in (("board_id", "EFA"), ("fw_ver", "0.0.0.0"), ("hca_type", "EFA")):
        _made(device / name).write_text(f"{text}\n")
    for counter, value in (
        ("rx_bytes", 1024),
        ("tx_bytes", 2048),
        ("rdma_read_bytes", 0),
        ("lifespan", 12),
    ):
        _made(device / "ports/1/hw_counters" / counter).write_text(f"{value}\n")


def _accounts(folder: Path) -> None:
    """The system's own accounts, as Debian has them, and the image's one user of people."""
    added = {
        "passwd": "ubuntu:x:1000:1000:Ubuntu:/home/ubuntu:/bin/bash",
        "group": "ubuntu:x:1000:",
        "shadow": "ubuntu:!:20000:0:99999:7:::",
        "gshadow": "ubuntu:!::",
    }
    people = {
        line.split(":")[0] for line in _lines("passwd") if 1000 <= int(line.split(":")[2]) < 60000
    }
    groups = {
        line.split(":")[0] for line in _lines("group") if 1000 <= int(line.split(":")[2]) < 60000
    }
    for name, line in added.items():
        gone = people if name in ("passwd", "shadow") else groups
        kept = [text for text in _lines(name) if text.split(":")[0] not in gone]
        path = folder / "etc" / name
        path.write_text("".join(f"{text}\n" for text in [*kept, line]))
        path.chmod(0o640 if "shadow" in name else 0o644)
        shutil.chown(path, "root", "shadow" if "shadow" in name else "root")
    home = folder / "home/ubuntu"
    home.mkdir()
    os.chown(home, 1000, 1000)


def _lines(name: str) -> list[str]:
    return Path("/etc", name).read_text().splitlines()
