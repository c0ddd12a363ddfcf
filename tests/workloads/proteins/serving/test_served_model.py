"""Models of every kind of task give the same answers as transformers."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PretrainedConfig,
)

from seqlm.proteins.alphabet import CLS, EOS, encode
from seqlm.proteins.serving.command import main
from seqlm.proteins.serving.model import open_model
from seqlm.proteins.serving.settings import ServeSettings, check_folder
from seqlm.training.command_line import STOPPED_BY_SIGNAL
from tests.workloads.proteins.serving.served import CSV, Served, free_port, serving
from tests.workloads.proteins.serving.test_shutdown import PATIENCE, answering

BOTH_FAMILIES = {"test_answers_are_those_of_transformers", "test_embeddings_and_residues_as_csv"}

PROTEINS = ["MKTAYIAKQR", "LAGV", "M" * 80, "WYHC" * 9]
SETTINGS = ServeSettings(max_residues=200)
TASKS: dict[str, tuple[Any, str | None, list[str]]] = {
    "binary": (AutoModelForSequenceClassification, "multi_label_classification", ["membrane"]),
    "multilabel": (
        AutoModelForSequenceClassification,
        "multi_label_classification",
        ["nucleus", "cytoplasm", "other"],
    ),
    "multiclass": (
        AutoModelForSequenceClassification,
        "single_label_classification",
        ["a", "b", "c"],
    ),
    "regression": (AutoModelForSequenceClassification, "regression", ["melting", "activity"]),
    "residue": (AutoModelForTokenClassification, None, ["H", "E", "C"]),
    "plain": (AutoModelForMaskedLM, None, ["0", "1"]),
}


@pytest.fixture(scope="module")
def folders(
    tiny_config: PretrainedConfig, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Model folders by task; large weights in the heads make the labels differ."""
    made = {}
    for task, (kind, problem_type, names) in TASKS.items():
        torch.manual_seed(3)
        config = type(tiny_config)(**tiny_config.to_dict())
        config.problem_type = problem_type  # type: ignore[assignment]
        config.num_labels = len(names)
        config.id2label = dict(enumerate(names))
        model = kind.from_config(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.startswith(("classifier", "score")):
                    parameter.normal_(std=3.0)
        made[task] = tmp_path_factory.mktemp(task)
        model.save_pretrained(made[task])
    return made


def theirs(folder: Path, task: str, protein: str) -> np.ndarray:
    """Return logits, or last hidden states, of transformers for one protein, with CLS and EOS."""
    model = TASKS[task][0].from_pretrained(folder, dtype=torch.float32).eval()
    tokens = torch.tensor([[CLS, *encode(protein).tolist(), EOS]])
    with torch.no_grad():
        output = model(tokens, torch.ones_like(tokens), output_hidden_states=True)
    return (output.hidden_states[-1] if task == "plain" else output.logits)[0].numpy()


def answers(folder: Path) -> list[dict[str, Any]]:
    with serving(open_model(folder, SETTINGS), SETTINGS) as served:
        return _invoked(served)


def _invoked(served: Served) -> list[dict[str, Any]]:
    reply = served.invoke({"proteins": PROTEINS})
    assert reply.status == 200, reply.body
    found: list[dict[str, Any]] = reply.json["predictions"]
    assert [one["id"] for one in found] == ["0", "1", "2", "3"]
    return found


def close(found: Any, expected: np.ndarray) -> None:
    """Compare two digits, because CPUs with bf16 instructions compute in bf16."""
    np.testing.assert_allclose(np.array(found), expected, atol=0.08)


@pytest.mark.parametrize("task", TASKS)
def test_answers_are_those_of_transformers(folders: dict[str, Path], task: str) -> None:
    names = TASKS[task][2]
    for protein, found in zip(PROTEINS, answers(folders[task]), strict=True):
        expected = theirs(folders[task], task, protein)
        if task == "plain":
            close(found["embedding"], expected[1:-1].mean(axis=0))
        elif task == "regression":
            assert list(found["values"]) == names
            scale = np.abs(expected).max() + 1
            close(np.array(list(found["values"].values())) / scale, expected / scale)
        elif task == "residue":
            probabilities = torch.tensor(expected[1:-1]).softmax(dim=-1).numpy()
            assert len(found["labels"]) == len(protein)
            close(found["probabilities"], probabilities.max(axis=-1))
        elif task == "multiclass":
            close(
                list(found["probabilities"].values()),
                torch.tensor(expected).softmax(dim=-1).numpy(),
            )
            assert found["label"] == max(found["probabilities"], key=found["probabilities"].get)
        else:
            close(list(found["probabilities"].values()), torch.tensor(expected).sigmoid().numpy())
            likely = [name for name, p in found["probabilities"].items() if p >= 0.5]
            assert found["labels"] == (likely or (["not " + names[0]] if task == "binary" else []))


def test_embeddings_and_residues_as_csv(folders: dict[str, Path]) -> None:
    body = "\n".join(PROTEINS).encode()
    for task, columns in (("plain", 2 + 32), ("residue", 4)):
        with serving(open_model(folders[task], SETTINGS), SETTINGS) as served:
            lines = served.invoke(body, CSV).body.decode().splitlines()
        assert len(lines) == 1 + len(PROTEINS)
        assert {len(line.split(",")) for line in lines} == {columns}


def test_a_folder_without_a_model_is_refused(tmp_path: Path, folders: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match=r"there is no folder .*none"):
        check_folder(tmp_path / "none")
    (tmp_path / "model").mkdir()
    with pytest.raises(
        ValueError, match=r"it has model; .*put its files, not the folder, into the archive"
    ):
        check_folder(tmp_path)
    config = json.loads((folders["multiclass"] / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps(config | {"architectures": ["EsmForProteinFolding"]})
    )
    with pytest.raises(ValueError, match="EsmForProteinFolding"):
        open_model(tmp_path, SETTINGS)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become somebody else for a moment")
def test_an_unreadable_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir(mode=0o700)
    os.seteuid(10001)
    try:
        with pytest.raises(
            ValueError, match=r"user 10001 cannot list .*: Permission denied; .*chmod a\+rX"
        ):
            check_folder(folder)
    finally:
        os.seteuid(0)


def test_a_model_that_diverged_is_not_served(
    folders: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(folders["regression"])
    with torch.no_grad():
        model.classifier.out_proj.bias.fill_(torch.nan)
    model.save_pretrained(tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["serve", "--model", str(tmp_path), "--port", str(free_port())]
    )
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    # uvicorn closes all logging handlers. That of absl would close the standard error of pytest.
    monkeypatch.setattr(logging, "shutdown", lambda *_: None)
    with pytest.raises(SystemExit, match="2"):
        main()
    told = capsys.readouterr().err
    assert f"{tmp_path}: the model's answers are not finite; give another checkpoint" in told


def test_saved_models_are_readable_for_the_server_s_user(tiny_model: Path) -> None:
    assert {path.name for path in tiny_model.iterdir()} >= {"config.json", "model.safetensors"}
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in tiny_model.iterdir())


def test_the_command_lists_all_mistakes_in_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["serve", "--model", str(tmp_path)])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setenv("ESM2_SERVE_MAX_PROTEINS", "0")
    monkeypatch.setenv("ESM2_SERVE_COLOUR", "red")
    with pytest.raises(SystemExit, match="2"):
        main()
    told = capsys.readouterr().err
    assert "ESM2_SERVE_COLOUR: there is no such setting" in told
    assert "ESM2_SERVE_MAX_PROTEINS: got '0'" in told


def test_a_taken_port_is_named_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(
            sys, "argv", ["serve", "--model", str(tmp_path / "none"), "--port", str(port)]
        )
        with pytest.raises(SystemExit, match="2"):
            main()
    assert f'(make serve ARGS="--port {port + 1}")' in capsys.readouterr().err


@pytest.mark.long
def test_the_container_s_command_serves_a_model_and_gets_signals(folders: dict[str, Path]) -> None:
    port = free_port()
    command = ["docker/serve.sh", "--model", str(folders["multiclass"])]
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ESM2_SERVE_DRAIN_SECONDS": "0",
    }
    with answering(
        [*command, "--host", "127.0.0.1", "--port", str(port)], port, environment
    ) as process:
        body = urllib.request.Request(
            f"http://127.0.0.1:{port}/invocations", b"id,sequence\nP1,MKT", {"Content-Type": CSV}
        )
        with urllib.request.urlopen(body, timeout=PATIENCE) as answer:
            header, row = answer.read().decode().splitlines()
        names = ["id", "length", "label", "probability_a", "probability_b", "probability_c"]
        assert header == ",".join(f'"{name}"' for name in names) and row.startswith('"P1",3,')
        process.send_signal(signal.SIGTERM)
        # This is the server's own status, because no shell runs between it and the container runtime.
        assert process.wait(PATIENCE) == STOPPED_BY_SIGNAL
