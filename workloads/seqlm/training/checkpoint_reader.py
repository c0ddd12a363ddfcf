"""Reader of checkpoint folders that runs no code from them.

torch unpickles ``.metadata`` and the entries that are not tensors, and so runs any code that they name. Here
an unpickler reads the metadata that finds only the names in ``ALLOWED``, most of them as plain records.
Entries that are not tensors are not read. ``torch.load(weights_only=True)`` reads the tensors.
"""

import pickle
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.state_dict_loader import load

from .checksums import read_document

METADATA_FILE = ".metadata"
"""File of torch.distributed.checkpoint with the shapes and places of the tensors."""
_DCP = "torch.distributed.checkpoint"
_MAX_REASON_CHARS = 400
"""Length to which an error of torch is cut in messages: it adds lines about how to trust the file."""


class Record:
    """Stand-in for an object of torch's metadata, with its pickled state and none of its methods."""

    state: Any = None
    """Pickled state of the object."""

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state


_RECORDS = (
    "Metadata MetadataIndex StorageMeta TensorStorageMetadata BytesStorageMetadata ChunkStorageMetadata "
    "TensorProperties _MEM_FORMAT_ENCODING"
)
"""Classes of torch's metadata."""
_TYPES = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool"
"""Types of tensors."""
ALLOWED: dict[tuple[str, str], Any] = {
    **{(f"{_DCP}.metadata", name): Record for name in _RECORDS.split()},
    (f"{_DCP}.filesystem", "_StorageInfo"): Record,
    ("torch.serialization", "_get_layout"): Record,
    ("pathlib", "PosixPath"): Record,
    ("pathlib._local", "PosixPath"): Record,  # Python 3.13
    # Python 3.11.0 to 3.11.3, which Debian 12 has, pickle members of an Enum as a call of getattr. A record
    # takes its place, so that no attribute is looked up.
    ("builtins", "getattr"): Record,
    ("torch", "Size"): torch.Size,
    **{("torch", name): getattr(torch, name) for name in _TYPES.split()},
}
"""Names that ``.metadata`` may contain, and what they are read as."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no checkpoint contains")
        return ALLOWED[module, name]


class Reader(FileSystemReader):
    """Storage reader of the tensors of one checkpoint folder.

    Args:
        folder: folder of a complete checkpoint.

    Raises:
        ValueError: if ``.metadata`` names anything but torch's metadata, or is not what torch writes.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        path = folder / METADATA_FILE
        try:
            with path.open("rb") as file:
                stored = _Unpickler(file).load()
            self._metadata = _tensors(stored, read_document(folder)["checksums"].keys())
        except Exception as error:  # an unpickler of damaged bytes raises nearly anything
            reason = " ".join(str(error).split())
            raise ValueError(
                f"{path} cannot be read: {type(error).__name__}: {reason}; give another checkpoint"
            ) from error

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        return self._metadata


def _tensors(stored: Record, files: Collection[str]) -> Metadata:
    """Return shapes, types and places of the tensors.

    Args:
        stored: record of torch's ``Metadata``.
        files: names of the checkpoint's files, which all places must be in.

    Raises:
        ValueError: if a part of the model is not a tensor, or a place is in another file.
    """
    tensors: dict[str, Any] = {}
    for name, item in stored.state["state_dict_metadata"].items():
        if item.state:  # torch keeps nothing about an entry that is not a tensor
            tensors[name] = _tensor(item.state)
        elif name.startswith("model."):
            raise ValueError(f"{name} is not a tensor")
    places = {}
    for index, info in stored.state["storage_data"].items():
        name = index.state["fqn"]
        place = info.state
        if place["relative_path"] not in files or place.get("transform_descriptors"):
            raise ValueError(f"{name} is in {place['relative_path']!r}, which has no checksum")
        places[MetadataIndex(name, index.state.get("offset"))] = _StorageInfo(
            place["relative_path"], place["offset"], place["length"]
        )
    return Metadata(tensors, storage_data=places)


def _tensor(state: Mapping[str, Any]) -> TensorStorageMetadata:
    chunks = [
        ChunkStorageMetadata(torch.Size(chunk.state["offsets"]), torch.Size(chunk.state["sizes"]))
        for chunk in state["chunks"]
    ]
    properties = TensorProperties(dtype=state["properties"].state[0])
    return TensorStorageMetadata(properties, torch.Size(state["size"]), chunks)


def read_into(
    state: dict[str, Any], reader: Reader, group: dist.ProcessGroup | None = None
) -> dict[str, Any]:
    """Read tensors of a checkpoint into those of ``state``, and return it.

    Args:
        state: tensors by name, in nested mappings; changed in place.
        reader: reader of the checkpoint.
        group: processes that read the checkpoint together, each of which calls this; None for one process.

    Raises:
        ValueError: on every process, if an entry is missing or is not a tensor of the same shape.
    """
    try:
        with warnings.catch_warnings():
            # Without a group, that is intended.
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            load(state, storage_reader=reader, process_group=group, no_dist=group is None)
    except CheckpointException as error:  # a BaseException
        failure, _ = next(iter(error.failures.values()))
        reason = " ".join(str(failure).split())[:_MAX_REASON_CHARS]
        raise ValueError(
            f"{reader.path} cannot be read: {reason}; give another checkpoint"
        ) from error
    return state


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    """Return the full model weights of a checkpoint folder, read in one process.

    Raises:
        ValueError: if the folder is not a complete checkpoint, or holds adapters alone.
    """
    if read_document(folder).get("holds", "model") != "model":
        raise ValueError(
            f"{folder} holds adapters and a head without the model that they belong to; start the run again "
            "to its end, and give its model folder"
        )
    return saved_weights(folder)


def saved_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return the model weights in a complete checkpoint, by parameter name, read in one process."""
    reader = Reader(folder)
    state = {
        name.removeprefix("model."): torch.empty(item.size, dtype=item.properties.dtype)
        for name, item in reader.read_metadata().state_dict_metadata.items()
        if name.startswith("model.") and isinstance(item, TensorStorageMetadata)
    }
    return dict(read_into({"model": state}, reader)["model"])
