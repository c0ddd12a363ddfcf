"""Contents of the cluster's bucket: the lifecycle scripts with their settings, and their downloads."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from node_setup.steps.workload_code import content_hash

REPOSITORY = Path(__file__).parents[2]
SCRIPTS = REPOSITORY / "lifecycle" / "slurm"
BUCKET = "sagemaker-esm2-test-123456789012-us-west-2"
_UPSTREAM = "https://github.com/prometheus"
STAND_INS = Path(__file__).with_name("stand_ins")
# Debian's programs, in archives as the projects themselves publish them: name, version option, files.
_ARCHIVES = {
    "node_exporter": {"node_exporter": "/usr/bin/prometheus-node-exporter"},
    "prometheus": {"prometheus": f"{STAND_INS}/prometheus", "promtool": "/usr/bin/promtool"},
}


# Shorter intervals, so that tests do not wait half a minute for Prometheus and the list of its targets.
_SHORTER = {
    "units/prometheus.yml": {
        "scrape_interval: 30s": "scrape_interval: 5s",
        "scrape_timeout: 25s": "scrape_timeout: 5s",
        "refresh_interval: 1m": "refresh_interval: 5s",
    },
    "units/discover-nodes.service": {"--every-seconds 30": "--every-seconds 5"},
    "units/slurm-metrics.service": {"--every-seconds 30": "--every-seconds 10"},
}


def write_bundle(folder: Path, settings: dict[str, Any], deployment: dict[str, Any]) -> str:
    """Put scripts and settings below ``folder``, a bucket; returns the prefix that names them."""
    files = {
        str(file.relative_to(SCRIPTS)): file.read_bytes()
        for file in sorted(SCRIPTS.rglob("*"))
        if file.is_file() and "__pycache__" not in file.parts
    }
    for name, replaced in _SHORTER.items():
        for old, new in replaced.items():
            assert old.encode() in files[name], f"{name}: {old}"
            files[name] = files[name].replace(old.encode(), new.encode())
    files["settings.json"] = json.dumps(settings, indent=2, sort_keys=True).encode()
    files["downloads.json"] = _downloads_table(folder / "downloads")
    digest = hashlib.sha256(
        b"".join(name.encode() + files[name] for name in sorted(files))
    ).hexdigest()
    files["deployment.json"] = json.dumps(deployment).encode()
    prefix = f"lifecycle/{digest[:16]}"
    for name, content in files.items():
        path = folder / prefix / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return prefix


def write_workloads(folder: Path) -> str:
    """The training code, of which a few files are enough here; returns the prefix that names them."""
    new = folder / "workloads" / "new"
    for name in ("seqlm/training/config.py", "seqlm/configs/esm2_8m_sample.yaml"):
        (new / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / "workloads" / name, new / name)
    named = new.with_name(content_hash(new))
    new.rename(named)
    return str(named.relative_to(folder))


def write_downloads(folder: Path) -> None:
    """The mirror: ``folder``/downloads with an archive for each program that the steps install."""
    (folder / "downloads").mkdir(parents=True)
    for name, programs in _ARCHIVES.items():
        stem = f"{name}-{version_of(next(iter(programs.values())))}.linux-amd64"
        # As light as possible: it is packed here and unpacked on every node.
        with tarfile.open(
            folder / "downloads" / f"{stem}.tar.gz", "w:gz", compresslevel=1
        ) as archive:
            for program, path in programs.items():
                content = Path(path).read_bytes()
                member = tarfile.TarInfo(f"{stem}/{program}")
                member.size = len(content)
                member.mode = 0o755
                archive.addfile(member, io.BytesIO(content))


def version_of(program: str) -> str:
    """Version that the program reports, in its own metrics too."""
    said = subprocess.run(
        [program, "--version"], capture_output=True, text=True, check=True, timeout=240
    ).stdout
    return said.split("version ")[1].split()[0]


def _downloads_table(mirror: Path) -> bytes:
    """downloads.json with the programs of the mirror in place of upstream's; the rest as it is."""
    table = json.loads((SCRIPTS / "downloads.json").read_text())
    table["files"] = [
        {
            "name": file.name.split("-")[0],
            "version": file.name.split("-")[1].removesuffix(".linux"),
            "architecture": "x86_64",
            "url": f"{_UPSTREAM}/{file.name}",
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        }
        for file in sorted(mirror.iterdir())
    ]
    return json.dumps(table, indent=2).encode()
