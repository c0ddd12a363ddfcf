"""The import on a cluster, with programs on the path that stand in for aws, enroot and unsquashfs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "docker/enroot_import.sh"
SHA = "c0ffee" * 6 + "beef"
DIGEST = "0123456789abcdef" * 4
REGISTRY = "123456789012.dkr.ecr.us-west-2.amazonaws.com"
REFERENCE = f"{REGISTRY}/esm2-slurm/training:{SHA}@sha256:{DIGEST}"
TOKEN = "token-that-nobody-sees"

AWS = """
case "$1 $2" in
"ecr batch-get-image") cat "${STAND_IN}/digest" ;;
"ecr get-login-password") echo "$TOKEN" ;;
*) exit 9 ;;
esac
"""
ENROOT = """
cat >"${STAND_IN}/read"
cp "${ENROOT_CONFIG_PATH}/.credentials" "${STAND_IN}/credentials"
stat --format %a "${ENROOT_CONFIG_PATH}/.credentials" >"${STAND_IN}/mode"
while [[ $1 != --output ]]; do shift; done
printf '%s\\n' "$(<"${STAND_IN}/contents")" >"$2"
[[ ! -e "${STAND_IN}/enroot_fails" ]]
"""
UNSQUASHFS = """
[[ $1 == -cat && $3 == etc/environment ]] || exit 9
grep --quiet squashfs "$2" || { echo "no superblock" >&2; exit 1; }
cat "$2"
"""


class Node:
    """A worker: its programs, the shared file system, and a log of what was called."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.fsx = folder, folder / "fsx"
        self.images = self.fsx / "images"
        (folder / "bin").mkdir()
        self.fsx.mkdir()
        for name, body in {"aws": AWS, "enroot": ENROOT, "unsquashfs": UNSQUASHFS}.items():
            program = folder / "bin" / name
            program.write_text(f'#!/bin/bash\necho "{name} $*" >>"${{STAND_IN}}/calls"\n{body}')
            program.chmod(0o755)
        (folder / "digest").write_text(f"sha256:{DIGEST}\n")
        (folder / "contents").write_text(f"squashfs\nGIT_SHA={SHA}")

    def run(self, reference: str = REFERENCE) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "STAND_IN": str(self.folder),
            "TOKEN": TOKEN,
            "HOSTNAME": "node-1",
        }
        # As srun gives it to bash: the script itself is standard input.
        command = ["bash", "-s", "--", reference, str(self.images)]
        with SCRIPT.open() as script:
            return subprocess.run(
                command, stdin=script, env=environment, capture_output=True, text=True, check=False
            )

    @property
    def calls(self) -> str:
        log = self.folder / "calls"
        return log.read_text() if log.exists() else ""

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in self.images.iterdir()) if self.images.exists() else []


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_image_is_there_under_its_digest(node: Node) -> None:
    done = node.run()
    assert done.returncode == 0, done.stderr
    assert node.files == [f"esm2-slurm+training+{DIGEST}.sqsh"]
    assert done.stdout.strip() == str(node.images / node.files[0])
    assert (node.images / node.files[0]).stat().st_mode & 0o777 == 0o644
    assert f"docker://AWS@{REGISTRY}#esm2-slurm/training:{SHA}\n" in node.calls


def test_second_import_asks_nobody(node: Node) -> None:
    first = node.run()
    calls = node.calls
    second = node.run()
    assert second.returncode == 0
    assert second.stdout == first.stdout
    assert node.calls == calls


def test_token_is_roots_and_on_no_command_line(node: Node) -> None:
    done = node.run()
    assert (node.folder / "credentials").read_text() == f"machine {REGISTRY} login AWS password {TOKEN}\n"
    assert (node.folder / "mode").read_text().strip() == "600"
    assert TOKEN not in node.calls + done.stdout + done.stderr
    assert (node.folder / "read").read_text() == ""  # not what is left of the script


@pytest.mark.parametrize(
    ("broken", "contents", "message"),
    [
        ("digest", "sha256:" + "f" * 64, "not sha256:"),
        ("contents", "half a file", "no superblock"),
        ("contents", "squashfs\nGIT_SHA=another", "nothing was kept"),
        ("enroot_fails", "", "enroot could not import"),
    ],
)
def test_what_is_wrong_leaves_nothing_behind(node: Node, broken: str, contents: str, message: str) -> None:
    (node.folder / broken).write_text(contents)
    done = node.run()
    assert done.returncode == 1
    assert message in done.stderr
    assert node.files == []


@pytest.mark.parametrize(
    "reference",
    [
        "",
        f"{REGISTRY}/esm2-slurm/training:{SHA}",
        REFERENCE[:-1],
        f"nvcr.io/{REFERENCE}",
        f"{REFERENCE}; true",
    ],
)
def test_other_references_are_refused(node: Node, reference: str) -> None:
    done = node.run(reference)
    assert done.returncode == 1
    assert "as make push prints it" in done.stderr
    assert node.calls == ""


def test_failed_command_is_said(node: Node) -> None:
    (node.folder / "bin/aws").write_text("#!/bin/bash\necho 'Unable to locate credentials' >&2\nexit 255\n")
    done = node.run()
    assert done.returncode == 1
    assert "only root has the node's credentials" in done.stderr
    assert node.files == []
