"""Stages of the acceptance run that fine-tune, embed and serve, rehearsed with a tiny model."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from benchmarks.case import Case, Settings
from benchmarks.ours import drawn_proteins
from benchmarks.stages import data, embed, finetune, serve
from seqlm.proteins.data.prepare import Execution, prepare
from seqlm.proteins.data.sources import ProteinFiles

LETTERS = "LAGVSERTIDPKQNFYMHWC"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A hundred proteins of 30 to 1,100 residues; some are longer than the stages read."""
    folder = tmp_path_factory.mktemp("data")
    lengths = [30 + (number * 277) % 1071 for number in range(100)]
    (folder / "proteins.fasta").write_text(
        "".join(
            f">protein{number}\n{''.join(LETTERS[(number * i + i * i) % 20] for i in range(length))}\n"
            for number, length in enumerate(lengths)
        )
    )
    prepare(
        ProteinFiles([folder / "proteins.fasta"]),
        folder / "prepared",
        seed=0,
        validation_fraction=0.1,
        test_fraction=0.0,
        execution=Execution(progress=False),
    )
    return Settings(folder / "prepared", torch.device("cpu"), rehearsal=True)


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def case_of(cases: list[Case], contestant: str) -> Case:
    return next(case for case in cases if case.contestant == contestant)


@pytest.mark.long
def test_methods_differ_in_what_they_train_and_keep(settings: Settings) -> None:
    cases = finetune.cases(settings)
    names = ["all", "base", "accumulation", "checkpointing", "lora", "qlora"]
    assert [case.contestant for case in cases] == names
    found = {name: finetune.run(case_of(cases, name), settings) for name in names}
    for name, figures in found.items():
        assert figures["verdict"] == "measured" and figures["residues_per_second"] > 0, name
        assert figures["packs"] == (4 if name in ("accumulation", "all", "qlora") else 1), name
        assert figures["recomputes"] == (name in ("checkpointing", "all", "qlora")), name
        assert (
            figures["peak_gb"] > 0
            and figures["mean_residues"] <= figures["longest_residues"] == 510
        ), name
    trained = {name: figures["trained_parameters"] for name, figures in found.items()}
    assert (
        trained["lora"]
        == trained["all"]
        == trained["qlora"]
        < trained["base"]
        == trained["accumulation"]
    )
    frozen = {name: figures["frozen_bytes"] for name, figures in found.items()}
    assert frozen["qlora"] < frozen["all"] / 2
    assert found["base"]["tokens_per_pack"] == 4 * found["accumulation"]["tokens_per_pack"]


@pytest.mark.parametrize("each", ["mean", "residue"])
def test_contestants_give_the_same_embeddings(each: str, settings: Settings) -> None:
    figures = embed.run(case_of(embed.cases(settings), each), settings)
    assert figures["verdict"] == "measured"
    contestants = figures["contestants"]
    assert {"pipeline, batch 1", "pipeline, batch 8", "ours, fp32"} <= contestants.keys()
    for name, found in contestants.items():
        bound = 0.03 if "bf16" in name else embed.EXACT
        assert found["largest_relative_difference"] < bound, name
        assert found["residues_per_second"]["median"] > 0
    line = {"size": "8M", "contestant": each, "figures": figures}
    rows = embed.rows([line])
    assert [row[""] for row in rows] == list(contestants)
    assert all(set(row) == set(rows[0]) for row in rows)


def test_too_few_proteins_are_reported(settings: Settings) -> None:
    with pytest.raises(
        ValueError, match="proteins of at most 1022 residues; expected at least 500"
    ):
        drawn_proteins(settings, 500)


@pytest.mark.long
def test_users_get_answers(settings: Settings) -> None:
    figures = serve.run(case_of(serve.cases(settings), "users=8"), settings)
    assert figures["verdict"] == "measured" and figures["errors"] == 0, figures
    assert figures["requests"] > 0 and figures["residues_per_second"] > 0
    assert 0 < figures["p50_seconds"] <= figures["p99_seconds"]


class Broken(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_error(503, "full")

    def log_message(self, *arguments: object) -> None:
        pass


def test_answers_that_are_no_answers_are_errors() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Broken) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        figures = serve.load(server.server_port, 2, ["MKTAYIAKQR"], 0.0, 0.2)
        server.shutdown()
    assert figures["errors"] > 0 and figures["first_error"].startswith("503: ")
    assert figures["requests"] == figures["residues_per_second"] == 0
    # No server listens any more.
    figures = serve.load(server.server_port, 1, ["MKTAYIAKQR"], 0.0, 0.05)
    assert figures["first_error"].startswith("ConnectionRefusedError")


def test_without_the_servers_packages_the_verdict_says_so(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name in ("starlette", "uvicorn") else find(name),
    )
    figures = serve.run(serve.cases(settings)[0], settings)
    assert figures["verdict"] == "skipped"
    assert figures["error"].startswith("not installed: starlette, uvicorn")
    assert Path("requirements.txt").read_text().count("starlette")


def test_qlora_is_skipped_without_the_package_of_its_weights(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finetune, "find_spec", lambda name: None)
    (case,) = [case for case in finetune.cases(settings) if case.contestant == "qlora"]
    figures = finetune.run(case, settings)
    assert figures["verdict"] == "skipped"
    assert figures["error"].startswith("not installed: bitsandbytes")
    assert Path("requirements.txt").read_text().count("bitsandbytes")


@pytest.mark.long
def test_data_preparation_takes_turns_with_the_guidance(settings: Settings) -> None:
    (case,) = data.cases(settings)
    figures = data.run(case, settings)
    rates = figures["residues_per_core_second"]
    assert {*data.SCRIPTS, data.TOKENIZER, data.LOOK_UP} < rates.keys() and min(rates.values()) > 0
    assert min(figures["peak_memory_mib"].values()) > 0
    first, *others = data.rows([{"figures": figures}])
    assert first[""] == data.TOKENIZER and len(others) == len(rates) + 1
