"""A second start of ``seqlm contacts`` with the same proteins and settings finds its result."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from seqlm.commands.inference import run_inference
from seqlm.proteins.contacts import head as contact_head
from seqlm.proteins.contacts.head import ContactHead
from seqlm.proteins.model.pretrained import load_model
from seqlm.runs.run_file import load_config


def test_a_second_start_finds_the_result(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    weights = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    contact_head.save(load_model(str(model)), str(model), ContactHead(weights, -0.5))
    fasta = tmp_path / "p.fasta"
    fasta.write_text(">a\nMKTAYIAKQRQISFVK\n")
    fields = {"model": model, "input": f"[{fasta}]", "output": tmp_path / "contacts.csv"}
    settings = [f"inference.{name}={value}" for name, value in fields.items()]
    config = load_config("esm2_8m_sample", [*settings, "train.precision=fp32"])
    for said in ("wrote", "already exists"):
        run_inference("contacts", config)
        printed = capsys.readouterr().out
        assert said in printed
        assert printed.splitlines()[-1] == "proteins: read 1, used 1, left out 0"
