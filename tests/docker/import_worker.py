"""A worker that images are imported on: programs for a PATH, and a folder as its shared file system."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "docker/enroot_import.sh"
SHA = "c0ffee" * 6 + "beef"
DIGEST = "0123456789abcdef" * 4
REGISTRY = "123456789012.dkr.ecr.us-west-2.amazonaws.com"
REPOSITORY = "esm2-slurm/training"
REFERENCE = f"{REGISTRY}/{REPOSITORY}:{SHA}@sha256:{DIGEST}"
NAME = f"esm2-slurm+training+{DIGEST}.sqsh"
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
FINDMNT = """
[[ $3 == TARGET && $4 == --target && -e $5 ]] || exit 9
cat "${STAND_IN}/mount_point"
"""
UNSQUASHFS = """
[[ $1 == -cat && $3 == etc/environment ]] || exit 9
grep --quiet squashfs "$2" || { echo "no superblock" >&2; exit 1; }
cat "$2"
"""


class Worker:
    """Its programs log how they were called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fsx = folder / "fsx"
        self.images = self.fsx / "images"
        self.file = self.images / NAME
        (folder / "bin").mkdir(parents=True)
        self.fsx.mkdir()
        programs = {"aws": AWS, "enroot": ENROOT, "findmnt": FINDMNT, "unsquashfs": UNSQUASHFS}
        for name, body in programs.items():
            program = folder / "bin" / name
            program.write_text(f'#!/bin/bash\necho "{name} $*" >>"${{STAND_IN}}/calls"\n{body}')
            program.chmod(0o755)
        self.set("digest", f"sha256:{DIGEST}\n")
        self.set("contents", f"squashfs\nGIT_SHA={SHA}")
        self.set("mount_point", f"{self.fsx}\n")

    def set(self, what: str, text: str = "") -> None:
        (self.folder / what).write_text(text)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "STAND_IN": str(self.folder),
            "TOKEN": TOKEN,
            "HOSTNAME": "worker-1",
        }

    def run(
        self, reference: str = REFERENCE, file: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the script on bash's standard input, as srun does."""
        command = ["bash", "-s", "--", reference, file or str(self.file)]
        with SCRIPT.open() as script:
            return subprocess.run(
                command,
                stdin=script,
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=60,
            )

    @property
    def calls(self) -> str:
        log = self.folder / "calls"
        return log.read_text() if log.exists() else ""

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in self.images.iterdir()) if self.images.exists() else []
