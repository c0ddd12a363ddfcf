"""A prepared data set, a tiny ESM-2 and a way to start real training processes."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch
import yaml
from transformers import EsmConfig, EsmForMaskedLM

from workloads.esm2.alphabet import STANDARD_RESIDUES
from workloads.esm2.data.prepare import prepare
from workloads.esm2.model import published_config
from workloads.esm2.pretrained import save_model

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 proteins of 5 to 400 residues; their skewed composition is what there is to learn."""
    folder = tmp_path_factory.mktemp("prepared")
    rng = np.random.default_rng(0)
    composition = rng.dirichlet(np.full(len(STANDARD_RESIDUES), 0.5))
    lengths = np.clip(rng.lognormal(4.5, 0.8, size=300), 5, 400).astype(int)
    lines = []
    for index, length in enumerate(lengths):
        lines += [f">P{index}", "".join(rng.choice(list(STANDARD_RESIDUES), size=length, p=composition))]
    fasta = folder / "proteins.fasta"
    fasta.write_text("\n".join(lines) + "\n")
    out = folder / "shards"
    prepare([fasta], out, seed=0, validation_fraction=0.1, test_fraction=0.1, workers=1, progress=False)
    return out


@pytest.fixture(scope="session")
def tiny_config() -> EsmConfig:
    config = published_config("8M")
    config.num_hidden_layers, config.hidden_size = 2, 32
    config.num_attention_heads, config.intermediate_size = 4, 64
    return config


@pytest.fixture(scope="session")
def tiny_model(tiny_config: EsmConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that ``model.init_from`` reads: ESM-2's architecture, 2 layers of 32."""
    folder = tmp_path_factory.mktemp("tiny") / "model"
    torch.manual_seed(0)
    save_model(folder, tiny_config, EsmForMaskedLM(tiny_config).state_dict())
    return folder


@pytest.fixture
def run_file(prepared: Path, tiny_model: Path, tmp_path: Path) -> Path:
    """A run of 30 fp32 steps of 4 packs, one line of the log a step."""
    settings = {
        "name": "run",
        "runs": str(tmp_path / "runs"),
        "model": {"init_from": str(tiny_model), "max_residues": 126},
        "data": {"path": str(prepared)},
        "optim": {"lr": 1e-3, "warmup_steps": 5},
        "train": {
            "max_steps": 30,
            "tokens_per_pack": 256,
            "tokens_per_step": 1024,
            "precision": "fp32",
            "log_every_steps": 1,
            "eval_every_steps": 1000,
            "save_every_steps": 1000,
        },
        "tracking": {"mlflow_uri": (tmp_path / "mlruns").as_uri()},
    }
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Start ``torchrun -m workloads.esm2.train`` (or another module) as a user's shell would."""

    def start_training(
        config: Path,
        *overrides: str,
        processes: int = 1,
        module: str = "workloads.esm2.train",
        limits: Mapping[int, tuple[int, int]] = MappingProxyType({}),
    ) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={processes}", "-m", module, "--config", str(config), *overrides]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
        return subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: [resource.setrlimit(*limit) for limit in limits.items()] and None,
        )

    return start_training


@pytest.fixture
def train(start: Start) -> Callable[..., None]:
    """Train to the end."""

    def train_to_the_end(config: Path, *overrides: str, processes: int = 1) -> None:
        process = start(config, *overrides, processes=processes)
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 0, output

    return train_to_the_end
