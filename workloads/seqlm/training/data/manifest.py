"""Manifest of a prepared folder: sources, settings, splits, and the checksum of every shard."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT_VERSION = 1
"""Version of the format of prepared folders. Other versions are refused."""
PACKAGE_VERSION = "0.1.0"
MANIFEST_FILE = "manifest.json"
SPLITS = ("train", "validation", "test")
LENGTH_BIN_TOKENS = 64
"""Width of the bins of ``Split.length_histogram``."""
IGNORED = -100
"""Label of a token without a known one. It is also the target that torch's losses skip."""


@dataclass(frozen=True, order=True)
class SourceFile:
    """File that the data were prepared from."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class ShardFile:
    """File with a part of a split."""

    file: str
    """Path relative to the manifest's folder."""
    records: int
    residues: int
    """Number of tokens, which are residues in proteins."""
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Split:
    """Records of one split."""

    records: int
    clusters: int
    """Number of clusters. Without cluster members, every record is a cluster."""
    residues: int
    """Number of tokens, which are residues in proteins."""
    length_histogram: dict[str, int]
    """Number of records by length. A key is the first length of a bin of ``LENGTH_BIN_TOKENS``."""
    shards: tuple[ShardFile, ...]


MAX_REJECTED_SHARE = 0.01
"""Default share of records that may be bad, which are left out."""


@dataclass(frozen=True)
class Settings:
    """Settings that, with the sources, determine the result."""

    seed: int
    validation_fraction: float
    test_fraction: float
    members: bool
    """Whether shards hold cluster members, with the columns ``cluster`` and ``cluster_size``."""
    max_rejected_share: float = MAX_REJECTED_SHARE
    """Share of records that may be bad, which are left out. Data of other kinds have none."""
    id_column: str | None = None
    """Column of tables with the ids; None finds it by its name."""
    sequence_column: str | None = None
    """Column of tables with the sequences; None finds it by its name."""


@dataclass(frozen=True)
class Manifest:
    """Description of a prepared folder, stored as ``manifest.json``."""

    sources: tuple[SourceFile, ...]
    settings: Settings
    duplicates_dropped: int
    """Number of records that were left out because they repeat others."""
    splits: dict[str, Split]
    vocabulary: tuple[str, ...]
    """Tokens by their ids; empty if the model's folder has the tokenizer."""
    similar: dict[str, Any] | None = None
    """Comparison of held-out records with training records; None if they were not compared."""
    rejected: dict[str, int] = dataclasses.field(default_factory=dict)
    """Number of bad records that were left out, by their kind."""
    format_version: int = FORMAT_VERSION
    package_version: str = PACKAGE_VERSION

    @property
    def sizes(self) -> str:
        """Numbers of records of each split, for messages."""
        return ", ".join(f"{name} {split.records:,}" for name, split in self.splits.items())

    @property
    def records(self) -> int:
        """Number of records of all splits."""
        return sum(split.records for split in self.splits.values())

    @property
    def residues(self) -> int:
        """Number of tokens of all splits."""
        return sum(split.residues for split in self.splits.values())

    def save(self, folder: Path) -> None:
        """Write the manifest into a prepared folder."""
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
            raise ValueError(
                f"{path}: format_version is {version!r}, needed is {FORMAT_VERSION}; {again}"
            )
        try:
            manifest = _from_json(raw)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is damaged ({error!r}); {again}") from None
        for split in manifest.splits.values():
            for shard in split.shards:
                if not isinstance(shard.file, str):
                    raise ValueError(
                        f"{path} is damaged (got {shard.file!r} for the name of a shard); {again}"
                    )
                file = Path(folder) / shard.file
                size = file.stat().st_size if file.is_file() else None
                if size != shard.bytes:
                    found = "is missing" if size is None else f"has {size} bytes"
                    raise ValueError(
                        f"{file} {found}, the manifest says {shard.bytes} bytes; {again}"
                    )
        return manifest


def _from_json(raw: dict[str, Any]) -> Manifest:
    parsed = {
        "sources": tuple(SourceFile(**source) for source in raw["sources"]),
        "settings": Settings(**raw["settings"]),
        "splits": {name: _split_from_json(raw["splits"][name]) for name in SPLITS},
        "vocabulary": tuple(raw["vocabulary"]),
    }
    return Manifest(**raw | parsed)


def _split_from_json(raw: dict[str, Any]) -> Split:
    shards = tuple(ShardFile(**shard) for shard in raw["shards"])
    return Split(**raw | {"shards": shards})
