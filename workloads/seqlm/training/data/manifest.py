"""The manifest of a prepared folder: what went in, what came out, and checksums of every shard."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT_VERSION = 1
PACKAGE_VERSION = "0.1.0"
MANIFEST_FILE = "manifest.json"
SPLITS = ("train", "validation", "test")
LENGTH_BIN_TOKENS = 64
IGNORED = -100
"""Label of a token without a known one. It is also the target that torch's losses skip."""


@dataclass(frozen=True, order=True)
class SourceFile:
    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class ShardFile:
    file: str
    """Path relative to the manifest's folder."""
    records: int
    residues: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Split:
    records: int
    clusters: int
    """Number of clusters; without cluster members, every record is a cluster of its own."""
    residues: int
    length_histogram: dict[str, int]
    """Number of records by length; a key is the smallest length of a bin of ``LENGTH_BIN_TOKENS``."""
    shards: tuple[ShardFile, ...]


@dataclass(frozen=True)
class Settings:
    """Settings that, with the sources, determine the result."""

    seed: int
    validation_fraction: float
    test_fraction: float
    members: bool
    """Whether shards hold cluster members, with the columns ``cluster`` and ``cluster_size``."""


@dataclass(frozen=True)
class Manifest:
    sources: tuple[SourceFile, ...]
    settings: Settings
    duplicates_dropped: int
    splits: dict[str, Split]
    vocabulary: tuple[str, ...]
    """Tokens by their ids; empty if the model folder has the tokenizer."""
    similar: dict[str, Any] | None = None
    """Held-out records that resemble training records; null where they were not compared."""
    format_version: int = FORMAT_VERSION
    package_version: str = PACKAGE_VERSION

    @property
    def sizes(self) -> str:
        """Records of each split, as messages give them."""
        return ", ".join(f"{name} {split.records:,}" for name, split in self.splits.items())

    @property
    def records(self) -> int:
        return sum(split.records for split in self.splits.values())

    @property
    def residues(self) -> int:
        return sum(split.residues for split in self.splits.values())

    def save(self, folder: Path) -> None:
        (folder / MANIFEST_FILE).write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, folder: str | Path) -> "Manifest":
        """Read the manifest of a prepared folder, after checking that every shard is there in full size.

        Raises:
            ValueError: if the folder is not prepared, is damaged, or is of another format version.
        """
        path = Path(folder) / MANIFEST_FILE
        again = "prepare the data again (make data) into a new folder, or delete this one first"
        try:
            raw: Any = json.loads(path.read_text())
        except (FileNotFoundError, NotADirectoryError):
            raise ValueError(
                f"{folder} holds no prepared data: no {MANIFEST_FILE}; run make data first"
            ) from None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is damaged ({error}); {again}") from None
        version = raw.get("format_version") if isinstance(raw, dict) else None
        if version != FORMAT_VERSION:
            raise ValueError(f"{path}: format_version is {version!r}, needed is {FORMAT_VERSION}; {again}")
        try:
            manifest = _from_json(raw)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is damaged ({error!r}); {again}") from None
        for shard in (shard for split in manifest.splits.values() for shard in split.shards):
            if not isinstance(shard.file, str):
                raise ValueError(f"{path} is damaged (got {shard.file!r} for the name of a shard); {again}")
            file = Path(folder) / shard.file
            size = file.stat().st_size if file.is_file() else None
            if size != shard.bytes:
                found = "is missing" if size is None else f"has {size} bytes"
                raise ValueError(f"{file} {found}, the manifest says {shard.bytes} bytes; {again}")
        return manifest


def describe_similar(similar: Mapping[str, Any]) -> str:
    """Describe in one clause how many held-out proteins resemble training proteins."""
    text = (
        f"{similar['similar']:,} of {similar['held_out']:,} held-out proteins resemble one of "
        f"{similar['training']:,} training proteins"
    )
    if not similar["similar"]:
        return text
    held_out, trained, share = similar["example"]
    return f"{text}, for example {held_out} and {trained} ({share:.0%} of its short words)"


def _from_json(raw: dict[str, Any]) -> Manifest:
    def split(of: dict[str, Any]) -> Split:
        return Split(**of | {"shards": tuple(ShardFile(**shard) for shard in of["shards"])})

    parsed = {
        "sources": tuple(SourceFile(**source) for source in raw["sources"]),
        "settings": Settings(**raw["settings"]),
        "splits": {name: split(raw["splits"][name]) for name in SPLITS},
        "vocabulary": tuple(raw["vocabulary"]),
    }
    return Manifest(**raw | parsed)
