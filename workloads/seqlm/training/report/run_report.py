"""Report of a run, ``report.html``: one file that opens anywhere and loads nothing from a server.

It is made from the files of the run, which may be running, finished or killed. ``ReportContents`` has the
sections that depend on the objective of a run.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from seqlm.training.config import flat
from seqlm.training.data.manifest import MANIFEST_FILE
from seqlm.training.strict_yaml import read_mapping
from seqlm.training.tracking.run_log import (
    CONFIG_FILE,
    METRICS_FILE,
    REPORT_FILE,
    RESULTS_FILE,
)
from seqlm.training.whole_file import write_whole

from .figures import History, curve_figure, length_figure, loss_figure
from .page import (
    Card,
    as_number,
    as_text,
    binary_bytes,
    card_block,
    definition_table,
    details,
    figure_block,
    first_number,
    formatted,
    note,
    or_nan,
    page,
    section,
    si,
    table,
)
from .run_record import FIRST_EVALUATIONS, LAST_EVALUATIONS, Lines, RunRecord

MAX_SOURCES_SHOWN = 50
"""Source files that are shown."""
MAX_SHA256_CHARS = 16
"""Number of the first characters of a SHA-256 that are shown."""
COLUMN_FORMATS = {
    "eval_loss": "{:.4f}",
    "perplexity": "{:.2f}",
    "eval_accuracy": "{:.1%}",
    "eval_runtime": "{:.1f}",
}
"""Formats of columns in the table of evaluations."""
SCORE_FORMAT = "{:.4f}"
"""Format of the other scores in this table."""


class ReportContents:
    """Report sections that depend on the objective of a run, by default those of a language model."""

    unit = "tokens"
    """Word for the tokens."""
    records = "records"
    """Word for the records."""
    groups = "clusters"
    """Word for the groups of records that a split never divides."""
    predicted: str | None = "token"
    """Word for a target of the cross-entropy loss; None for another loss."""
    parameters_note = ""
    """Note on the number of trained parameters."""
    score_titles: Mapping[str, str] = {}
    """Titles of scores by their names in the log, without ``eval_``."""

    def read(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        """Read files of the run, as far as they exist."""

    def cards(self, evaluations: Lines, results: Mapping[str, Any]) -> list[Card]:
        """Return the cards of the headline scores."""
        known = {name: value for name, value in results.items() if value is not None}
        scores = {**last_validation(evaluations), **known}
        perplexity = as_number(scores.get("perplexity"))
        accuracy = as_number(scores.get("eval_accuracy"))
        notes = []
        for name in ("test", "unigram"):
            value = first_number(results.get(f"{name}_perplexity"))
            if value is not None:
                notes.append(f"{name} {value:.2f}")
        scored = results.get("scored")
        if isinstance(scored, str):
            notes.append(f"scored {scored}")
        test_accuracy = first_number(results.get("test_accuracy"))
        about = f"of {self.predicted}s" if test_accuracy is None else f"test {test_accuracy:.1%}"
        return [
            Card("Validation perplexity", formatted(perplexity, "{:.2f}"), ", ".join(notes)),
            Card("Validation accuracy", formatted(accuracy, "{:.1%}"), about),
        ]

    def section(self, results: Mapping[str, Any]) -> str:
        """Return HTML between the loss and the figures of the training; empty for none."""
        return ""

    def data_facts(self, manifest: Mapping[str, Any]) -> dict[str, str]:
        """Return further rows of the table of the data, by their titles."""
        return {}

    def crop_tokens(self, config: Mapping[str, Any]) -> int | None:
        """Return the length to which records are cropped; None if they are not."""
        return None

    def subtitle(self, config: Mapping[str, Any]) -> str:
        """Return the name of the trained model, in a word or two; empty if it starts from another model."""
        return ""


def last_validation(evaluations: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the last evaluation of the validation split; empty if there is none."""
    return next((line for line in reversed(evaluations) if line.get("split") == "validation"), {})


def write_report(run_dir: Path, contents: ReportContents) -> Path:
    """Write ``report.html`` into ``run_dir`` from the files there.

    Args:
        run_dir: folder of the run.
        contents: sections that depend on the objective of the run.

    Raises:
        ValueError: if the folder holds no record of a run, or a damaged one.
    """
    try:
        record = RunRecord(run_dir / METRICS_FILE)
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(
            f"{run_dir} holds no {METRICS_FILE}, so no run has written there yet; "
            "give the folder of a run, <runs>/<name>"
        ) from None
    config = read_mapping(run_dir / CONFIG_FILE)
    results = read_mapping(run_dir / RESULTS_FILE)
    contents.read(run_dir, config)
    path = run_dir / REPORT_FILE
    write_whole(path, _report(run_dir.resolve().name, record, config, results, contents))
    return path


def _report(
    folder: str,
    record: RunRecord,
    config: Mapping[str, Any],
    results: Mapping[str, Any],
    contents: ReportContents,
) -> str:
    history = history_of(record, contents.unit)
    manifest_path = Path(str(_get(config, "data", "path"))) / MANIFEST_FILE
    manifest = read_mapping(manifest_path)
    loss = loss_figure(
        history,
        record.marked_evaluations,
        as_number(results.get("unigram_perplexity")),
        predicted=contents.predicted,
    )
    scores = contents.section(results)
    body = [
        _cards(contents, record, results, _get(config, "train", "max_steps")),
        figure_block(f"Training loss and evaluations over real {contents.unit}", loss, wide=True),
        _curves_note(record),
        scores,
        "<h2>Training</h2>" if scores else "",
        _training_figures(history),
        _evaluation_table(record, contents),
        _data_section(manifest, manifest_path, contents.crop_tokens(config), contents),
        _event_table(record),
        section("Environment", definition_table(flat(results.get("environment") or {}))),
        details("Configuration", definition_table(flat(config))),
    ]
    plain = {name: value for name, value in results.items() if name != "environment"}
    if plain:
        body.append(details("All results", definition_table(flat(plain))))
    return page(
        str(config.get("name") or folder),
        _subtitle(config, contents),
        _state(record.last_step, config, results),
        body,
    )


class _Curve(NamedTuple):
    """Figure of one column of the training lines."""

    column: str
    title: str
    unit: str
    """Label of the vertical axis."""
    smooth: bool = False
    """Whether to draw a running mean, too."""


def _training_figures(history: History) -> str:
    """Return the figures of speed, learning rate, gradient norm and fill, in a grid."""
    curves = [
        _Curve("residues_per_second", "Throughput", f"real {history.unit} per second"),
        _Curve("learning_rate", "Learning rate", "peak of the groups"),
        _Curve("grad_norm", "Gradient norm", "before clipping", smooth=True),
        _Curve("fill", "Fill", "share of tokens that are real"),
    ]
    blocks: list[str] = []
    for curve in curves:
        svg = curve_figure(history, curve.column, curve.title, curve.unit, smooth=curve.smooth)
        blocks.append(figure_block(curve.title, svg))
    return f'<div class="grid">{"".join(blocks)}</div>'


def history_of(record: RunRecord, unit: str) -> History:
    """Return the training lines of a record as columns.

    Args:
        record: record of a run.
        unit: word for its tokens.
    """
    train = record.train
    names: set[str] = set()
    for line in train:
        names |= {name for name, value in line.items() if as_number(value) is not None}
    columns = {
        name: np.array([or_nan(line.get(name)) for line in train], dtype=np.float64)
        for name in sorted(names)
    }
    steps = np.array([line["step"] for line in train], dtype=np.float64)
    # Curves of a record without counts of tokens are drawn over steps.
    return History(
        steps=steps,
        tokens=columns.get("residues", steps),
        columns=columns,
        events=record.events,
        unit=unit,
    )


def _cards(
    contents: ReportContents,
    record: RunRecord,
    results: Mapping[str, Any],
    max_steps: object,
) -> str:
    unit = contents.unit
    last = record.recent[-1] if record.recent else {}
    recent = [or_nan(line.get("residues_per_second")) for line in record.recent]
    finite = [value for value in recent if math.isfinite(value)]

    def find(*names: str) -> float | None:
        """Return the first of these values in the results, or else in the last training line."""
        in_results = [results.get(name) for name in names]
        in_last = [last.get(name) for name in names]
        return first_number(*in_results, *in_last)

    def share(*names: str) -> str | None:
        return formatted(find(*names), "{:.1%}")

    steady_rate = find("steady_residues_per_second")
    recent_rate = float(np.median(finite)) if finite else None
    rate = first_number(steady_rate, find("train_residues_per_second"), recent_rate)
    rate_note = "all devices, steady steps" if steady_rate else "all devices"
    ceiling = si(find("ceiling_flops_per_second"))
    mean_length = formatted(find("length_weighted_mean_length"), "{:,.0f}")
    spent = {
        "start": as_number(results.get("start_seconds")),
        "training": first_number(results.get("train_runtime"), last.get("seconds")),
        "scoring": as_number(results.get("end_seconds")),
    }
    # Whole seconds, so that the shown parts add up to the shown total.
    known = {name: round(value) for name, value in spent.items() if value is not None}
    total = str(timedelta(seconds=sum(known.values()))) if known else None
    parts = ", ".join(f"{name} {timedelta(seconds=value)}" for name, value in known.items())
    done = f"step {last.get('step', 0):,} of {max_steps:,}" if isinstance(max_steps, int) else ""
    cards = [
        *contents.cards(record.last_evaluations, results),
        Card("Training loss", formatted(find("loss"), "{:.3f}"), "last logged"),
        Card(f"{unit.capitalize()} per second", si(rate), rate_note),
        Card("Fill", share("fill"), "real tokens of all"),
        Card("Model MFU", share("model_mfu", "mfu"), f"real {unit}, nominal peak"),
        Card("Executed MFU", share("executed_mfu"), "all products, nominal peak"),
        Card("Share of the ceiling", share("share_of_ceiling"), f"executed, of {ceiling}FLOP/s"),
        Card("Mean length", mean_length, f"{unit}, length-weighted"),
        Card(f"{unit.capitalize()} trained", si(find("train_residues", "residues")), done),
        Card("Wall time", total, parts),
        Card("Peak memory", binary_bytes(find("peak_memory_bytes")), "per device"),
        Card("Trained parameters", si(find("parameters")), contents.parameters_note),
    ]
    return card_block(cards)


def _state(last_step: int, config: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    if results:
        return "finished"
    total = _get(config, "train", "max_steps")
    of_total = f" of {total:,}" if isinstance(total, int) else ""
    return f"unfinished: the record ends at step {last_step:,}{of_total}"


def _subtitle(config: Mapping[str, Any], contents: ReportContents) -> str:
    parts = [contents.subtitle(config)]
    start = _get(config, "model", "init_from")
    if start is not None:
        parts.append(f"from {start}")
    mode = _get(config, "parallel", "mode")
    if mode is not None:
        parts.append(str(mode).upper())
    optimizer = _get(config, "optim", "name")
    if optimizer is not None:
        parts.append(str(optimizer))
    rank = _get(config, "lora", "rank")
    if rank is not None:
        parts.append(f"LoRA of rank {rank}")
    return ", ".join(part for part in parts if part)


def _curves_note(record: RunRecord) -> str:
    """Return a note on the training lines that the curves show, if there are others."""
    if record.num_train == len(record.train):
        return ""
    return note(f"Curves of {len(record.train):,} of {record.num_train:,} logged steps.")


def _evaluation_table(record: RunRecord, contents: ReportContents) -> str:
    evaluations = record.shown_evaluations
    leading = ["split", "step", "eval_loss", "perplexity", "eval_accuracy"]
    present: dict[str, None] = {}  # in the order of the lines
    for line in evaluations:
        present |= dict.fromkeys(line)
    present.pop("kind", None)
    names = [name for name in leading if name in present]
    names += [name for name in present if name not in leading]
    scores = [f"eval_{name}" for name in contents.score_titles]
    titles = {name: name.replace("_", " ") for name in names}
    for name in ("eval_loss", "eval_accuracy", *scores):
        titles[name] = name.removeprefix("eval_").replace("_", " ")
    formats = COLUMN_FORMATS | dict.fromkeys(scores, SCORE_FORMAT)
    rows = []
    for line in evaluations:
        cells = []
        for name in names:
            number = formatted(as_number(line.get(name)), formats.get(name, ""))
            cells.append(number or as_text(line.get(name)))
        rows.append(cells)
    content = table([titles[name] for name in names], rows)
    if record.num_evaluations > len(evaluations):
        content += note(
            f"{len(evaluations):,} of {record.num_evaluations:,}: the first {FIRST_EVALUATIONS}, the one "
            f"with the lowest loss and the last {LAST_EVALUATIONS} of each split. {METRICS_FILE} beside this "
            'report has all, in the lines with "kind": "eval".'
        )
    return section("Evaluations", content)


def _event_table(record: RunRecord) -> str:
    if not record.num_events:
        return ""
    shown = record.last_events
    content = table(["step", "event"], [[f"{step:,}", text] for step, text in shown])
    if record.num_events > len(shown):
        content += note(f"The last {len(shown)} of {record.num_events:,}.")
    return details(f"Events ({record.num_events:,})", content)


def _data_section(
    manifest: Mapping[str, Any],
    manifest_path: Path,
    crop_tokens: int | None,
    contents: ReportContents,
) -> str:
    splits = manifest.get("splits")
    if not isinstance(splits, Mapping):
        return ""
    split_rows: list[list[str]] = []
    histogram: dict[int, int] = {}
    for name, split in splits.items():
        if not isinstance(split, Mapping):
            continue
        counts = [as_text(split.get(key)) for key in ("records", "clusters", "residues")]
        split_rows.append([str(name), *counts])
        for start, count in (split.get("length_histogram") or {}).items():
            histogram[int(start)] = histogram.get(int(start), 0) + int(count)
    facts = {
        name.replace("_", " "): as_text(manifest.get(name))
        for name in (
            "duplicates_dropped",
            "members",
            "seed",
            "validation_fraction",
            "test_fraction",
        )
        if name in manifest
    }
    facts |= contents.data_facts(manifest)
    tables = [
        table(["split", contents.records, contents.groups, contents.unit], split_rows),
        _source_table(manifest.get("sources"), manifest_path),
        definition_table(facts.items()),
    ]
    figure = figure_block(
        f"Histogram of the lengths of {contents.records}, all splits",
        length_figure(
            histogram, crop_tokens=crop_tokens, unit=contents.unit, records=contents.records
        ),
    )
    return section("Data", f'<div class="grid"><div>{"".join(tables)}</div>{figure}</div>')


def _source_table(sources: object, manifest_path: Path) -> str:
    if not isinstance(sources, list):
        return ""
    rows: list[list[str]] = []
    for source in sources[:MAX_SOURCES_SHOWN]:
        if isinstance(source, Mapping):
            size = binary_bytes(as_number(source.get("bytes"))) or ""
            digest = str(source.get("sha256", ""))[:MAX_SHA256_CHARS]
            rows.append([str(source.get("name")), size, digest])
    content = table(["source", "size", "sha256 begins"], rows)
    if len(sources) > MAX_SOURCES_SHOWN:
        content += note(
            f"The first {MAX_SOURCES_SHOWN} of {len(sources):,} files. {manifest_path} has all."
        )
    return content


def _get(config: Mapping[str, Any], *names: str) -> Any:
    """Return a value in nested mappings; None if it is missing."""
    value: Any = config
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
