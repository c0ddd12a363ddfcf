"""Scores of models as a table (``seqlm.scorecard``)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from seqlm.commands.inference import check_models
from seqlm.commands.kinds import prepare
from seqlm.proteins.scorecard import command
from seqlm.runs.inference_commands import inference_command
from seqlm.runs.run_file import load_config
from seqlm.training.data.manifest import MANIFEST_FILE
from seqlm.training.processes import processes

if TYPE_CHECKING:
    import pandas as pd

NAME = "scorecard"
RUN_FILE = "esm2_8m_sample"
"""Run file of the command, whose data are the bundled proteins."""


def scorecard(
    models: str | Sequence[str], output: str | Path = "scorecard.html", *fields: str
) -> pd.DataFrame:
    """Score what models know, as ``seqlm scorecard``, and return a row for each model and score.

    One process computes. It writes the page, and its figures as JSON and CSV.

    Args:
        models: model folder, checkpoint folder or hub id, or a list of them.
        output: page to write, ending in .html.
        fields: changes to fields of the run file, such as ``scorecard.proteingym=[folder]``.

    Returns:
        Table in the columns of the CSV file.

    Raises:
        ValueError: if a model or a field is wrong, or the output is the scorecard of other models.
    """
    import pandas as pd

    names = [models] if isinstance(models, str) else list(models)
    if not names:
        raise ValueError("models: got none; give a model, or a list of models")
    given = [f"inference.models={json.dumps(names)}", f"inference.output={json.dumps(str(output))}"]
    config = load_config(RUN_FILE, [*given, *fields])
    check_models(NAME, inference_command(NAME), config, "models")
    if not (Path(config.data.path) / MANIFEST_FILE).exists():
        prepare(config)
    with processes() as here:
        command.scorecard(config, here)
    return pd.read_csv(Path(output).with_suffix(".csv"))
