"""Scorecard of masked language models (``seqlm scorecard``): an HTML page, JSON and CSV.

The bundled parts take minutes and show that a model works. They give no verdict: their data are small, and
nothing is published for them. ``scorecard.proteingym`` adds the benchmark that variant effects are judged by.
Each score stands between chance and the best value, beside a baseline without a language model, beside other
models, and beside the file of references (``references.py``).
"""

import csv
import dataclasses
import io
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from seqlm.launch.progress import parts_folder
from seqlm.proteins.inference.job import Command
from seqlm.proteins.inference.model_head import check_head
from seqlm.proteins.inference.output_file import output_file
from seqlm.runs.inference_commands import MASKED_LM
from seqlm.runs.run_file import RunFile
from seqlm.training.hardware import environment
from seqlm.training.processes import Processes
from seqlm.training.whole_file import write_whole

from .localization import Localization
from .model_scores import ModelScores
from .page import scorecard_page
from .part import Part
from .prepared_data import PreparedData
from .proteingym import read_benchmark
from .proteingym_part import ProteinGym
from .references import SHIPPED, Reference, read_references, record, reference_of
from .row import Row
from .sequence_parts import Perplexity, SyntheticAssay
from .structure_parts import Contacts, SecondaryStructure

PARTS: tuple[type[Part], ...] = (
    Perplexity,
    SyntheticAssay,
    Contacts,
    SecondaryStructure,
    Localization,
)
"""Parts on bundled and prepared data, in the order of the page."""


def scorecard(config: RunFile, here: Processes) -> None:
    """Write the scorecard of one model or of several; every process calls this.

    Raises:
        ValueError: if a model, ProteinGym's files or the references cannot be read, or the output is of other
            models.
    """
    path = output_file(config, "scorecard")
    check_free(config, path)
    file = Path(config.scorecard.references or SHIPPED)
    is_new = config.scorecard.record and not file.exists()
    references = [] if is_new else read_references(file)
    parts = _parts(config, path)
    scored = []
    for model in config.scored_models:
        chosen = dataclasses.replace(config.inference, model=model, models=())
        command = Command(dataclasses.replace(config, inference=chosen), here, "scorecard")
        check_head(
            "scorecard",
            command.model_name,
            command.engine.model.config.architectures or [MASKED_LM],
        )
        scored.append(_scores(parts, command))
        del command  # before the next model is loaded
    if not here.is_first:
        return
    names = {one.model for one in scored}
    others = [one for one in references if one.model not in names]
    _write(path, scored, others, environment(here.device))
    if config.scorecard.record:
        assert config.scorecard.references is not None  # checked with the run file
        _record(Path(config.scorecard.references), scored)
    for part in parts:
        for counts in part.counts():
            print(counts.line())


def check_free(config: RunFile, path: Path) -> None:
    """Refuse to replace the scorecard of other models without ``inference.overwrite``.

    Raises:
        ValueError: naming the scorecard and its models.
    """
    file = path.with_suffix(".json")
    if config.inference.overwrite or not file.is_file():
        return
    document = json.loads(file.read_text())
    others = [one["model"] for one in document.get("models", [document])]
    if others != list(config.scored_models):
        raise ValueError(
            f"{path} is the scorecard of {', '.join(others)}; name another inference.output, or replace it "
            "with inference.overwrite=true"
        )


def _parts(config: RunFile, path: Path) -> list[Part]:
    prepared = PreparedData(config)
    parts = [part(prepared) for part in PARTS]
    if config.scorecard.proteingym:
        benchmark = read_benchmark(config.scorecard.proteingym, Path(config.data.downloads))
        parts.append(ProteinGym(prepared, benchmark, parts_folder(path)))
    return parts


def _scores(parts: Iterable[Part], command: Command) -> ModelScores:
    """Return the scores of a model, which are empty in all processes but the first."""
    found = ModelScores(command.model_name, command.settings)
    for part in parts:
        started = time.monotonic()
        if command.here.is_first:
            print(f"scorecard of {command.model_name}: {part.name}")
            found.rows.extend(part.rows(command))
            found.seconds[part.name] = round(time.monotonic() - started, 1)
            if isinstance(part, ProteinGym) and (reason := part.published(command).reason):
                found.notes.append(
                    f"No published value of ProteinGym is shown for {command.model_name}: {reason}."
                )
        elif part.is_shared:
            part.rows(command)
    return found


def _write(
    path: Path,
    scored: Sequence[ModelScores],
    others: Sequence[Reference],
    facts: dict[str, Any],
) -> None:
    """Write page, JSON and CSV, and print the figures."""
    documents = [one.document(others) for one in scored]
    if len(documents) == 1:
        document = {**documents[0], "environment": facts}
    else:
        document = {"models": documents, "environment": facts}
    path.parent.mkdir(parents=True, exist_ok=True)
    figures = path.with_suffix(".json")
    table = path.with_suffix(".csv")
    write_whole(figures, json.dumps(document, indent=1) + "\n")
    write_whole(table, _csv(documents))
    write_whole(path, scorecard_page(scored, others, facts))
    for one in scored:
        if len(scored) > 1:
            print(one.model)
        for row in one.rows:
            print(_line(row))
    print(f"wrote {path}: scorecard")
    print(f"wrote {figures}: the same figures")
    print(f"wrote {table}: the same figures as a table")


def _line(row: Row) -> str:
    """Return the line of a score."""
    text = (
        f"{row.name:48} {row.value:8.3f}   chance {row.compared.chance:.3f}, baseline "
        f"{row.compared.baseline:.3f}"
    )
    return text if row.published is None else f"{text}, published {row.published:.3f}"


def _csv(documents: Iterable[dict[str, Any]]) -> str:
    """Return a row for each model and score. The values of other models are in one cell, as JSON."""
    stream = io.StringIO()
    writer: csv.DictWriter[str] | None = None
    for document in documents:
        for score in document["scores"]:
            row = {"model": document["model"], **score, "known": json.dumps(score["known"])}
            if writer is None:
                writer = csv.DictWriter(stream, list(row), lineterminator="\n")
                writer.writeheader()
            writer.writerow(row)
    return stream.getvalue()


def _record(path: Path, scored: Iterable[ModelScores]) -> None:
    """Add the models to the file of references."""
    new = []
    for one in scored:
        fingerprint = str(one.settings["model_fingerprint"])
        new.append(reference_of(one.model, fingerprint, str(one.settings["precision"]), one.rows))
    record(path, new)
    print(f"wrote {path}: {len(new):,} models among the references")
