"""The acceptance run: its cases, each rehearsed with a tiny model, and what becomes of those that fail."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from benchmarks import report
from benchmarks.acceptance import LINES_FILE, main
from benchmarks.case import Case, Settings, read_lines
from benchmarks.report import write_tables
from benchmarks.stages import attention, ceilings, kernels, profile, quality, speed, versus
from seqlm.training.kernels import KERNELS
from tests.benchmarks.forked_workers import CONTEXT, ForkedWorker, start_server

REPOSITORY = Path(__file__).parents[2]
STAGES = {
    stage.__name__.rpartition(".")[2]: stage
    for stage in (ceilings, profile, speed, quality, attention, kernels)
}
"""``versus`` starts processes of its own."""
FAKE_STAGE = """
import os, time, torch
from benchmarks.case import Case

warmed = []

def cases(settings):
    contestants = {"fails": 1, "hangs": -28, "full": 1, "killed": 1, "works": 1, "long": 10_000}
    found = [Case("fake", "-", name, "x=1", seconds) for name, seconds in contestants.items()]
    found.append(Case("fake", "-", "cut", "x=1", -28, warm_seconds=1))
    found.append(Case("fake", "-", "last", "x=1", 1, process="one", slows_process=True))
    found.append(Case("fake", "-", "first", "x=1", 1, warm_seconds=1, process="one"))
    found.append(Case("fake", "-", "beside", "x=1", 1, is_timed=False))
    return found

def run(case, settings):
    if settings.is_warm_up:
        settings.record({"rate": "of a warm-up"})
        warmed.append(case.contestant)
        return {}
    if case.contestant in ("first", "last", "beside"):
        return {"process": os.getpid(), "warmed": list(warmed), "window": settings.window}
    if case.contestant == "cut":
        settings.record({"rate": 1.0})
        settings.record({"rate": 1.0, "later": 2.0})
        time.sleep(1000)
    if case.contestant == "fails":
        raise ValueError("the reason")
    if case.contestant == "hangs":
        time.sleep(1000)
    if case.contestant == "full":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    if case.contestant == "killed":
        os.kill(os.getpid(), 9)
    return {"rate": 1234.5, "verdict": "passed"}
"""
"""A deadline is twice the expected time and a minute: 4 seconds for the case that hangs."""


@pytest.fixture
def settings(data: Path) -> Settings:
    return Settings(data, torch.device("cpu"), rehearsal=True)


SAME_AT_ALL_SIZES = ("attention", "kernels")
"""Stages that rehearse every size with the same tiny model and packs of the same length."""


def rehearsed_cases() -> list[Case]:
    """Cases of a GPU; of those that differ in their numbers alone, one."""
    settings = Settings(Path("unused"), torch.device("cpu"), rehearsal=True)
    found = [case for stage in STAGES.values() for case in stage.cases(settings)]
    sizes = {case: "" if case.stage in SAME_AT_ALL_SIZES else case.size for case in found}
    return list(
        {
            (case.stage, sizes[case], case.contestant, tuple(case.values)): case for case in found
        }.values()
    )


@pytest.mark.long
@pytest.mark.parametrize("case", rehearsed_cases(), ids=lambda case: case.id)
def test_case(case: Case, settings: Settings) -> None:
    found = STAGES[case.stage].run(case, settings)
    json.dumps(found)
    if case.stage == "speed":
        one = found["one_pack_steps"]
        recipe = found["recipe"]
        assert (one["steps"], recipe["steps"]) == (1, 1)
        assert recipe["is_computed"] == (case.size not in ("8M", "35M", "150M"))
        assert 0.5 < one["fill"] <= 1 and recipe["residues_per_second"] > 0
    if case.stage == "profile":
        assert found["shares"]["products"] > 0 and 0 < found["busy_share"] <= 1
        assert found["ms_per_step"]["masking"] > 0
        assert 0 < found["host_ms_masking"] < found["host_ms_per_step"] <= found["step_ms"]
    if case.stage == "attention":
        assert found["attention"]["torch"]["forward_ms"] > 0 and "none" in found["layer"]
    if case.stage == "kernels":
        assert {*found["kernels"], *found["missing"]} == {*KERNELS}
    if case.stage == "quality":
        residues = [point["residues"] for point in found["points"]]
        assert residues == sorted(residues) and residues[-1] == pytest.approx(30_000, rel=0.35)
        assert found["points"][-1]["loss"] < found["points"][0]["loss"]


@pytest.mark.long
def test_contestants_in_turns(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    # A fork of a process that has imported everything. After CUDA's start only a new one will do.
    start_server()
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: CONTEXT)
    recorded: list[dict[str, Any]] = []
    settings = replace(settings, record=recorded.append)
    found = versus.run(versus.cases(settings)[0], settings)
    # After each window, with the ratios of the rounds so far.
    assert len(recorded) == 4 * versus.ROUNDS["cpu"]
    assert list(recorded[0]["contestants"]) == ["guidance"] and not recorded[0]["ratios"]
    assert recorded[-1] == found
    assert (
        list(found["contestants"]) == ["guidance", "tuned", "packed", "ours"]
        and found["verdict"] == "measured"
    )
    assert set(found["ratios"]) == {"guidance", "tuned", "packed"} and not found["errors"]
    assert {one["steps"] for one in found["contestants"].values()} == {versus.ROUNDS["cpu"]}
    assert found["contestants"]["guidance"]["fill"] < found["contestants"]["ours"]["fill"]


def run_here(
    *arguments: object, out: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[list[dict[str, Any]], str]:
    """Lines and messages of an acceptance run in this process, whose workers are forked."""
    has_failed = False
    with (
        mock.patch.dict(os.environ, GIT_SHA="abc", CUDA_VISIBLE_DEVICES=""),
        mock.patch.object(subprocess, "Popen", ForkedWorker),
    ):
        try:
            main([*map(str, arguments), "--out", str(out)])
        except SystemExit as end:
            assert end.code == 1, end
            has_failed = True
    said = capsys.readouterr().err
    assert has_failed == (" failed" in said.splitlines()[-1]), said
    return read_lines([out / LINES_FILE]), said


def run(*arguments: object, out: Path, fake: Path) -> list[dict[str, Any]]:
    """Lines of a run that also finds the stages in ``fake``, in processes as a user starts them."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.acceptance",
        *map(str, arguments),
        "--out",
        str(out),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{REPOSITORY}/workloads:{REPOSITORY}:{fake}",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return read_lines([out / LINES_FILE])


@pytest.mark.long
def test_no_case_ends_another(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stages = tmp_path / "benchmarks" / "stages"
    stages.mkdir(parents=True)
    (stages / "fake.py").write_text(FAKE_STAGE)
    (stages / "broken.py").write_text("import a_package_that_is_missing\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    given = ("--data", data, "--stages", "broken,fake", "--until", "1000", "--window", "3")
    lines, said = run_here(*given, out=tmp_path / "out", capsys=capsys)
    found = {line["contestant"]: line for line in lines}  # the last line of each case
    assert {name: line["verdict"] for name, line in found.items()} == {
        "-": "failed",
        "fails": "failed",
        "hangs": "failed",
        "full": "out of memory",
        "killed": "failed",
        "works": "passed",
        "cut": "incomplete",
        "first": "measured",
        "last": "measured",
        "beside": "measured",
    }
    parts = [line for line in lines if line["contestant"] == "cut"]
    assert [line["figures"] for line in parts] == [
        {"rate": 1.0},
        {"rate": 1.0, "later": 2.0},
        {"rate": 1.0, "later": 2.0},
    ]
    assert parts[-1]["error"].startswith("still running after 4 s")
    # Cases that share a process come in the order of their effect on it, after its warm-up.
    first, last, beside = (found[name]["figures"] for name in ("first", "last", "beside"))
    assert lines.index(found["beside"]) < lines.index(found["first"]) < lines.index(found["last"])
    assert first["process"] == last["process"] != beside["process"]
    assert first["warmed"] == last["warmed"] == ["first"] and not beside["warmed"]
    assert {line["window"] for line in lines} == {3.0} and first["window"] == 3.0
    assert {line["kernels"] for line in lines} == {"auto"}
    assert "warm_seconds" in found["first"] and found["first"]["expected_seconds"] == 1
    assert "a_package_that_is_missing" in found["-"]["error"]
    assert found["fails"]["error"].endswith("ValueError: the reason")
    assert found["hangs"]["error"].startswith("still running after 4 s")
    assert "2.00 GiB" in found["full"]["error"] and "SIGKILL" in found["killed"]["error"]
    works = found["works"]
    assert works["figures"] == {"rate": 1234.5} and works["commit"] == "abc" and works["processor"]
    assert works["versions"]["torch"] == torch.__version__ and "--until 1000" in works["command"]
    assert "fake/-/long/x=1: not started" in said
    # What is done, elsewhere too, is not run again; what failed is.
    again = ("--data", data, "--stages", "fake", "--only", "/fails/", "/works/", "/full/", "/cut/")
    before = ("--done", tmp_path / "out" / LINES_FILE)
    lines, said = run_here(*again, *before, out=tmp_path / "next", capsys=capsys)
    assert [line["contestant"] for line in lines] == ["fails", "cut", "cut", "cut"]
    assert "done before: fake/-/full/x=1, fake/-/works/x=1" in said
    # Lines of other kernels are those of other cases.
    others = ("--data", data, "--stages", "fake", "--only", "/works/", "--kernels", "off")
    lines = run(*others, *before, out=tmp_path / "off", fake=tmp_path)
    assert [(line["contestant"], line["kernels"]) for line in lines] == [("works", "off")]


def test_unknown_kernels(data: Path, tmp_path: Path) -> None:
    given = ["--stages", "ceilings", "--kernels", "atention", "--data", str(data)]
    message = r"--kernels: got atention; allowed are auto, off, or attention, products"
    with pytest.raises(SystemExit, match=message):
        main([*given, "--out", str(tmp_path)])


def test_unknown_stage(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"--stages: got sped; allowed are ceilings,"):
        main(["--stages", "sped", "--out", str(tmp_path)])


def line(
    device: str, contestant: str, verdict: str, rate: float, rehearsal: bool = False
) -> dict[str, Any]:
    return {
        "stage": "ceilings", "size": "-", "contestant": contestant, "shape": "all", "verdict": verdict,
        "figures": {"products_flops_per_second": {"largest": rate}, "copy_bytes_per_second": 3.1e12},
        "device": device, "commit": "0123456789", "rehearsal": rehearsal,
        "versions": {"torch": "2.11.0", "transformers": "5.17.0", "python": "3.12.3", "cuda": None},
    }  # fmt: skip


def test_report_writes_a_table_for_each_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path / "committed")
    lines = [
        line("NVIDIA H100", "machine", "measured", 700e12),
        line("NVIDIA H100", "machine", "measured", 790e12),  # the same case, later
        line("NVIDIA H100", "other", "out of memory", 0),
        line("NVIDIA H200", "machine", "measured", 800e12),
        line("NVIDIA H200", "machine", "incomplete", 1e12),
        line("NVIDIA H200", "cut", "incomplete", 1e12),
        {**line("NVIDIA H200", "machine", "measured", 2e12), "kernels": "off"},
        line("NVIDIA H200", "missing", "skipped", 1e12),
        line("CPU", "machine", "measured", 1e12, rehearsal=True),
        line("CPU", "machine", "failed", 2e12),
    ]
    file = tmp_path / "lines.jsonl"
    document = tmp_path / "page.md"
    file.write_text("\n".join(map(json.dumps, lines)) + '\n{"cut off')
    document.write_text(
        "Before\n<!-- acceptance:ceilings -->\nold\n<!-- /acceptance:ceilings -->\nAfter\n"
    )
    assert write_tables([file], [document]) == [str(document)]
    text = document.read_text()
    assert text.startswith("Before\n<!--") and text.endswith("-->\nAfter\n") and "old" not in text
    h100, h200 = text.split("**NVIDIA H200**")
    assert "**NVIDIA H100**, torch 2.11.0" in h100 and "commit 0123456:" in h100
    assert "| largest | 790.0 |" in h100 and "700.0" not in text and "| largest | 800.0 |" in h200
    assert "Out of memory: `ceilings/-/other/all`." in h100 and "CPU" not in text
    assert "Incomplete, not in the table: `ceilings/-/cut/all`." in h200
    assert "| 1.0 |" not in text and "| 2.0 |" not in text and "missing" not in text
    assert write_tables([file], [document]) == []
    # A later report from another device's lines keeps those that are committed.
    (tmp_path / "committed").mkdir()
    file.rename(tmp_path / "committed" / "gpu.jsonl")
    file.write_text(json.dumps(line("CPU", "machine", "measured", 1e12)))
    write_tables([file], [document])
    assert "**CPU**" in document.read_text() and "**NVIDIA H200**" in document.read_text()


def test_documents_hold_the_committed_figures(tmp_path: Path) -> None:
    for path in (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))):
        copy = tmp_path / path.name
        copy.write_text(path.read_text())
        assert write_tables([], [copy]) == [], (
            f"make bench-report: {path} differs from benchmarks/results"
        )
