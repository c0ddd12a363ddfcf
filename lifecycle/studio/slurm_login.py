"""Set up a space as a login node of Slurm: commands of the controller, munge with its key, and one user.

The key allows its holder to act as any user on the cluster, and the user of a space is root in it. Such
spaces are only for administrators of the cluster. lifecycle/slurm/studio/login_bundle.py publishes the files.
"""

import base64
import gzip
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from space import Space, SpaceError

LIBRARIES = "/opt/studio-slurm/lib"
BIN = "/opt/studio-slurm/bin"
CONFIGURATION = "/opt/studio-slurm/etc"
KEY = "/etc/munge/munge.key"
COMMANDS = ("sacct", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "sprio", "sshare")
# The command runs as the cluster's user, not as the space's. It keeps the right to read the space's files, so
# a script can be anywhere in the space. It drops the space user's variables, which would go into jobs.
_COMMAND = """\
#!/bin/bash
# {name} of the cluster, as {user}.
set -euo pipefail
here="$(pwd -P)"
mounted="$(readlink -f "{partition}")"
case "$here/" in
    "$mounted/"*) folder="{partition}${{here#"$mounted"}}" ;;
    *) folder="{partition}" ;;
esac
in_folder=()
[[ {name} != sbatch ]] || in_folder=(--chdir="$folder")
exec {sudo}setpriv --reuid={uid} --regid={gid} --clear-groups \\
    --inh-caps=+dac_override --ambient-caps=+dac_override -- \\
    env --ignore-environment HOME="{home}" USER={user} LOGNAME={user} SHELL=/bin/bash \\
    TERM="${{TERM:-dumb}}" PATH=/opt/slurm/bin:/usr/local/bin:/usr/bin:/bin \\
    LD_LIBRARY_PATH={libraries} SLURM_CONF={conf} \\
    {bin}/{name} ${{in_folder[@]+"${{in_folder[@]}}"}} "$@"
"""


def set_up(space: Space, person: dict[str, Any], partition: str) -> None:
    """Set up Slurm's commands for the person's user, and check that they work.

    Raises:
        SpaceError: if they do not, or their version differs from the controller's.
    """
    secret = _secret(space, person["login_secret"])
    _unpack_client(space, secret)
    _configure(space, secret)
    _add_user(space, person)
    _start_munge(space, base64.b64decode(secret["munge_key"]))
    sudo = "" if os.geteuid() == 0 else "sudo --non-interactive "
    for name in COMMANDS:
        if not space.path(f"{BIN}/{name}").exists():
            continue
        text = _COMMAND.format(
            **person,
            name=name,
            partition=partition,
            sudo=sudo,
            libraries=LIBRARIES,
            conf=f"{CONFIGURATION}/slurm.conf",
            bin=BIN,
        )
        space.install(f"/usr/local/bin/{name}", text, 0o755)
    found = space.run("/usr/local/bin/sinfo", "--version").strip()
    if found != secret["version"]:
        raise SpaceError(
            f"Slurm is {found} here and {secret['version']} on the controller: restart the space"
        )
    space.run("/usr/local/bin/sinfo", "--noheader")
    print(f"login node of {space.settings['cluster_name']}: {found}, as {person['user']}")


def _secret(space: Space, arn: str) -> dict[str, Any]:
    answer = space.aws(
        "secretsmanager",
        "get-secret-value",
        "--secret-id",
        arn,
        "--query",
        "SecretString",
        "--output",
        "text",
    )
    # Secrets Manager's initial value of a new secret is not JSON.
    if '"munge_key"' not in answer:
        raise SpaceError(
            "the controller has published nothing yet: see `make logs`, then restart the space"
        )
    return json.loads(answer)


def _unpack_client(space: Space, secret: dict[str, Any]) -> None:
    archive = Path("/tmp/cluster-slurm.tar.gz")
    space.aws("s3", "cp", "--only-show-errors", secret["client"], str(archive))
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != secret["client_sha256"]:
        raise SpaceError(f"{secret['client']} has SHA-256 {digest}, not {secret['client_sha256']}")
    space.as_root(
        "tar",
        "--extract",
        "--gzip",
        f"--file={archive}",
        "--no-same-owner",
        f"--directory={space.root}",
    )
    archive.unlink()


def _configure(space: Space, secret: dict[str, Any]) -> None:
    for name, text in secret["configuration"].items():
        content = gzip.decompress(base64.b64decode(text)).decode()
        space.install(f"{CONFIGURATION}/{Path(name).name}", content, 0o644)
    hosts = space.path("/etc/hosts")
    known = hosts.read_text() if hosts.exists() else ""
    lines = [f"{address} {name}" for name, address in secret["hosts"].items()]
    new = "".join(f"{line}\n" for line in lines if line not in known.splitlines())
    if new:
        # The file is changed in place. In a container it is a mount, which cannot be replaced.
        space.as_root("bash", "-c", 'printf "%s" "$1" >>"$2"', "hosts", new, str(hosts))


def _add_user(space: Space, person: dict[str, Any]) -> None:
    """Add the names of the user's numbers, which Slurm's commands look up."""
    user = str(person["user"])
    uid = str(person["uid"])
    gid = str(person["gid"])
    _add_entry(space, "/etc/group", user, gid, f"{user}:x:{gid}:")
    _add_entry(space, "/etc/passwd", user, uid, f"{user}:x:{uid}:{gid}::{person['home']}:/bin/bash")


def _add_entry(space: Space, file: str, name: str, number: str, line: str) -> None:
    """Add a line for a name and its number to /etc/passwd or /etc/group, unless it is there.

    Raises:
        SpaceError: if the name or the number has another line.
    """
    path = space.path(file)
    for existing in path.read_text().splitlines():
        if existing.count(":") < 2:
            continue
        known_name, password, known_number, *_ = existing.split(":")
        if (known_name, known_number) == (name, number):
            return
        if known_name == name or known_number == number:
            found = f"{known_name}:{password}:{known_number}"
            raise SpaceError(f"{file} of this image has {found} in the place of {line}")
    space.as_root("bash", "-c", 'printf "%s\\n" "$1" >>"$2"', "names", line, str(path))


def _start_munge(space: Space, key: bytes) -> None:
    script = """
set -euo pipefail
mkdir --parents --mode=0700 /etc/munge /var/lib/munge /var/log/munge
mkdir --parents --mode=0755 /run/munge
chown 0:0 /etc/munge /var/lib/munge /var/log/munge /run/munge
[[ ! -f /run/munge/munged.pid ]] || kill "$(cat /run/munge/munged.pid)" 2>/dev/null || true
umask 077
base64 --decode >/etc/munge/munge.key
chown 0:0 /etc/munge/munge.key
chmod 0400 /etc/munge/munge.key
LD_LIBRARY_PATH="$1" exec "$2/munged" --force
"""
    # The key is on standard input, because arguments are visible.
    command = ("bash", "-c", script, "munge", LIBRARIES, BIN)
    space.as_root(*command, text=base64.b64encode(key).decode())
