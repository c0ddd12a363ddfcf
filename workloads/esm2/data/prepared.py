"""What an output folder already holds: the same result (nothing to do), or something in the way."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workloads.esm2.data.fasta import reading
from workloads.esm2.data.manifest import MANIFEST_FILE, Manifest, Settings, SourceFile


def existing_manifest(out: Path, files: Mapping[Path, str], wanted: Settings) -> Manifest | None:
    """Find the manifest in ``out`` if it was made from the same files and settings; None if there is nothing.

    Args:
        out: the output folder.
        files: the files that would be read and what the manifest calls them.
        wanted: the settings to prepare with.

    Raises:
        ValueError: if ``out`` holds anything else.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if not out.is_dir():
        raise ValueError(f"{out} is a file; choose another data.path for the folder of prepared data")
    if not (out / MANIFEST_FILE).exists():
        found = sorted(entry.name for entry in out.iterdir())[:3]
        raise ValueError(
            f"{out} holds something else (no {MANIFEST_FILE}, but {', '.join(found)}); "
            "choose another data.path; nothing was touched"
        )
    manifest = Manifest.load(out)
    differences = differences_of(dataclasses.asdict(manifest.settings), dataclasses.asdict(wanted))
    if not _same_sources(manifest, files):
        there, here = (
            ", ".join(sorted(names)) for names in ([s.name for s in manifest.sources], files.values())
        )
        changed = "their contents changed" if there == here else f"there {there}, wanted {here}"
        differences.append(f"sources ({changed})")
    check_same(out, differences)
    return manifest


def differences_of(there: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Settings of prepared data that are not those that are wanted, each with both values."""
    return [
        f"{prefix}{name} (there {there.get(name)!r}, wanted {value!r})"
        for name, value in wanted.items()
        if there.get(name) != value
    ]


def check_same(out: Path, differences: Sequence[str]) -> None:
    """Raise ValueError if prepared data differs from what is wanted."""
    if differences:
        raise ValueError(
            f"{out} holds data prepared differently: {'; '.join(differences)}; "
            "choose another data.path, or delete that folder to prepare again"
        )


def _same_sources(manifest: Manifest, files: Mapping[Path, str]) -> bool:
    """Names and sizes first: hashing UniRef50 takes some ten seconds."""
    sizes = sorted((name, path.stat().st_size) for path, name in files.items())
    if sizes != sorted((source.name, source.bytes) for source in manifest.sources):
        return False
    return set(manifest.sources) == {source_file(path, name) for path, name in files.items()}


def source_file(path: Path, name: str) -> SourceFile:
    """What the manifest says of a file."""
    with reading(path), path.open("rb") as file:
        return SourceFile(name, path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())
