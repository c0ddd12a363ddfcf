"""Embed proteins with biotrainer: ``embed.py MODEL_FOLDER FASTA OUTPUT.npz``, in biotrainer's environment.

The output has ``reduced/<id>`` (C,) and ``residues/<id>`` (L, C) for each protein, in fp32.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from biotrainer.embedders import get_embedding_service
from biotrainer.input_files import read_FASTA
from biotrainer.protocols import Protocol

PROTOCOLS = {"reduced": Protocol.sequence_to_class, "residues": Protocol.residue_to_class}


def main(model: str, fasta: str, output: str) -> None:
    # biotrainer reads the type of the device, so a name does not do.
    service = get_embedding_service(
        embedder_name=model,
        custom_tokenizer_config=None,
        use_half_precision=False,
        device=torch.device("cpu"),
    )
    found = {}
    records = read_FASTA(Path(fasta))
    # In a new folder, because biotrainer reuses files by the last part of the model's path.
    with tempfile.TemporaryDirectory() as folder:
        for kind, protocol in PROTOCOLS.items():
            file = service.compute_embeddings(records, Path(folder), protocol, store_by_hash=False)
            for name, embedding in service.load_embeddings(file).items():
                found[f"{kind}/{name}"] = embedding.numpy()
    np.savez(output, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
