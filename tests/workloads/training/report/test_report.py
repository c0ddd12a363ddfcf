"""The report: whole for a finished run, honest for one that is not, and closed to the outside."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from seqlm.__main__ import write_report as main
from seqlm.commands.kinds import report
from seqlm.runs.run_file import RunFile
from seqlm.training.config import TrackingConfig, TrainConfig
from seqlm.training.report.figures import running_mean
from seqlm.training.report.page import Card, card_block
from seqlm.training.tracking.run_log import RunLog, write_results
from tests.workloads.training.training_runs import figures_not_drawn

HOSTILE = '<script src="https://evil.example/x.js">alert(1)</script>&"\'$x_{'
# Elements of HTML and SVG that have no end tag.
VOID = {"meta", "link", "br", "img"}
LOADING_ATTRIBUTES = {
    "src",
    "srcset",
    "data",
    "action",
    "poster",
    "background",
    "ping",
    "formaction",
}


class Page(HTMLParser):
    """Collects what a browser would see, and asserts that every element is closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text += data + "\n"


def _read(path: Path) -> Page:
    return Page(path.read_text())


def _line(step: int, **changes: Any) -> dict[str, Any]:
    values = {
        "loss": 3 - step / 100,
        "learning_rate": step * 1e-5,
        "grad_norm": 1.0,
        "residues": step * 1000,
        "residues_per_second": 5000.0,
        "fill": 0.97,
        "mfu": None,
        "peak_memory_bytes": None,
        "seconds": step * 0.2,
    }
    return {"kind": "train", "step": step, **values, **changes}


def _write(run_dir: Path, lines: list[dict[str, Any]]) -> None:
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


RESULTS = {
    "perplexity": 14.3,
    "eval_accuracy": 0.209,
    "test_perplexity": 14.45,
    "unigram_perplexity": 17.9,
    "train_residues": 31_000_000,
    "train_residues_per_second": 51_700.0,
    "fill": 0.978,
    "mfu": 0.31,
    "steady_residues_per_second": 61_200.0,
    "model_mfu": 0.372,
    "executed_mfu": 0.366,
    "ceiling_flops_per_second": 781e12,
    "share_of_ceiling": 0.463,
    "length_weighted_mean_length": 414.4,
    "peak_memory_bytes": 11 << 30,
    "environment": {
        "torch": "2.13.0",
        "git_sha": "0123456789abcdef" * 2,
        "gpus": {"name": "H200", "count": 8},
    },
}


@pytest.fixture
def undrawn() -> Iterator[None]:
    with figures_not_drawn():
        yield


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    return write_finished(tmp_path)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a finished run, with its figures."""
    run_dir = write_finished(tmp_path_factory.mktemp("drawn"))
    path = report(run_dir)
    assert path == run_dir / "report.html"
    return path.read_text()


def write_finished(folder: Path) -> Path:
    """Write a run as the training loop leaves it, data folder included; return its folder."""
    run_dir = folder / "runs" / "r"
    data = folder / "data"
    data.mkdir()
    split = {
        "records": 90,
        "clusters": 80,
        "residues": 27_000,
        "length_histogram": {"64": 60, "1024": 30},
    }
    manifest = {
        "sources": [{"name": "proteins.fasta.gz", "bytes": 4096, "sha256": "ab" * 32}],
        "seed": 7,
        "duplicates_dropped": 3,
        "splits": {"train": split, "validation": split | {"records": 5}},
    }
    (data / "manifest.json").write_text(json.dumps(manifest))
    config = RunFile(name="r").to_dict()
    config["data"]["path"] = str(data)
    tracking = TrackingConfig(mlflow=False)
    log = RunLog(run_dir, config=config, tracking=tracking, max_steps=100, enabled=True)
    for step in range(10, 101, 10):
        values = _line(step)
        log.train(step, **{name: values[name] for name in values.keys() - {"kind", "step"}})
    log.event(50, "checkpoint")
    log.event(50, "resumed", lost_steps=7)
    log.evaluation(100, "validation", eval_loss=2.66, eval_accuracy=0.209, perplexity=14.3)
    log.evaluation(100, "test", eval_loss=2.671, eval_accuracy=0.208, perplexity=14.45)
    log.close("FINISHED")
    write_results(run_dir, RESULTS)
    return run_dir


IN_A_FINISHED_REPORT = [
    "14.30",
    "test 14.45, unigram 17.90",
    "20.9%",
    "61.2 k",
    "97.8%",
    "37.2%",
    "31 M",
    "11 GiB",
    "Executed MFU",
    "36.6%",
    "Share of the ceiling",
    "46.3%",
    "781 TFLOP/s",
    "Mean length",
    "414",
    "finished",
    "ESM-2 8M, DDP, adamw",
    "residue frequencies alone (perplexity 17.9)",
    "Evaluations",
    "2.6600",
    "2.6710",
    "Data",
    "Lengths of proteins",
    "proteins.fasta.gz",
    "4 KiB",
    "abababababababab",
    "Environment",
    "gpus.name",
    "H200",
    "Configuration",
    "optim.lr",
    "0.0004",
    "Events (2)",
    "resumed, lost steps 7",
]


def test_a_report_of_a_finished_run_is_complete(drawn: str) -> None:
    page = Page(drawn)
    for expected in IN_A_FINISHED_REPORT:
        assert expected in page.text, expected
    assert page.tags["svg"] == 6, "loss, throughput, learning rate, gradient norm, fill, lengths"


def test_figures_follow_the_theme_and_name_their_marks(drawn: str) -> None:
    drawings = re.findall(r"<svg.*?</svg>", drawn, flags=re.DOTALL)
    for drawing in drawings:
        assert "var(--ink)" in drawing
        assert not re.search(r": #(ffffff|1f2937|e5e7eb|0072b2)", drawing)
    assert [">checkpoint</text>" in drawing for drawing in drawings] == [True] + [False] * 5
    assert "0123456789abcdef" * 2 in drawn
    assert re.search(r"<details><summary>Configuration</summary>.*optim\.lr", drawn)


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (6, 6), (7, 4), (11, 6), (13, 5)])
def test_cards_have_no_nearly_empty_row(count: int, columns: int) -> None:
    block = card_block([Card("a", "1")] * count + [Card("not measured", None)])
    assert block.count('class="card"') == count
    assert f"--columns: {columns}" in block


@pytest.mark.usefixtures("undrawn")
def test_results_of_an_earlier_version_are_shown_with_what_they_have(finished: Path) -> None:
    old = {
        name: value
        for name, value in RESULTS.items()
        if name in ("train_residues_per_second", "mfu")
    }
    write_results(finished, old)
    text = _read(report(finished)).text
    assert "51.7 k" in text and "31.0%" in text and "steady" not in text
    assert "Executed MFU" not in text and "ceiling" not in text and "Mean length" not in text


@pytest.mark.usefixtures("undrawn")
def test_a_cpu_has_a_ceiling_and_no_peak(finished: Path) -> None:
    write_results(finished, RESULTS | {"mfu": None, "model_mfu": None, "executed_mfu": None})
    text = _read(report(finished)).text
    assert "MFU" not in text and "46.3%" in text


def test_a_report_sends_no_requests(drawn: str) -> None:
    page = Page(drawn)
    assert "http://" not in drawn
    assert "https://" not in drawn
    assert not re.search(r"@import|javascript:|url\((?!#)", drawn)
    assert page.tags.keys().isdisjoint(
        {"script", "link", "img", "image", "iframe", "object", "embed", "base"}
    )
    assert LOADING_ATTRIBUTES.isdisjoint(name for _, name, _ in page.attributes)
    links = [value for _, name, value in page.attributes if name.endswith("href")]
    assert all(link.startswith("#") for link in links)
    assert ("meta", "content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes


def test_the_ids_of_figures_do_not_clash_and_all_resolve(drawn: str) -> None:
    page = Page(drawn)
    assert [name for name, count in Counter(page.ids).items() if count > 1] == []
    used = set(re.findall(r"url\(#([^)]+)\)", drawn)) | set(re.findall(r'href="#([^"]+)"', drawn))
    assert used
    assert used <= set(page.ids)


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    run_dir = tmp_path / "r"
    events = [{"kind": "event", "step": 5, "event": HOSTILE}]
    evaluation = {"kind": "eval", "step": 5, "split": HOSTILE, HOSTILE: HOSTILE, "eval_loss": 2.0}
    _write(run_dir, [_line(5), _line(6), *events, evaluation])
    data = tmp_path / "data"
    data.mkdir()
    split = {"records": HOSTILE, "length_histogram": {}}
    source = {"name": HOSTILE, "bytes": 1, "sha256": HOSTILE}
    (data / "manifest.json").write_text(
        json.dumps({"sources": [source], "splits": {HOSTILE: split}})
    )
    config = {
        "name": HOSTILE,
        "model": {"size": HOSTILE},
        HOSTILE: HOSTILE,
        "data": {"path": str(data)},
    }
    (run_dir / "config.yaml").write_text(yaml.safe_dump(config))
    write_results(run_dir, {HOSTILE: HOSTILE, "environment": {HOSTILE: HOSTILE}})
    page = _read(report(run_dir))
    assert page.tags["script"] == 0
    assert LOADING_ATTRIBUTES.isdisjoint(name for _, name, _ in page.attributes)
    assert page.text.count(HOSTILE) >= 10


@pytest.mark.usefixtures("undrawn")
def test_a_running_or_crashed_run_has_a_report(tmp_path: Path) -> None:
    _write(tmp_path, [_line(step) for step in range(10, 60, 10)])
    with (tmp_path / "metrics.jsonl").open("a") as stream:
        stream.write('{"kind": "train", "st')
    config = RunFile(name="r", train=TrainConfig(max_steps=1000))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config.to_dict()))
    page = _read(report(tmp_path))
    assert "unfinished: the record ends at step 50 of 1,000" in page.text
    assert "5 k" in page.text, "the speed is the median of the last lines"
    assert "MFU" not in page.text, "what was not measured has no card"
    assert "Validation perplexity" not in page.text


@pytest.mark.long
@pytest.mark.parametrize(
    "lines",
    [
        [],
        [{"kind": "event", "step": 0, "event": "started"}],
        [_line(1)],
        [{"kind": "eval", "split": "validation", "step": 0, "eval_loss": 3.2, "perplexity": 24.5}],
        [_line(1, loss=None, grad_norm=None), _line(2, loss=None, grad_norm=None)],
        [_line(step, residues=0) for step in (1, 2, 3)],
        [{"kind": "train", "step": step, "loss": 2.0} for step in (1, 2, 3)],
        [_line(step, loss=2.0, learning_rate=0.0, grad_norm=0.0) for step in range(1, 40)],
        [_line(step, grad_norm=10.0**step) for step in range(1, 9)],
        [_line(step, loss=10.0**step) for step in range(1, 9)],
        [_line(1), _line(1), _line(2)],
    ],
    ids=[
        "empty",
        "an event",
        "one line",
        "one evaluation",
        "no values",
        "no residues",
        "loss only",
        "constant",
        "exploding norm",
        "exploding loss",
        "repeated step",
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_record_with_little_in_it_has_a_report(
    lines: list[dict[str, Any]], tmp_path: Path
) -> None:
    _write(tmp_path, lines)
    _read(report(tmp_path))


def test_perplexity_over_more_than_a_power_of_ten_has_ticks_at_these(tmp_path: Path) -> None:
    _write(tmp_path, [_line(step, loss=7.2 / step) for step in range(1, 21)])
    shown = re.findall(r">(10*)</text>", report(tmp_path).read_text())
    assert {"1", "10", "100", "1000"} <= set(shown)


@pytest.mark.parametrize("changes", [{}, {"grad_norm": [10.0**step for step in range(9)]}])
def test_numbers_at_axes_are_no_formulas(tmp_path: Path, changes: dict[str, list[float]]) -> None:
    """Formulas of text are switched off, so that one would show as its source."""
    lines = [
        _line(step, **{name: values[step] for name, values in changes.items()})
        for step in range(1, 9)
    ]
    _write(tmp_path, lines)
    page = report(tmp_path).read_text()
    assert "learning-rate" in page
    assert "$" not in page.partition("<body")[2]


@pytest.mark.usefixtures("undrawn")
def test_files_beside_the_record_may_be_damaged(tmp_path: Path) -> None:
    _write(tmp_path, [_line(1), _line(2)])
    (tmp_path / "config.yaml").write_text("{: ")
    (tmp_path / "all_results.json").write_text('{"perplexity": 1')
    assert "unfinished" in _read(report(tmp_path)).text


@pytest.mark.long
def test_a_long_run_stays_a_small_file(tmp_path: Path) -> None:
    _write(tmp_path, [_line(step, loss=2 + math.sin(step)) for step in range(1, 20_001)])
    assert report(tmp_path).stat().st_size < 1_000_000


def test_a_folder_without_a_record_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=rf"{tmp_path} holds no metrics\.jsonl, .*<runs>/<name>"):
        report(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path / "none")])
    assert ended.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"{tmp_path / 'none'} holds no metrics.jsonl" in captured.err


@pytest.mark.usefixtures("undrawn")
def test_the_command_prints_where_the_report_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write(tmp_path, [_line(1)])
    main([str(tmp_path)])
    assert capsys.readouterr().out.strip() == str(tmp_path / "report.html")


def test_smoothing_keeps_level_slope_and_ends() -> None:
    line = np.linspace(3, 2, 500)
    np.testing.assert_allclose(running_mean(line), line)
    np.testing.assert_allclose(running_mean(np.array([1.0])), [1.0])


def test_a_running_mean_is_smoother_than_its_curve() -> None:
    noise = np.random.default_rng(0).normal(size=2000)
    assert running_mean(noise).std() < 0.3 * noise.std()
