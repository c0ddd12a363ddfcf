"""``seqlm runs`` lists the runs of a folder, and ``seqlm compare`` shows what differs between some."""

from __future__ import annotations

import fcntl
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from seqlm.__main__ import OTHERS
from seqlm.commands.run_list import MAX_LISTED
from seqlm.training.data.locks import try_lock
from tools.json_forms import RUN_COMMANDS, top_level

Capture = pytest.CaptureFixture[str]
STOP = {"kind": "event", "step": 7, "event": "stopped by SIGTERM"}


def write_run(folder: Path, name: str, **given: Any) -> Path:
    """Write a run; return its folder.

    Args:
        folder: folder of runs.
        name: name of the run.
        given: ``config``: sections of its run file; ``results``: its results; ``last``: last line of its
            record; ``age``: seconds since its last line.
    """
    run_dir = folder / name
    run_dir.mkdir(parents=True)
    sections = {"name": name, "task": None, "chat": None, **given.get("config", {})}
    (run_dir / "config.yaml").write_text(yaml.safe_dump(sections, sort_keys=False))
    lines = [
        {"kind": "train", "step": 5, "loss": 2.5, "residues": 500, "seconds": 61.0},
        {"kind": "eval", "step": 5, "split": "validation", "perplexity": 13.5, "eval_loss": 2.6},
        {"kind": "train", "step": 7, "loss": 2.4, "residues": 700, "seconds": 62.0},
    ]
    lines += [given["last"]] if "last" in given else []
    record = run_dir / "metrics.jsonl"
    record.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if "results" in given:
        (run_dir / "all_results.json").write_text(json.dumps(given["results"]))
    time = record.stat().st_mtime - given.get("age", 0)
    os.utime(record, (time, time))
    return run_dir


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    results = {
        "perplexity": 12.5,
        "start_seconds": 1.0,
        "train_runtime": 3600.0,
        "end_seconds": 2.0,
    }
    write_run(folder, "done", results=results, age=10)
    write_run(folder, "crashed", age=20)
    write_run(folder, "stopped", last=STOP, age=30)
    spearman = {"eval_spearman": 0.75, "eval_loss": 0.1}
    write_run(folder, "tuned", config={"task": {"kind": "regression"}}, results=spearman, age=40)
    (folder / "no_run").mkdir()
    (folder / "notes.txt").write_text("notes")
    return folder


def listed(folder: Path, *options: str, capsys: Capture) -> list[dict[str, Any]]:
    OTHERS["runs"].main([str(folder), "--json", *options])
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["result"]["runs"]
    return found


def refusal(command: str, *arguments: str, capsys: Capture) -> str:
    with pytest.raises(SystemExit) as caught:
        OTHERS[command].main(arguments)
    assert caught.value.code == 2
    return capsys.readouterr().err


def test_runs_are_listed_newest_first_with_state_and_score(runs: Path, capsys: Capture) -> None:
    found = listed(runs, capsys=capsys)
    assert [(run["name"], run["kind"], run["state"]) for run in found] == [
        ("done", "pretraining", "finished"),
        ("crashed", "pretraining", "failed"),
        ("stopped", "pretraining", "stopped"),
        ("tuned", "task", "finished"),
    ]
    assert [(run["score_name"], run["score"]) for run in found] == [
        ("perplexity", 12.5),
        ("perplexity", 13.5),
        ("perplexity", 13.5),
        ("eval_spearman", 0.75),
    ]
    assert [run["seconds"] for run in found] == [3603.0, 62.0, 62.0, 62.0]
    assert {run["step"] for run in found} == {7}


def test_a_run_whose_record_is_locked_is_running(runs: Path, capsys: Capture) -> None:
    lock = try_lock(runs / "crashed" / "metrics.jsonl")
    assert lock is not None
    with lock:
        found = listed(runs, "--state", "running", capsys=capsys)
        assert [run["name"] for run in found] == ["crashed"]
    assert not listed(runs, "--state", "running", capsys=capsys)


def test_a_run_with_damaged_results_is_not_finished(runs: Path, capsys: Capture) -> None:
    results = runs / "done" / "all_results.json"
    results.write_bytes(results.read_bytes()[:10])
    states = {run["name"]: run["state"] for run in listed(runs, capsys=capsys)}
    assert states["done"] != "finished"
    assert states["tuned"] == "finished"


def test_a_lock_file_that_a_kill_left_is_no_running_one(runs: Path, capsys: Capture) -> None:
    file = runs / "crashed" / ".locks" / "metrics.jsonl"
    file.parent.mkdir()
    file.touch()
    assert not listed(runs, "--state", "running", capsys=capsys)
    with file.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the list holds no lock


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--name", "*ed"], ["crashed", "stopped", "tuned"]),
        (["--kind", "task"], ["tuned"]),
        (["--state", "finished"], ["done", "tuned"]),
        (["--state", "failed", "--name", "d*"], []),
    ],
)
def test_filters(runs: Path, options: list[str], names: list[str], capsys: Capture) -> None:
    assert [run["name"] for run in listed(runs, *options, capsys=capsys)] == names


def test_a_long_list_is_cut_and_counted(tmp_path: Path, capsys: Capture) -> None:
    for number in range(MAX_LISTED + 2):
        write_run(tmp_path, f"run-{number}", age=number)
    OTHERS["runs"].main([str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + MAX_LISTED + 1
    assert lines[1].startswith("run-0 ")
    assert (
        lines[-1] == f"52 runs in {tmp_path}; the newest {MAX_LISTED} are listed, --all lists all"
    )
    assert len(listed(tmp_path, "--all", capsys=capsys)) == MAX_LISTED + 2


def test_the_list_reads_only_the_runs_that_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    for number in range(MAX_LISTED + 2):
        write_run(tmp_path, f"run-{number}", age=number)
    opened: list[str] = []
    real = Path.open

    def counted(path: Path, *arguments: Any, **named: Any) -> Any:
        opened.append(path.parent.name)
        return real(path, *arguments, **named)

    monkeypatch.setattr(Path, "open", counted)
    listed(tmp_path, capsys=capsys)
    assert set(opened) == {f"run-{number}" for number in range(MAX_LISTED)}


@pytest.mark.parametrize(("count", "text"), [(1, "1 run"), (2, "2 runs")])
def test_the_number_of_runs_is_the_last_line(
    count: int, text: str, tmp_path: Path, capsys: Capture
) -> None:
    for number in range(count):
        write_run(tmp_path, f"run-{number}", age=number)
    OTHERS["runs"].main([str(tmp_path)])
    assert capsys.readouterr().out.splitlines()[-1] == f"{text} in {tmp_path}"


def test_a_name_that_controls_the_terminal_is_escaped(tmp_path: Path, capsys: Capture) -> None:
    write_run(tmp_path, "a\x1b[31m")
    OTHERS["runs"].main([str(tmp_path)])
    assert "\x1b" not in capsys.readouterr().out


def test_a_folder_without_runs(tmp_path: Path, capsys: Capture) -> None:
    OTHERS["runs"].main([str(tmp_path)])
    assert capsys.readouterr().out.startswith(f"no runs in {tmp_path}; ")
    assert "give the folder of runs" in refusal("runs", str(tmp_path / "none"), capsys=capsys)


@pytest.fixture
def pair(tmp_path: Path) -> list[str]:
    results = {"perplexity": 12.5, "parameters": 7_500_000, "environment": {"torch": "2"}}
    slow = write_run(tmp_path, "slow", config={"optim": {"lr": 1e-4, "name": "adamw"}})
    fast = write_run(
        tmp_path,
        "fast",
        config={"optim": {"lr": 4e-4, "name": "adamw"}, "lora": {"rank": 8}},
        results=results,
    )
    return [str(slow), str(fast)]


def test_only_fields_that_differ_are_compared(pair: list[str], capsys: Capture) -> None:
    OTHERS["compare"].main([*pair, "--json"])
    found = json.loads(capsys.readouterr().out)["result"]
    assert found["fields"] == {
        "optim.lr": {"slow": 1e-4, "fast": 4e-4},
        "lora.rank": {"slow": None, "fast": 8},
    }
    assert found["scores"]["perplexity"] == {"slow": 13.5, "fast": 12.5}
    assert found["scores"]["parameters"] == {"slow": None, "fast": 7_500_000}
    assert "environment.torch" not in found["scores"]
    assert found["notes"] == ["Not finished, so the scores are the last of the record: slow."]


def test_the_comparison_is_a_table_and_a_page(
    pair: list[str], tmp_path: Path, capsys: Capture
) -> None:
    page = tmp_path / "compared.html"
    OTHERS["compare"].main([*pair, "--page", str(page)])
    out = capsys.readouterr().out
    assert [line.split() for line in out.splitlines()[:3]] == [
        ["field", "slow", "fast"],
        ["optim.lr", "0.0001", "0.0004"],
        ["lora.rank", "\N{EN DASH}", "8"],
    ]
    text = page.read_text()
    assert "<svg" in text
    assert "optim.lr" in text
    assert "7,500,000" in text


def test_a_page_leaves_one_document_on_standard_output(
    pair: list[str], tmp_path: Path, capsys: Capture
) -> None:
    page = tmp_path / "compared.html"
    OTHERS["compare"].main([*pair, "--json", "--page", str(page)])
    assert json.loads(capsys.readouterr().out)["command"] == "compare"
    assert page.exists()


@pytest.mark.parametrize(
    ("name", "word", "message"),
    [("runs", "absent", "folder: got 'absent'"), ("compare", "absent", "RUN: got 1 runs")],
)
def test_errors_have_a_document(name: str, word: str, message: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        OTHERS[name].main([word, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert (document["command"], document["exit_status"]) == (name, 2)
    assert document["error"].startswith(message)
    assert document["result"] == dict.fromkeys(top_level(RUN_COMMANDS[name].fields))


def test_runs_of_different_kinds_are_said_to_be(tmp_path: Path, capsys: Capture) -> None:
    one = write_run(tmp_path, "one", results={"perplexity": 12.0})
    other = write_run(
        tmp_path, "other", config={"task": {"kind": "regression"}}, results={"eval_loss": 1.0}
    )
    OTHERS["compare"].main([str(one), str(other), "--json"])
    notes = json.loads(capsys.readouterr().out)["result"]["notes"]
    assert notes == [
        "The runs are of different kinds (pretraining, task), whose losses do not compare."
    ]


def test_scores_that_json_lacks_are_null(tmp_path: Path, capsys: Capture) -> None:
    paths = [
        str(write_run(tmp_path, name, results={"perplexity": value}))
        for name, value in (("diverged", math.inf), ("good", 12.0))
    ]
    OTHERS["compare"].main([*paths, "--json"])
    scores = json.loads(capsys.readouterr().out)["result"]["scores"]
    assert scores["perplexity"] == {"diverged": None, "good": 12.0}


def test_runs_of_one_name_are_called_by_their_paths(tmp_path: Path, capsys: Capture) -> None:
    paths = [str(write_run(tmp_path / folder, "same")) for folder in ("a", "b")]
    OTHERS["compare"].main([*paths, "--json"])
    assert set(json.loads(capsys.readouterr().out)["result"]["scores"]["step"]) == set(paths)


def test_runs_that_cannot_be_compared_are_refused(pair: list[str], capsys: Capture) -> None:
    assert "got 1 runs; from 2 to 6" in refusal("compare", pair[0], capsys=capsys)
    assert "twice; name different runs" in refusal("compare", pair[0], pair[0], capsys=capsys)
    text = refusal("compare", pair[0], "missing", capsys=capsys)
    assert "got 'missing', which holds no metrics.jsonl" in text
