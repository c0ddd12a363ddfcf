"""Prepared data set, a tiny model of a family and a run file for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PretrainedConfig

from seqlm.proteins.alphabet import STANDARD_RESIDUES
from seqlm.proteins.data.prepare import Execution, prepare
from seqlm.proteins.data.sources import ProteinFiles
from seqlm.proteins.families.table import MODEL_FAMILIES
from seqlm.training import precision
from seqlm.training.tracking import mirror
from tests.workloads.proteins import tiny_models
from tests.workloads.proteins.tiny_models import save_tiny_model
from tests.workloads.training.training_runs import write_run_file


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests in a module's ``BOTH_FAMILIES`` for each family. True names all with a tiny model."""
    both = getattr(metafunc.module, "BOTH_FAMILIES", ())
    if "family" in metafunc.fixturenames and (both is True or metafunc.function.__name__ in both):
        metafunc.parametrize("family", MODEL_FAMILIES, indirect=True, scope="session")


@pytest.fixture(scope="session")
def family(request: pytest.FixtureRequest) -> str:
    """Family of the tiny models."""
    return str(getattr(request, "param", "esm2"))


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Use one thread, as torchrun's processes do; test processes with more threads slow each other down."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def auto_is_fp32_on_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make tests compute in the same type on every CPU; servers have no setting for it."""
    monkeypatch.setattr(precision, "has_bf16_instructions", lambda: False)


@pytest.fixture(autouse=True)
def mlflow_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait longer for mlflow, whose import may exceed the timeout on a busy machine."""
    monkeypatch.setattr(mirror, "CLOSE_TIMEOUT_SECONDS", 60)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 proteins of 5 to 400 residues, whose skewed composition can be learned."""
    folder = tmp_path_factory.mktemp("prepared")
    rng = np.random.default_rng(0)
    composition = rng.dirichlet(np.full(len(STANDARD_RESIDUES), 0.5))
    lengths = np.clip(rng.lognormal(4.5, 0.8, size=300), 5, 400).astype(int)
    lines = []
    for index, length in enumerate(lengths):
        lines += [
            f">P{index}",
            "".join(rng.choice(list(STANDARD_RESIDUES), size=length, p=composition)),
        ]
    fasta = folder / "proteins.fasta"
    fasta.write_text("\n".join(lines) + "\n")
    out = folder / "shards"
    prepare(
        ProteinFiles([fasta]),
        out,
        seed=0,
        validation_fraction=0.1,
        test_fraction=0.1,
        execution=Execution(workers=1, progress=False),
    )
    return out


@pytest.fixture(scope="session")
def tiny_config(family: str) -> PretrainedConfig:
    return tiny_models.tiny_config(family=family)


@pytest.fixture(scope="session")
def tiny_model(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model folder for ``model.init_from`` with the family's architecture, 2 layers of 32."""
    config = tiny_models.tiny_config(family=family)
    return save_tiny_model(tmp_path_factory.mktemp("tiny") / "model", config)


@pytest.fixture
def run_file(prepared: Path, tiny_model: Path, tmp_path: Path) -> Path:
    return write_run_file(tmp_path, prepared, tiny_model)
