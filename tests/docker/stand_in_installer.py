"""A tarball that stands in for the EFA installer: its script, its options, two packages that only answer."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

INSTALLER = """#!/usr/bin/env bash
# Refuses options that the real one is not known to have, and anything but the mode for NVIDIA's images.
set -euo pipefail
for option in "$@"; do
    case "${option}" in
    -y | --build-ngc | --skip-kmod | --skip-limit-conf | --skip-mpi | --no-verify) ;;
    *) echo "unknown option ${option}" >&2; exit 1 ;;
    esac
done
[[ " $* " == *" --build-ngc "* ]]
dpkg --install ./*.deb
echo "# EFA installer version: VERSION" >/opt/amazon/efa_installed_packages
"""
FI_INFO = """#!/bin/sh
echo "fi_info: LIBFABRIC"
echo "libfabric: LIBFABRIC"
echo "libfabric api: 2.6"
"""


def make_installer(folder: Path, pinned: dict[str, str]) -> Path:
    """Write the tarball, of the versions that ``pinned`` names."""
    top = folder / "aws-efa-installer"
    top.mkdir(parents=True)
    script = top / "efa_installer.sh"
    script.write_text(INSTALLER.replace("VERSION", pinned["version"]))
    script.chmod(0o755)
    fi_info = FI_INFO.replace("LIBFABRIC", pinned["libfabric"])
    _package(
        folder, top, "libfabric1-aws", pinned["libfabric"], {"opt/amazon/efa/bin/fi_info": fi_info}
    )
    announced = f"\0NET/OFI Initializing aws-ofi-nccl {pinned['aws_ofi_nccl']}\0"
    plugin = {"opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so": announced}
    _package(folder, top, "libnccl-ofi-ngc-v3", f"{pinned['aws_ofi_nccl']}-1", plugin)
    tarball = folder / f"aws-efa-installer-{pinned['version']}.tar.gz"
    with tarfile.open(tarball, "w:gz") as tar:
        tar.add(top, arcname=top.name)
    return tarball


def _package(folder: Path, target: Path, name: str, version: str, files: dict[str, str]) -> None:
    root = folder / name
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN/control").write_text(
        f"Package: {name}\nVersion: {version}\nArchitecture: amd64\nMaintainer: none\nDescription: stand-in\n"
    )
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True)
        (root / path).write_text(text)
        (root / path).chmod(0o755)
    subprocess.run(
        ["dpkg-deb", "--build", "--root-owner-group", str(root), str(target / f"{name}.deb")],
        check=True,
        capture_output=True,
    )
