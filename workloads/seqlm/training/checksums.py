"""Checksums of checkpoints and model folders, verified while the files are read.

They detect damage, such as a flipped bit or a copy cut short. They do not detect malice: anyone with write
access to a folder can write its checksums, too. The module needs only the standard library and PyYAML, except
to name a damaged model.
"""

import contextlib
import hashlib
import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .data.model_folder import MAX_SETTINGS_BYTES, check_files
from .data.small_file import MAX_CONFIG_BYTES, read_small
from .whole_file import move_into_place, naming, sync, write_whole

try:
    # The same function as zlib's, but faster. Machines that only read checkpoints may lack the package.
    from isal.isal_zlib import crc32 as _crc32_of
except ModuleNotFoundError:
    from zlib import crc32 as _crc32_of

if TYPE_CHECKING:
    from .processes import Processes

CHECKPOINT_FILE = "checkpoint.json"
ADAPTER_FILE = "adapter_config.json"
"""Configuration in a folder of peft's format."""
SUMS_FILE = "SHA256SUMS"
"""File with the checksums of a model folder, which ``sha256sum -c SHA256SUMS`` reads as well."""
CARD_FILE = "README.md"
"""Model card of a published folder."""
_SETTINGS = ("*.json", "*.model", "*.txt", "*.jinja")
"""Files besides the weights that libraries read from a model folder."""
_WEIGHTS = (".safetensors", ".bin", ".distcp")
"""Ends of the names of files with weights. Other files of a folder are small."""
_CHUNK_BYTES = 1 << 20
"""Size of the buffer that a file is read into for a CRC-32. It fits into a core's cache."""
_REPORTED_BYTES = 1 << 30
"""Size from which the hashing of a folder is reported. Smaller folders take less than a second."""
_MAX_REASON_CHARS = 400
Digest = int | str
"""CRC-32 as a number (files of a checkpoint), or SHA-256 in hexadecimal."""


class DamagedError(ValueError):
    """A file is missing or differs from its checksum.

    Args:
        what: message without the advice.
    """

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}; copy the folder again from its source, or give another one")
        self.what = what


class OtherRunError(ValueError):
    """A checkpoint that belongs to another run. The message has a line for each difference."""


@dataclass
class Source:
    """Model that a block reads."""

    sha256: str | None = None
    """SHA-256 of the list of the files' checksums, set at the end of the block; None without files."""


def write_sums(folder: Path) -> None:
    """Write the SHA-256 of the files of a model folder into the folder; people may edit the model card."""
    digests: dict[str, Digest] = {}
    for path in folder.iterdir():
        if path.is_file() and path.name not in (SUMS_FILE, CARD_FILE):
            digests[path.name] = digest_of(path, "sha256")
    write_whole(folder / SUMS_FILE, _listed(digests))


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Write a model folder beside its destination; with its checksums, it replaces the one there."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    yield partial
    for file in partial.iterdir():
        # safetensors creates files that only their owner may read, whatever the umask.
        shutil.copymode(partial / "config.json", file)
    write_sums(partial)
    sync(partial)  # before the folder that it replaces is deleted
    shutil.rmtree(folder, ignore_errors=True)
    move_into_place(partial, folder)


def seal(document: Mapping[str, Any]) -> str:
    """Return the text of a ``checkpoint.json``, which ends with the SHA-256 of the rest."""
    return json.dumps({**document, "sha256": _sha256(json.dumps(document))}, indent=1)


def read_document(folder: Path) -> dict[str, Any]:
    """Read the ``checkpoint.json`` of a checkpoint folder.

    Raises:
        DamagedError: if it is missing, is not JSON, lacks a field, or was changed after it was written.
    """
    path = folder / CHECKPOINT_FILE
    try:
        document = json.loads(read_small(path, MAX_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedError(f"{path} cannot be read: {error}") from error
    for name in ("checksums", "identity", "progress"):
        if not isinstance(document, dict) or not isinstance(document.get(name), dict):
            raise DamagedError(f"{path} is damaged: expected a mapping with {name!r}")
    for name, checksum in document["checksums"].items():
        if type(checksum) is not int:
            raise DamagedError(f"{path} is damaged: expected a number as the checksum of {name!r}")
    saved = document.pop("sha256", None)  # earlier checkpoints have none
    if saved not in (None, _sha256(json.dumps(document))):
        raise DamagedError(f"{path} is damaged: it was changed after it was written")
    return document


@contextlib.contextmanager
def verified(name: str | Path | None, here: "Processes | None" = None) -> Iterator[Source]:
    """Verify the files of a model that have checksums while the block reads them, and hash the others.

    No file outside the folder is read, and no pipe or device. Threads hash the files during the block. With
    ``here`` every process must enter the block, even if it reads nothing, and hashes its share of the files.

    Args:
        name: checkpoint folder, model folder or hub id; None if the block reads no model.
        here: this process, if several read the model.

    Raises:
        DamagedError: on every process, if a file is missing or damaged.
        ValueError: if the block raises any other error but ModuleNotFoundError, which stands for a missing
            package.
    """
    source = Source()
    if name is None:
        yield source
        return
    folder = Path(name)
    failure: ValueError | None = None
    _check_files(folder, here)
    expected, problem = _expected(folder)
    with ThreadPoolExecutor() as threads:
        hashing = _hashing(threads, folder, expected, here)
        try:
            yield source
        except (ModuleNotFoundError, MemoryError):
            raise
        except Exception as error:
            failure = unreadable(name, error)
        if not folder.is_dir():  # a hub id, for which the block has downloaded the files
            hashing = _hashing(threads, _snapshot(str(name)), {}, here)
        found: dict[Any, Any] = {}
        unread: dict[Any, Any] = {}
        for file, future in hashing.items():
            try:
                found[file] = future.result()
            except FileNotFoundError:
                unread[file] = "it is missing"
            except OSError as error:
                unread[file] = f"it cannot be read ({error.strerror})"
    problems = [problem]
    if here is not None:
        found = here.gather(found)
        unread = here.gather(unread)
        problems = list(here.gather({here.rank: problem}).values())
    for file, digest in found.items():
        if digest != expected.get(file, digest):
            unread[file] = "its checksum is wrong"
    problems += [f"{folder / file} is damaged: {unread[file]}" for file in sorted(unread)]
    first_problem = next(filter(None, problems), "")
    if first_problem:
        raise DamagedError(first_problem) from failure
    if failure is not None:
        raise failure
    source.sha256 = _sha256(_listed(found)) if found else None


def _check_files(folder: Path, here: "Processes | None") -> None:
    """Raise DamagedError on every process if one finds a file in the folder that must not be opened."""
    problem = ""
    try:
        check_files(folder)
    except ValueError as error:
        problem = str(error)
    problems = [problem]
    if here is not None:
        problems = list(here.gather({here.rank: problem}).values())
    first_problem = next(filter(None, problems), "")
    if first_problem:
        raise DamagedError(first_problem)


def unreadable(name: str | Path, error: Exception) -> ValueError:
    """Return an error that names the model and says what to do, for any error of a library that read it."""
    if isinstance(error, OtherRunError):
        return error
    if isinstance(error, ValueError) and str(name) in str(error) and "\n" not in str(error):
        return error
    from safetensors import SafetensorError, safe_open

    reason = " ".join(f"{type(error).__name__}: {error}".split())[:_MAX_REASON_CHARS]
    broken = Path(name)
    for file in sorted(broken.glob("*.safetensors")):  # the library does not say which one
        try:
            with safe_open(file, "pt"):
                pass
        except (SafetensorError, OSError):
            broken = file
            break
    result = ValueError(
        f"{broken} cannot be read as a model: {reason}; copy it again from its source, or give another one"
    )
    result.__cause__ = error
    return result


def _expected(folder: Path) -> tuple[dict[str, Digest], str]:
    """Return the checksums in a folder, and the problem with them; both are empty if it has none."""
    file = folder / SUMS_FILE
    try:
        if (folder / CHECKPOINT_FILE).exists():
            file = folder / CHECKPOINT_FILE
            found = {**read_document(folder)["checksums"], file.name: digest_of(file, "sha256")}
        elif file.exists():
            lines = [
                line.split("  ", 1) for line in read_small(file, MAX_CONFIG_BYTES).splitlines()
            ]
            found = {name: digest for digest, name in lines}
        else:
            return {}, ""
        for name in found:
            path = folder / name
            if not name.endswith(_WEIGHTS) and path.exists():
                size = path.stat().st_size
                if size > MAX_SETTINGS_BYTES:
                    return {}, f"{path} has {size:,} bytes and is no file of weights"
        unlisted = {path.name for path in folder.glob("*.safetensors")} - found.keys()
        if found and not unlisted and all(Path(name).name == name for name in found):
            return found, ""
    except DamagedError as error:
        return {}, error.what
    except (OSError, ValueError):
        pass
    return {}, f"{file} is damaged: expected a checksum for each file in its folder"


def _hashing(
    threads: ThreadPoolExecutor,
    folder: Path | None,
    expected: Mapping[str, Digest],
    here: "Processes | None",
) -> dict[str, Future[Digest]]:
    """Start to hash this process's share of a folder's files.

    Args:
        threads: threads that hash the files.
        folder: folder of the model; None hashes nothing.
        expected: checksums that the folder has; without any, the files that libraries read are hashed.
        here: this process, if several share the files.

    Returns:
        Futures of the checksums by the names of the files.
    """
    if folder is None:
        return {}
    files = sorted(expected or _files_read(folder))
    size = sum((folder / file).stat().st_size for file in files if (folder / file).is_file())
    if size >= _REPORTED_BYTES and (here is None or here.is_first):
        print(
            f"hashing {len(files)} files of {folder}, {size / 1e9:.1f} GB",
            file=sys.stderr,
            flush=True,
        )
    mine = files if here is None else files[here.rank :: here.world_size]
    return {file: threads.submit(_digest, folder / file, expected.get(file, "")) for file in mine}


def _files_read(folder: Path) -> set[str]:
    """Return the names of the files that transformers reads from a model folder."""
    # It prefers safetensors.
    weights = "*.safetensors" if any(folder.glob("*.safetensors")) else "*.bin"
    names: set[str] = set()
    for pattern in (*_SETTINGS, weights):
        names |= {path.name for path in folder.glob(pattern) if path.is_file()}
    return names


def _snapshot(name: str) -> Path | None:
    """Return the folder of a hub id in the hub's cache; None if it is not there."""
    from huggingface_hub import try_to_load_from_cache

    try:
        config = try_to_load_from_cache(name, "config.json")
    except ValueError:  # not a hub id, which the error of the block reports
        return None
    return Path(config).parent if isinstance(config, str) else None


def _digest(path: Path, expected: Digest) -> Digest:
    """Return the checksum of a file, of the same kind as the expected one.

    Raises:
        OSError: if the file cannot be read. No value stands for that: it could be stored as the checksum.
    """
    return digest_of(path, "sha256") if isinstance(expected, str) else crc32(path)


def crc32(path: Path) -> int:
    """Return the CRC-32 of a file of a checkpoint.

    Raises:
        OSError: if the file cannot be read.
    """
    return int(digest_of(path, "crc32"), 16)


def digest_of(path: Path, algorithm: str) -> str:
    """Return a file's checksum in hexadecimal, by ``crc32`` or any of hashlib's algorithms.

    Raises:
        OSError: if the file cannot be read.
    """
    with naming(path), path.open("rb", buffering=0) as file:
        if algorithm != "crc32":
            new = partial(hashlib.new, algorithm, usedforsecurity=False)
            return hashlib.file_digest(file, new).hexdigest()
        checksum = 0
        buffer = memoryview(bytearray(_CHUNK_BYTES))
        while size := file.readinto(buffer):
            checksum = crc32_of(buffer[:size], checksum)
        return f"{checksum:08x}"


def crc32_of(data: bytes | memoryview, start: int = 0) -> int:
    """Return the CRC-32 of data.

    Args:
        data: data to add to the checksum.
        start: checksum of what comes before.
    """
    return int(_crc32_of(data, start))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _listed(digests: Mapping[str, Digest]) -> str:
    """Return the checksums in the format of ``sha256sum``, sorted by name."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))
