"""Check of a model folder or checkpoint folder before any of its files is read.

A folder may come from a stranger. Archives and repositories can hold links, pipes and sizes that lie. No link
is followed out of the folder, no pipe or device is opened, and what would take all memory is refused first.
Standard library only.
"""

import json
import os
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from seqlm.training.data.small_file import MAX_CONFIG_BYTES, read_small
from seqlm.training.strict_yaml import shown

MAX_SETTINGS_BYTES = 128 << 20
"""Size limit of other files besides the weights. The largest known ``tokenizer.json`` has 33 MB."""
_CONFIG_FILES = ("config.json", "checkpoint.json", "SHA256SUMS")
_SETTINGS_SUFFIXES = (".json", ".txt", ".model", ".jinja", ".metadata")
_TEMPLATES_FOLDER = "additional_chat_templates"
"""The only folder within a model folder that transformers reads."""
_INDEX_SUFFIX = ".index.json"
"""End of the names of files that say which file holds which weight."""
MAX_LAYERS = 1_000
"""Largest number of layers. The deepest known model of the families has 48, of any kind 126."""
MAX_SIZE = 10_000_000
"""Largest number of tokens, features or positions in a configuration."""
MAX_LABELS = 100_000
"""Largest number of labels. transformers creates a name for each one, a million in some seconds."""
_LIMITS = {
    "num_hidden_layers": MAX_LAYERS,
    "n_layers": MAX_LAYERS,
    "num_layers": MAX_LAYERS,
    "num_labels": MAX_LABELS,
}
"""Limits of fields of a configuration. Other fields have ``MAX_SIZE``."""
_PARAMETERS_PER_BYTE = 2
"""Largest number of parameters in a byte of weights, in 4 bits."""
_CHECKED_BYTES = 1 << 30
"""Size from which the size of a file of weights is compared with its own header, before it is hashed. Of a
smaller one, the reader reports the fault."""
_LENGTH_BYTES = 8
"""Bytes of the header's length, at the beginning of a file of weights."""
_MAX_HEADER_BYTES = 100_000_000
"""Longest header of a file of weights that safetensors reads."""
_FREE_PARAMETERS = 100_000_000
"""Number of parameters that a folder may lack, such as those of a head that a run adds."""


def check_files(folder: Path) -> None:
    """Check the kind, place and size of the files in a folder. A missing folder passes.

    Links of the hub's cache stay allowed: they lead to ``blobs`` in the folder of the same repository.

    Raises:
        ValueError: if a file is a pipe or a device, too large, or a link out of the folder, or if an index or
            a configuration names a file elsewhere.
    """
    if not folder.is_dir():
        return
    root = _root(folder)
    _check_entries(folder, root)
    templates = folder / _TEMPLATES_FOLDER
    if templates.is_dir():
        _check_link(templates, root)
        _check_entries(templates, root)
    for index in sorted(folder.glob(f"*{_INDEX_SUFFIX}")):
        _check_index(index)
    _check_names(folder / "config.json", ("transformers_weights",))
    _check_names(folder / "tokenizer_config.json", ("_file", "_files"))


def check_config(config: Mapping[str, Any], where: object) -> None:
    """Check the sizes in a configuration before a model of these sizes is created.

    Args:
        config: content of ``config.json``.
        where: file or folder of the configuration, for the message.

    Raises:
        ValueError: if a size is beyond that of every known model.
    """
    for name, value in config.items():
        limit = _LIMITS.get(name, MAX_SIZE)
        if isinstance(value, int) and value > limit:
            raise ValueError(
                f"{where}: {shown(name)} is {shown(value)}, and no known model has more than {limit:,}; "
                "correct the configuration, or give another model"
            )
    if config.get("quantization_config"):
        raise ValueError(
            f"{where} describes quantized weights (quantization_config); give the model that they were made "
            "from, and lora.quantize=nf4 to train it in 4 bits"
        )


def check_num_parameters(folder: Path, num_parameters: int) -> None:
    """Check that the weights in a folder may be those of a model, before memory is taken for it.

    Raises:
        ValueError: if a model of so many parameters cannot be in the files.
    """
    files = [*folder.glob("*.safetensors"), *folder.glob("*.bin")]
    num_bytes = sum(file.stat().st_size for file in files)
    if files and num_parameters > _PARAMETERS_PER_BYTE * num_bytes + _FREE_PARAMETERS:
        raise ValueError(
            f"{folder}: config.json describes {num_parameters:,} parameters, which {num_bytes:,} bytes of "
            "weights cannot hold; copy the folder again from its source, or give another one"
        )


def _root(folder: Path) -> Path:
    """Return the folder that no link may leave: the folder, or its repository in a cache of the hub."""
    place = folder.resolve()
    is_snapshot = place.parent.name == "snapshots" and place.parent.parent.name.startswith(
        "models--"
    )
    return place.parent.parent if is_snapshot else place


def _check_entries(folder: Path, root: Path) -> None:
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            _check_file(Path(entry.path), root)


def _check_link(path: Path, root: Path) -> None:
    """Raise ValueError if the path is a link out of the folder ``root``."""
    if path.is_symlink() and not path.resolve().is_relative_to(root):
        target = shown(os.readlink(path))
        raise ValueError(
            f"{_named(path)} is a link to {target}, outside its folder; put the file in its place"
        )


def _named(path: Path) -> str:
    """Return a path for messages. Its last part is from the folder."""
    return f"{path.parent}/{shown(path.name)[1:-1]}"


def _check_file(path: Path, root: Path) -> None:
    try:
        about = path.stat()
    except OSError:
        return  # a dangling link, which the reader of the file reports as missing
    if stat.S_ISDIR(about.st_mode):
        return
    _check_link(path, root)
    named = _named(path)
    if not stat.S_ISREG(about.st_mode):
        raise ValueError(f"{named} is a pipe or a device; put a file in its place")
    if about.st_size >= _CHECKED_BYTES:
        if path.suffix == ".safetensors":
            _check_weights(path, named, about.st_size)
        elif path.suffix == ".bin" and not zipfile.is_zipfile(path):
            raise ValueError(f"{named} has {about.st_size:,} bytes, but is no archive of torch")
    limit = _limit(path.name)
    if limit is not None and about.st_size > limit:
        raise ValueError(f"{named} has {about.st_size:,} bytes; allowed are {limit:,}")


def _check_weights(path: Path, named: str, size: int) -> None:
    """Check that a file of weights ends where its header says. A file with holes has any size for nothing.

    Raises:
        ValueError: if it has another size, or no header.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        text = file.read(length) if length <= _MAX_HEADER_BYTES else b""
    try:
        tensors = [entry for name, entry in json.loads(text).items() if name != "__metadata__"]
        end = max((entry["data_offsets"][1] for entry in tensors), default=0)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        raise ValueError(f"{named} has {size:,} bytes, but no header of safetensors") from None
    if end != size - length - _LENGTH_BYTES:
        raise ValueError(
            f"{named} has {size:,} bytes, and its header describes {end + length + _LENGTH_BYTES:,}"
        )


def _limit(name: str) -> int | None:
    """Return the size limit of a file by its name; None for weights and for files that nothing reads."""
    if name in _CONFIG_FILES or name.endswith(_INDEX_SUFFIX):
        return MAX_CONFIG_BYTES
    return MAX_SETTINGS_BYTES if name.endswith(_SETTINGS_SUFFIXES) else None


def _check_index(index: Path) -> None:
    """Check that every weight is in a file of the index's own folder."""
    files = _document(index).get("weight_map")
    for file in files.values() if isinstance(files, dict) else ():
        _check_plain(index, file)


def _check_names(path: Path, endings: tuple[str, ...]) -> None:
    """Check that the fields of a document that end so name files in its own folder."""
    for name, value in _document(path).items():
        if not name.endswith(endings):
            continue
        if isinstance(value, str):
            _check_plain(path, value)
        elif isinstance(value, (list, dict)):  # transformers reads the keys of a mapping
            for file in value:
                _check_plain(path, file)


def _check_plain(path: Path, file: object) -> None:
    if not isinstance(file, str) or PurePath(file).name != file:
        raise ValueError(
            f"{path} names the file {shown(file)}; expected the name of a file in the same folder"
        )


def _document(path: Path) -> dict[str, Any]:
    """Return a JSON document; an empty one if its reader will report it."""
    try:
        found = json.loads(read_small(path, MAX_SETTINGS_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
