"""Make ``report.html`` from what a run wrote: one file that opens anywhere and asks no server for anything.

A run that is still going, or was killed, has one too. ``ReportContents`` has the sections that depend on the
objective of a run.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from seqlm.training.config import flat
from seqlm.training.data.manifest import describe_similar
from seqlm.training.strict_yaml import read_mapping
from seqlm.training.tracking.run_log import (
    CONFIG_FILE,
    METRICS_FILE,
    REPORT_FILE,
    RESULTS_FILE,
    read_metrics,
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
    or_nan,
    page,
    section,
    si,
    table,
)

Lines = Sequence[Mapping[str, Any]]
"""Lines of a run's log."""
RECENT_LINES = 20
"""Last training lines whose median speed is shown for a run without results."""
MAX_EVENTS_SHOWN = 200
COLUMN_FORMATS = {
    "eval_loss": "{:.4f}",
    "perplexity": "{:.2f}",
    "eval_accuracy": "{:.1%}",
    "eval_runtime": "{:.1f}",
}
SCORE_FORMAT = "{:.4f}"


class ReportContents:
    """Report sections of pre-training on proteins; subclasses are those of other objectives."""

    unit = "residues"
    records = "proteins"
    groups = "clusters"
    """Unit that a split never divides, in the table of the data."""
    predicted: str | None = "masked residue"
    """Target of the cross-entropy loss; None for another loss."""
    parameters_note = ""
    score_titles: Mapping[str, str] = {}
    """Titles of scores by their names in the log, which have ``eval_`` before."""

    def read(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        """Read what is shown from files of the run, as far as they are there."""

    def cards(self, evaluations: Sequence[Mapping[str, Any]], results: Mapping[str, Any]) -> list[Card]:
        """Headline scores."""
        known = {name: value for name, value in results.items() if value is not None}
        found = {**last_validation(evaluations), **known}
        test_perplexity = first_number(results.get("test_perplexity"))
        unigram = first_number(results.get("unigram_perplexity"))
        notes = [f"test {test_perplexity:.2f}"] if test_perplexity is not None else []
        notes += [f"unigram {unigram:.2f}"] if unigram is not None else []
        test_accuracy = first_number(results.get("test_accuracy"))
        about = f"test {test_accuracy:.1%}" if test_accuracy is not None else f"of {self.predicted}s"
        perplexity, accuracy = (as_number(found.get(name)) for name in ("perplexity", "eval_accuracy"))
        return [
            Card("Validation perplexity", formatted(perplexity, "{:.2f}"), ", ".join(notes)),
            Card("Validation accuracy", formatted(accuracy, "{:.1%}"), about),
        ]

    def section(self, results: Mapping[str, Any]) -> str:
        """HTML between the loss and the training's figures; empty for none."""
        return ""

    def subtitle(self, config: Mapping[str, Any]) -> str:
        """Return the name of the trained model, in a word or two."""
        model = config.get("model")
        if not isinstance(model, Mapping) or model.get("init_from") or "size" not in model:
            return ""
        return f"ESM-2 {model['size']}"


def last_validation(evaluations: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The last evaluation of the validation split; empty if there is none."""
    return next((line for line in reversed(evaluations) if line.get("split") == "validation"), {})


def write_report(run_dir: Path, contents: ReportContents) -> Path:
    """Write ``report.html`` into ``run_dir`` from the files there.

    Args:
        run_dir: of the run.
        contents: what is shown besides what all reports show.

    Raises:
        ValueError: if the folder holds no record of a run, or a damaged one.
    """
    try:
        lines = read_metrics(run_dir / METRICS_FILE)
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(
            f"{run_dir} holds no {METRICS_FILE}, so no run has written there yet; "
            "give the folder of a run, <runs>/<name>"
        ) from None
    config, results = read_mapping(run_dir / CONFIG_FILE), read_mapping(run_dir / RESULTS_FILE)
    contents.read(run_dir, config)
    path = run_dir / REPORT_FILE
    write_whole(path, _report(run_dir.resolve().name, lines, config, results, contents))
    return path


def _report(
    folder: str, lines: Lines, config: Mapping[str, Any], results: Mapping[str, Any], contents: ReportContents
) -> str:
    unit = contents.unit
    train = [line for line in lines if line["kind"] == "train"]
    evaluations = [line for line in lines if line["kind"] == "eval"]
    events = [(line["step"], _event_text(line)) for line in lines if line["kind"] == "event"]
    history = _history(train, events, unit)
    manifest = read_mapping(Path(str(_get(config, "data", "path"))) / "manifest.json")
    body = [
        _cards(contents, evaluations, train, results, _get(config, "train", "max_steps")),
        figure_block(
            f"Training loss and evaluations over real {unit}",
            loss_figure(
                history,
                evaluations,
                as_number(results.get("unigram_perplexity")),
                predicted=contents.predicted,
            ),
            wide=True,
        ),
        (scores := contents.section(results)),
        "<h2>Training</h2>" if scores else "",
        '<div class="grid">',
        *(
            figure_block(title, curve_figure(history, name, title, label, smooth=name == "grad_norm"))
            for name, title, label in (
                ("residues_per_second", "Throughput", f"real {unit} per second"),
                ("learning_rate", "Learning rate", "peak of the groups"),
                ("grad_norm", "Gradient norm", "before clipping"),
                ("fill", "Fill", "share of tokens that are real"),
            )
        ),
        "</div>",
        _evaluation_table(evaluations, contents),
        _data_section(manifest, _get(config, "model", "max_residues"), contents),
        _event_table(events),
        section("Environment", definition_table(flat(results.get("environment") or {}))),
        details("Configuration", definition_table(flat(config))),
    ]
    plain = {name: value for name, value in results.items() if name != "environment"}
    if plain:
        body.append(details("All results", definition_table(flat(plain))))
    return page(
        str(config.get("name") or folder),
        _subtitle(config, contents),
        _state(lines, config, results),
        body,
    )


def _history(train: Sequence[Mapping[str, Any]], events: Sequence[tuple[int, str]], unit: str) -> History:
    names = {name for line in train for name, value in line.items() if as_number(value) is not None}
    columns = {
        name: np.array([or_nan(line.get(name)) for line in train], dtype=np.float64) for name in sorted(names)
    }
    steps = np.array([line["step"] for line in train], dtype=np.float64)
    # A record without residues is drawn over steps rather than not at all.
    return History(
        steps=steps, tokens=columns.get("residues", steps), columns=columns, events=events, unit=unit
    )


def _cards(
    contents: ReportContents, evaluations: Lines, train: Lines, results: Mapping[str, Any], max_steps: object
) -> str:
    unit, last = contents.unit, train[-1] if train else {}
    recent = [or_nan(line.get("residues_per_second")) for line in train[-RECENT_LINES:]]
    finite = [value for value in recent if math.isfinite(value)]

    def find(*names: str) -> float | None:
        return first_number(*(found.get(name) for found in (results, last) for name in names))

    def share(*names: str) -> str | None:
        return formatted(find(*names), "{:.1%}")

    steady, ceiling = find("steady_residues_per_second"), si(find("ceiling_flops_per_second"))
    rate = first_number(
        steady, find("train_residues_per_second"), float(np.median(finite)) if finite else None
    )
    mean_length = formatted(find("length_weighted_mean_length"), "{:,.0f}")
    spent = {
        "start": as_number(results.get("start_seconds")),
        "training": first_number(results.get("train_runtime"), last.get("seconds")),
        "scoring": as_number(results.get("end_seconds")),
    }
    # Whole seconds, so that the sum shown is that of the parts shown.
    known = {name: round(value) for name, value in spent.items() if value is not None}
    time = str(timedelta(seconds=sum(known.values()))) if known else None
    parts = ", ".join(f"{name} {timedelta(seconds=value)}" for name, value in known.items())
    done = f"step {last.get('step', 0):,} of {max_steps:,}" if isinstance(max_steps, int) else ""
    cards = [
        *contents.cards(evaluations, results),
        Card("Training loss", formatted(find("loss"), "{:.3f}"), "last logged"),
        Card(f"{unit.capitalize()} per second", si(rate), "all devices" + ", steady steps" * bool(steady)),
        Card("Fill", share("fill"), "real tokens of all"),
        Card("Model MFU", share("model_mfu", "mfu"), f"real {unit}, nominal peak"),
        Card("Executed MFU", share("executed_mfu"), "all products, nominal peak"),
        Card("Share of the ceiling", share("share_of_ceiling"), f"executed, of {ceiling}FLOP/s"),
        Card("Mean length", mean_length, f"{unit}, length-weighted"),
        Card(f"{unit.capitalize()} trained", si(find("train_residues", "residues")), done),
        Card("Wall time", time, parts),
        Card("Peak memory", binary_bytes(find("peak_memory_bytes")), "per device"),
        Card("Trained parameters", si(find("parameters")), contents.parameters_note),
    ]
    return card_block(cards)


def _state(lines: Sequence[Mapping[str, Any]], config: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    if results:
        return "finished"
    last_step = max((line["step"] for line in lines), default=0)
    total = _get(config, "train", "max_steps")
    where = f"step {last_step:,}" + (f" of {total:,}" if isinstance(total, int) else "")
    return f"unfinished: the record ends at {where}"


def _subtitle(config: Mapping[str, Any], contents: ReportContents) -> str:
    adapters = _get(config, "lora", "rank")
    parts = [
        contents.subtitle(config),
        f"from {_get(config, 'model', 'init_from')}",
        str(_get(config, "parallel", "mode")).upper(),
        str(_get(config, "optim", "name")),
        f"LoRA of rank {adapters}",
    ]
    return ", ".join(part for part in parts if part and "None" not in part and "NONE" not in part)


def _evaluation_table(evaluations: Sequence[Mapping[str, Any]], contents: ReportContents) -> str:
    leading = ["split", "step", "eval_loss", "perplexity", "eval_accuracy"]
    others = dict.fromkeys(name for line in evaluations for name in line if name not in {*leading, "kind"})
    names = [name for name in leading if any(name in line for line in evaluations)] + list(others)
    scores = [f"eval_{name}" for name in contents.score_titles]
    shortened = ("eval_loss", "eval_accuracy", *scores)
    titles = {name: name.removeprefix("eval_").replace("_", " ") for name in shortened}
    formats = COLUMN_FORMATS | dict.fromkeys(scores, SCORE_FORMAT)
    rows = [
        [
            formatted(as_number(line.get(name)), formats.get(name, "")) or as_text(line.get(name))
            for name in names
        ]
        for line in evaluations
    ]
    return section("Evaluations", table([titles.get(n, n.replace("_", " ")) for n in names], rows))


def _event_text(line: Mapping[str, Any]) -> str:
    lost = line.get("lost_steps")
    return f"{line.get('event', '')}, lost steps {lost}" if lost else str(line.get("event", ""))


def _event_table(events: Sequence[tuple[int, str]]) -> str:
    shown = events[-MAX_EVENTS_SHOWN:]
    content = table(["step", "event"], [[f"{step:,}", text] for step, text in shown])
    if len(events) > len(shown):
        content += f'<p class="note">The last {len(shown)} of {len(events):,}.</p>'
    return details(f"Events ({len(events):,})", content) if events else ""


def _data_section(manifest: Mapping[str, Any], crop_tokens: object, contents: ReportContents) -> str:
    unit, records = contents.unit, contents.records
    splits = manifest.get("splits")
    if not isinstance(splits, Mapping):
        return ""
    rows, histogram = [], dict[int, int]()
    for name, split in splits.items():
        if not isinstance(split, Mapping):
            continue
        rows.append([str(name), *(as_text(split.get(key)) for key in ("records", "clusters", "residues"))])
        for start, count in (split.get("length_histogram") or {}).items():
            histogram[int(start)] = histogram.get(int(start), 0) + int(count)
    sources = [
        [str(s.get("name")), binary_bytes(as_number(s.get("bytes"))) or "", str(s.get("sha256", ""))[:16]]
        for s in manifest.get("sources", [])
        if isinstance(s, Mapping)
    ]
    facts = {
        name.replace("_", " "): as_text(manifest.get(name))
        for name in ("duplicates_dropped", "members", "seed", "validation_fraction", "test_fraction")
        if name in manifest
    }
    if isinstance(similar := manifest.get("similar"), Mapping):
        facts["similar proteins"] = describe_similar(similar)
    crop = crop_tokens if isinstance(crop_tokens, int) and unit == "residues" else None
    return section(
        "Data",
        '<div class="grid"><div>'
        + table(["split", records, contents.groups, unit], rows)
        + table(["source", "size", "sha256 begins"], sources)
        + definition_table(facts.items())
        + "</div>"
        + figure_block(
            f"Histogram of the lengths of {records}, all splits",
            length_figure(histogram, crop, unit, records),
        )
        + "</div>",
    )


def _get(config: Mapping[str, Any], *names: str) -> Any:
    value: Any = config
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
