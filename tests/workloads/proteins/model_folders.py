"""Checkpoint folders for tests: written in this process, and changed as a stranger would change them."""

from __future__ import annotations

import io
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, MetadataIndex
from transformers import EsmConfig, EsmForMaskedLM

from seqlm.proteins.model.pretrained import with_weights
from seqlm.training.checkpoint import Checkpointer
from seqlm.training.checksums import CHECKPOINT_FILE, crc32, seal
from seqlm.training.processes import processes

SHARD = "__0_0.distcp"
METADATA = ".metadata"


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.file),)


def write_checkpoint(folder: Path, config: EsmConfig) -> Path:
    """A checkpoint of an untrained model."""
    torch.manual_seed(0)
    model = with_weights(config, EsmForMaskedLM(config).state_dict())
    optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(model.parameters())]
    with processes() as here, Checkpointer(folder, here, {}, keep=1) as checkpointer:
        extra = {"progress": {"step": 1}, "model_config": config.to_dict()}
        checkpointer.save(1, model, optimizers, extra)
        checkpointer.finish()
    return folder / "step-00000001"


def reseal(checkpoint: Path, **changes: Any) -> None:
    """Update the checksums of changed files, as an attacker can."""
    document = json.loads((checkpoint / CHECKPOINT_FILE).read_text()) | changes
    del document["sha256"]
    document["checksums"] = {name: crc32(checkpoint / name) for name in document["checksums"]}
    (checkpoint / CHECKPOINT_FILE).write_text(seal(document))


def plant_in_metadata(checkpoint: Path, payload: Payload) -> None:
    metadata = FileSystemReader(checkpoint).read_metadata()
    metadata.planner_data = payload
    _rewrite(checkpoint, metadata)


def plant_in_tensor_entry(checkpoint: Path, payload: Payload) -> None:
    """Entry from which torch reads a tensor; it loads these with ``weights_only``."""
    _append(checkpoint, payload, is_tensor=True)


def plant_in_byte_entry(checkpoint: Path, payload: Payload) -> None:
    """Store the entry under the name of a weight, so that a request for the weight reads it."""
    _append(checkpoint, payload, is_tensor=False)


def _append(checkpoint: Path, payload: Payload, *, is_tensor: bool) -> None:
    entry = io.BytesIO()
    torch.save(payload, entry)
    with (checkpoint / SHARD).open("ab") as file:
        offset = file.tell()
        file.write(entry.getvalue())
    metadata = FileSystemReader(checkpoint).read_metadata()
    place = _StorageInfo(SHARD, offset, len(entry.getvalue()))
    for name in [
        name for name in metadata.state_dict_metadata if name.endswith("classifier.dense.bias")
    ] or ["model.lm_head.bias"]:
        old = next(index for index in metadata.storage_data if index.fqn == name)
        if is_tensor:
            metadata.storage_data[old] = place
        else:
            del metadata.storage_data[old]
            metadata.state_dict_metadata[name] = BytesStorageMetadata()
            metadata.storage_data[MetadataIndex(name)] = place
    _rewrite(checkpoint, metadata)


def _rewrite(checkpoint: Path, metadata: Metadata) -> None:
    (checkpoint / METADATA).write_bytes(pickle.dumps(metadata))
    reseal(checkpoint)
