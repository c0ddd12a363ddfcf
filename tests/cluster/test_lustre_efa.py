"""Setup of the EFA client of Lustre on a machine with systemd, which really mounts a file system again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.lifecycle import Lifecycle
from tests.cluster.machine import Machine, Result

FOLDER = "/run/lustre-efa"
SCRIPT = f"{FOLDER}/set_up_lustre_efa.sh"
STAND_INS = {
    "curl": f"cp {FOLDER}/client.zip client.zip",
    "findmnt": "echo 10.0.0.5@tcp:/abcdev4v",
    "lnetctl": f"""[[ -e {FOLDER}/state ]] || exit 1
echo >>{FOLDER}/sent
printf '%s\n' "- nid: 10.0.0.31@efa" "status: up" "send_count: $(wc --lines <{FOLDER}/sent)" \
    "recv_count: $(wc --lines <{FOLDER}/sent)" """,
    "modinfo": "exit 0",
    "mount": f'/usr/bin/mount --bind {FOLDER}/source "${{@: -1}}"',
}


@pytest.fixture
def node(cluster: Cluster, lifecycle: Lifecycle) -> Iterator[Machine]:
    """A worker with an adapter, whose file system can be mounted from another place."""
    machine = cluster.workers[-1]
    lifecycle.run(machine)  # the scripts are on it then
    scripts = machine.run(
        ["bash", "-c", "ls -d /tmp/*/lifecycle/*/set_up_lustre_efa.sh | head -1"]
    ).output
    machine.run(
        [
            "mkdir",
            "--parents",
            f"{FOLDER}/bin",
            f"{FOLDER}/source",
            "/run/sys/class/infiniband/rdmap0",
        ]
    )
    machine.run(["cp", scripts.strip(), SCRIPT])
    machine.run(["mount", "--bind", "/fsx", f"{FOLDER}/source"])
    for name, body in STAND_INS.items():
        machine.write(f"{FOLDER}/bin/{name}", f"#!/bin/bash\n{body}\n", mode=0o755)
    yield machine
    machine.run(["umount", f"{FOLDER}/source"])
    machine.run(["rm", "--force", "/fsx/kept"])


def set_up(node: Machine, program: str) -> Result:
    """Run the script with a downloaded ``program``."""
    node.write(f"{FOLDER}/client/setup.sh", program)
    archive = f"{FOLDER}/client.zip"
    node.run(["bash", "-euc", f"cd {FOLDER} && python3 -m zipfile --create client.zip client"])
    sha256 = node.run(["sha256sum", archive]).output.split()[0]
    return node.run(
        ["bash", SCRIPT, "https://example.org/client.zip", sha256, "/fsx"],
        environment={"PATH": f"{FOLDER}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "DESTDIR": "/run"},
        check=False,
    )


def test_a_mounted_file_system_moves_to_efa_or_stays_as_it_was(node: Machine) -> None:
    node.run(["touch", "/fsx/kept"])
    # The program finds the file system unmounted.
    refused = set_up(node, "! mountpoint --quiet /fsx || exit 9; exit 5")
    assert refused.status == 3 and "setup.sh ended with status 5" in refused.output, refused.output
    assert node.run(["ls", "/fsx/kept"]).output.strip() == "/fsx/kept"
    moved = set_up(node, f"touch {FOLDER}/state")
    assert moved.status == 0 and "Lustre uses EFA: 1 interfaces" in moved.output, moved.output
    assert node.run(["ls", "/fsx/kept"]).output.strip() == "/fsx/kept"
    assert "efa-probe" not in node.run(["ls", "--almost-all", "/fsx"]).output
