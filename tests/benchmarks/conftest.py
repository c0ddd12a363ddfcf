from __future__ import annotations

from pathlib import Path

import pytest

from seqlm.proteins.data.prepare import Execution, prepare
from seqlm.proteins.data.sources import ProteinFiles

LETTERS = "LAGVSERTIDPKQNFYMHWC"
NUM_PROTEINS = 120


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared proteins of 30 to 1100 residues, so that both ways of cutting (510, 1022) have something to
    cut."""
    folder = tmp_path_factory.mktemp("data")
    fasta = folder / "proteins.fasta"
    lengths = [30 + (number * 277) % 1071 for number in range(NUM_PROTEINS)]
    fasta.write_text(
        "".join(
            f">protein{number}\n{''.join(LETTERS[(number * i + i * i) % 20] for i in range(length))}\n"
            for number, length in enumerate(lengths)
        )
    )
    prepare(
        ProteinFiles([fasta]),
        folder / "prepared",
        seed=0,
        validation_fraction=0.1,
        test_fraction=0.0,
        execution=Execution(progress=False),
    )
    return folder / "prepared"
