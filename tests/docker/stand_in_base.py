"""A small base image that stands in for NVIDIA's, made of this machine's own files: nothing is downloaded.

What is real: shell, coreutils, dpkg, useradd, ldconfig, this Python with pip, and packages of the developer's
environment, in the versions that it has. Of large ones only metadata are copied: the build mounts the rest.

What stands in: torch's metadata, which names NVIDIA's version; an older huggingface-hub; the NCCL plugin that
NVIDIA's image ships, once as a package and once as a file without a package; the constraint on pip.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import Distribution, PackagePath, distribution
from pathlib import Path

COMMANDS = (
    *(
        "bash",
        "sh",
        "env",
        "cat",
        "chmod",
        "chown",
        "cp",
        "dirname",
        "head",
        "id",
        "ls",
        "mkdir",
        "mktemp",
        "mv",
    ),
    *(
        "rm",
        "sort",
        "tr",
        "uname",
        "tar",
        "gzip",
        "diff",
        "grep",
        "awk",
        "find",
        "dpkg",
        "dpkg-query",
    ),
    *("dpkg-deb", "dpkg-split", "start-stop-daemon", "groupadd", "useradd", "ldconfig"),
)
SHIPPED = (
    *(
        "certifi",
        "charset-normalizer",
        "contourpy",
        "cycler",
        "filelock",
        "fsspec",
        "idna",
        "Jinja2",
    ),
    *(
        "kiwisolver",
        "MarkupSafe",
        "packaging",
        "pip",
        "pyparsing",
        "python-dateutil",
        "PyYAML",
        "requests",
    ),
    *("six", "tqdm", "typing-extensions", "urllib3"),
    # Ones that NVIDIA's image may or may not ship, to have less to fetch and compile.
    *("fastapi", "google-auth", "protobuf", "pydantic", "pydantic-core", "starlette"),
)
"""Packages of the environment that NVIDIA's image ships, too, or that torch needs here."""
SHIPPED_LARGE = (
    *(
        "bitsandbytes",
        "botocore",
        "cryptography",
        "databricks-sdk",
        "fonttools",
        "matplotlib",
        "mlflow-skinny",
        "mpmath",
    ),
    *("networkx", "numpy", "pandas", "pillow", "pygments", "scikit-learn", "scipy"),
    *("setuptools", "sympy", "triton"),
)
"""More of them, whose folders are mounted."""
VENDORED = ("torch", "torchgen", "pyarrow")
"""Folders that are mounted, of packages whose metadata stand in."""
OLD_HUB = "0.30.0"
OLD_PLUGIN = b"NET/OFI Initializing aws-ofi-nccl 1.17.0\n"
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
SITE = f"/usr/local/lib/{PYTHON}/site-packages"


def mounted_folders() -> list[Path]:
    """Copy this machine's packages to the same paths below ``SITE``."""
    found = {file.parts[0] for name in SHIPPED_LARGE for file in _package_files(distribution(name))}
    site = Path(sysconfig.get_path("purelib"))
    folders = [
        site / name for name in (*sorted(found), *VENDORED) if not name.endswith(".dist-info")
    ]
    return [folder for folder in folders if folder.is_dir()]


def make_root(root: Path, *, torch_version: str) -> None:
    """Write the image's file system below ``root``; needs root, for the owners."""
    for folder in (
        "usr/bin",
        "usr/lib",
        "usr/lib64",
        "etc/ld.so.conf.d",
        "tmp",
        "var/tmp",
        "root",
        "proc",
        "sys",
        "dev",
        "run",
    ):
        (root / folder).mkdir(parents=True)
    for link, target in {
        "bin": "usr/bin",
        "sbin": "usr/bin",
        "lib": "usr/lib",
        "lib64": "usr/lib64",
    }.items():
        (root / link).symlink_to(target)
    (root / "usr/sbin").symlink_to("bin")
    for folder in ("tmp", "var/tmp"):
        (root / folder).chmod(0o1777)
    _settings(root)
    for command in COMMANDS:
        found = shutil.which(command, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        assert found, f"{command} is not on this machine"
        shutil.copy2(os.path.realpath(found), root / "usr/bin" / command)
    _python(root)
    _vendor_parts(root, torch_version)
    _libraries(root)
    subprocess.run(["ldconfig", "-r", str(root)], check=True)


def _settings(root: Path) -> None:
    files = {
        "etc/passwd": "root:x:0:0:root:/root:/bin/bash\n",
        "etc/group": "root:x:0:\n",
        "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
        "etc/ld.so.conf": "include /etc/ld.so.conf.d/*.conf\n",
        "etc/ld.so.conf.d/local.conf": "/usr/local/lib\n",
        "var/lib/dpkg/status": "",
        "etc/login.defs": "UID_MIN 1000\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for folder in ("info", "updates", "triggers", "parts"):
        (root / "var/lib/dpkg" / folder).mkdir()
    certificates = Path("/etc/ssl/certs/ca-certificates.crt")
    if certificates.exists():
        (root / "etc/ssl/certs").mkdir(parents=True)
        shutil.copy2(certificates, root / "etc/ssl/certs")
        # Of a company's proxy, too, which an older pip would not trust by itself.
        (root / "etc/pip.conf").write_text(f"[global]\ncert = {certificates}\n")


def _python(root: Path) -> None:
    """This interpreter, its library and some of the environment's packages, below /usr/local."""
    local = root / "usr/local"
    (local / "bin").mkdir(parents=True)
    shutil.copy2(os.path.realpath(sys.executable), local / "bin" / PYTHON)
    (local / "bin/python3").symlink_to(PYTHON)
    shutil.copytree(
        sysconfig.get_path("stdlib"),
        local / "lib" / PYTHON,
        ignore=shutil.ignore_patterns(
            "site-packages",
            "dist-packages",
            "test",
            "tests",
            "config-*",
            "idlelib",
            "EXTERNALLY-MANAGED",
        ),
    )
    for library in Path(sys.base_prefix, "lib").glob(f"lib{PYTHON}*.so*"):
        shutil.copy2(library, local / "lib", follow_symlinks=False)
    mounted = {folder.name for folder in mounted_folders()}
    for name in (*SHIPPED, *SHIPPED_LARGE):
        package = distribution(name)
        for file in _package_files(package):
            if file.parts[0] not in mounted:
                target = root / SITE[1:] / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(str(package.locate_file(file)), target)
    for name in mounted:
        (root / SITE[1:] / name).mkdir()


def _package_files(package: Distribution) -> list[PackagePath]:
    """In site-packages, without its tests."""
    files = [
        file for file in package.files or [] if ".." not in file.parts and "tests" not in file.parts
    ]
    return [file for file in files if Path(str(package.locate_file(file))).is_file()]


def _vendor_parts(root: Path, torch_version: str) -> None:
    site = root / SITE[1:]
    _metadata(site, "torch", torch_version)
    _metadata(site, "pyarrow", distribution("pyarrow").version)
    _metadata(site, "huggingface-hub", OLD_HUB)
    (site / "huggingface_hub").mkdir()
    (site / "huggingface_hub/__init__.py").write_text(f"__version__ = {OLD_HUB!r}\n")
    (root / "etc/pip").mkdir()
    (root / "etc/pip/constraint.txt").write_text(
        f"torch=={torch_version}\nhuggingface-hub=={OLD_HUB}\n"
    )
    stray = root / "opt/amazon/aws-ofi-nccl/lib/libnccl-net-ofi.so"
    stray.parent.mkdir(parents=True)
    stray.write_bytes(OLD_PLUGIN)
    (root / "etc/ld.so.conf.d/aws-ofi-nccl.conf").write_text("/opt/amazon/aws-ofi-nccl/lib\n")
    owned = root / "opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so"
    owned.parent.mkdir(parents=True)
    owned.write_bytes(OLD_PLUGIN)
    (root / "var/lib/dpkg/status").write_text(
        "Package: libnccl-ofi\nStatus: install ok installed\nMaintainer: none\nArchitecture: amd64\n"
        "Version: 1.17.0-1\nDescription: stand-in\n\n"
    )
    (root / "var/lib/dpkg/info/libnccl-ofi.list").write_text(
        "/.\n/opt\n/opt/amazon\n/opt/amazon/ofi-nccl\n/opt/amazon/ofi-nccl/lib\n"
        "/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so\n"
    )


def _metadata(site: Path, name: str, version: str) -> None:
    """Write a package's metadata, with RECORD so that pip can remove it."""
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "INSTALLER").write_text("pip\n")
    files = [f"{folder.name}/{file}" for file in ("METADATA", "INSTALLER", "RECORD")]
    if name == "huggingface-hub":
        files.append("huggingface_hub/__init__.py")
    (folder / "RECORD").write_text("".join(f"{file},,\n" for file in files))


def _libraries(root: Path) -> None:
    """Copy the libraries of programs and modules to the loader's folders."""
    linked = [
        *(root / "usr/bin").iterdir(),
        *(root / "usr/local").rglob("*.so*"),
        *(root / "usr/local/bin").iterdir(),
    ]
    linked += [file for folder in mounted_folders() for file in folder.rglob("*.so*")]
    listed = subprocess.run(
        ["ldd", *map(str, linked)], capture_output=True, text=True, check=False
    ).stdout
    needed = set(re.findall(r"(?:=> |^\t)(/\S+) \(0x", listed, flags=re.MULTILINE))
    for library in needed:
        if not library.startswith((str(root), sysconfig.get_path("purelib"), sys.base_prefix)):
            target = root / library.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(os.path.realpath(library), target)
    # Loaded by name, not linked: users and host names.
    for name in ("libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2"):
        for found in Path("/lib").glob(f"*/{name}"):
            shutil.copy2(os.path.realpath(found), root / "usr/lib" / found.parent.name / name)
