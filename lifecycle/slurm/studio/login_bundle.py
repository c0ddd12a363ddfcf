"""Publish what a SageMaker Studio space needs as a login node: Slurm's commands of this node, and a secret.

Root runs this on the controller when something may have changed. The commands go to the cluster's bucket
under their hash. One secret holds munge's key, Slurm's configuration and that hash. A space gets the programs
of this node, so versions always match. It uses its own C library.
"""

import argparse
import base64
import gzip
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PROGRAMS = (
    "sacct",
    "sbatch",
    "scancel",
    "scontrol",
    "sinfo",
    "squeue",
    "sprio",
    "sshare",
    "munged",
)
"""Programs without srun and salloc, because the processes of those connect back, and no process can connect
to a space."""
REQUIRED_PROGRAMS = {"sbatch", "munged"}
# Folders in a space, separate from the image's own.
LIBRARIES = "opt/studio-slurm/lib"
BIN = "opt/studio-slurm/bin"
# Parts of glibc, which a program must take from its own system.
_GLIBC = re.compile(r"^(ld-linux|linux-vdso|lib(c|m|dl|rt|pthread|resolv|util|nsl|anl)\.so)")
MAX_SECRET_BYTES = 65_536
"""Secrets Manager's limit."""
STATE = Path("/var/lib/studio-login/published")
"""Hash of the secret that was published last."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--prefix", default="studio-login")
    parser.add_argument("--secret", required=True)
    parser.add_argument("--region", required=True)
    parser.add_argument("--key", type=Path, default=Path("/etc/munge/munge.key"))
    options = parser.parse_args()
    archive = pack_client()
    digest = hashlib.sha256(archive).hexdigest()
    uri = f"s3://{options.bucket}/{options.prefix}/{digest}.tar.gz"
    secret = json.dumps(
        {
            "version": _run("sinfo", "--version").strip(),
            "client": uri,
            "client_sha256": digest,
            "munge_key": _encoded(options.key.read_bytes()),
            "hosts": controller_hosts(),
            "configuration": {
                name: _encoded(gzip.compress(text, mtime=0))
                for name, text in configuration_files().items()
            },
        },
        sort_keys=True,
    )
    if len(secret) > MAX_SECRET_BYTES:
        raise SystemExit(
            f"the secret with Slurm's configuration has {len(secret)} bytes; at most {MAX_SECRET_BYTES} are"
            " allowed: submit through Systems Manager (login_space: false)"
        )
    fingerprint = hashlib.sha256(f"{options.secret} {secret}".encode()).hexdigest()
    if STATE.is_file() and STATE.read_text() == fingerprint:
        print("nothing has changed")
        return 0
    with tempfile.NamedTemporaryFile(suffix=".tar.gz") as file:
        file.write(archive)
        file.flush()
        _aws("s3", "cp", "--only-show-errors", file.name, uri, region=options.region)
    # The value is in a file, because every user of the node can see arguments.
    with tempfile.NamedTemporaryFile("w", suffix=".json") as values:
        values.write(secret)
        values.flush()
        _aws(
            "secretsmanager",
            "put-secret-value",
            "--secret-id",
            options.secret,
            "--secret-string",
            f"file://{values.name}",
            region=options.region,
        )
    STATE.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    STATE.write_text(fingerprint)
    print(f"published {uri}")
    return 0


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def pack_client() -> bytes:
    """Return a reproducible tar of programs, their libraries and Slurm's plugins, with paths in a space."""
    programs = {name: Path(found) for name in PROGRAMS if (found := shutil.which(name))}
    if missing := REQUIRED_PROGRAMS - set(programs):
        raise SystemExit(f"{', '.join(sorted(missing))} not found on PATH")
    plugins: list[Path] = []
    for folder in _setting("PluginDir").split(":"):
        plugins += sorted(Path(folder).glob("*.so"))
    libraries: dict[str, Path] = {}
    for file in [*programs.values(), *plugins]:
        libraries.update(needed(file))
    files = {f"{BIN}/{name}": path for name, path in programs.items()}
    files |= {f"{LIBRARIES}/{name}": path for name, path in libraries.items()}
    # At the paths that slurm.conf, or Slurm itself, names.
    files |= {str(path).lstrip("/"): path for path in plugins}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, path in sorted(files.items()):
            data = path.read_bytes()
            member = tarfile.TarInfo(name)
            member.size = len(data)
            member.mode = 0o755
            archive.addfile(member, io.BytesIO(data))
    return gzip.compress(buffer.getvalue(), compresslevel=6, mtime=0)


def _setting(name: str) -> str:
    """Return one setting of the running Slurm."""
    found = re.search(rf"^{name}\s*=\s*(\S+)", _run("scontrol", "show", "config"), re.MULTILINE)
    if not found:
        raise SystemExit(f"`scontrol show config` has no {name}")
    return found[1]


def needed(program: Path) -> list[tuple[str, Path]]:
    """Return the libraries of a program or plugin with their names, without those of the C library."""
    done = subprocess.run(["ldd", str(program)], capture_output=True, text=True, timeout=60)
    found = re.findall(r"^\s*(\S+) => (/\S+)", done.stdout, re.MULTILINE)
    return [(name, Path(path)) for name, path in found if not _GLIBC.match(name)]


def configuration_files() -> dict[str, bytes]:
    """Return slurm.conf and its included files by name, without slurmdbd.conf, which has a password."""
    slurm_conf = Path(_setting("SLURM_CONF"))
    folder = slurm_conf.parent
    files: dict[str, bytes] = {}
    queue = [slurm_conf.name]
    while queue:
        name = queue.pop()
        files[name] = (folder / name).read_bytes()
        for included in re.findall(
            rb"^\s*include\s+(\S+)", files[name], re.MULTILINE | re.IGNORECASE
        ):
            path = Path(included.decode())
            if path.parent in (Path("."), folder) and path.name not in files:
                queue.append(path.name)
    return files


def controller_hosts() -> dict[str, str]:
    """Return addresses of the controllers by their names in slurm.conf."""
    shown = _run("scontrol", "show", "config")
    hosts = re.findall(
        r"^SlurmctldHost\[\d+\]\s*=\s*([^\s(]+)(?:\(([^)]+)\))?", shown, re.MULTILINE
    )
    return {name: address or _run("getent", "ahostsv4", name).split()[0] for name, address in hosts}


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def _aws(*arguments: str, region: str) -> None:
    done = subprocess.run(
        ["aws", *arguments, "--region", region], capture_output=True, text=True, timeout=300
    )
    if done.returncode:
        raise SystemExit(f"aws {' '.join(arguments[:2])}: {done.stderr.strip()}")


if __name__ == "__main__":
    sys.exit(main())
