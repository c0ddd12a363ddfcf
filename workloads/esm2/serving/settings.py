"""What the server admits: defaults, and the environment variables that change them."""

from __future__ import annotations

import dataclasses
import os
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads.run_schema import field_docs

PREFIX = "ESM2_SERVE_"
"""Of the environment variables: ``ESM2_SERVE_MAX_PROTEINS`` is ``max_proteins``."""


def _setting(default: int, least: int, most: int) -> Any:
    return dataclasses.field(default=default, metadata={"least": least, "most": most})


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    max_body_bytes: int = _setting(5 << 20, 1 << 10, 25 << 20)
    """Of a request. SageMaker itself hands on 25 MB, 6 MB before 2025."""
    max_proteins: int = _setting(256, 1, 100_000)
    """Of a request."""
    max_residues: int = _setting(1022, 1, 100_000)
    """Of a protein; ESM-2 was trained on 1022. Longer ones are refused, not cropped in silence."""
    tokens_per_pack: int = _setting(0, 0, 1 << 20)
    """Most tokens, CLS and EOS counted, that go through the model at once: bounds its memory. 0 is what suits
    the device (``inference/engine.py``). A protein that is longer goes alone."""
    max_waiting_residues: int = _setting(1_000_000, 1, 1 << 40)
    """Residues admitted and not yet computed; what would be more is answered with 503."""
    timeout_seconds: int = _setting(55, 1, 3600)
    """An answer comes in this time, or 503; SageMaker gives a container 60 s."""
    allow_nucleotides: int = _setting(0, 0, 1)
    """1 answers for sequences that look like DNA or RNA as for proteins; 0 refuses them with 422."""
    drain_seconds: int = _setting(5, 0, 300)
    """So long after SIGTERM the server goes on answering, so that whoever routes to it learns of its end."""

    @staticmethod
    def of(environment: Mapping[str, str]) -> ServeSettings:
        """Read the settings.

        Raises:
            ValueError: listing everything that is wrong with them.
        """
        fields = {PREFIX + field.name.upper(): field for field in dataclasses.fields(ServeSettings)}
        given = {name: value for name, value in environment.items() if name.startswith(PREFIX)}
        problems, values = [], {}
        for name, text in sorted(given.items()):
            if name not in fields:
                problems.append(f"{name}: there is no such setting; allowed are {', '.join(fields)}")
                continue
            least, most = fields[name].metadata["least"], fields[name].metadata["most"]
            is_number = text.isascii() and text.isdigit() and len(text) < 20
            if not is_number or not least <= int(text) <= most:
                problems.append(f"{name}: got {text!r}; whole numbers from {least} to {most} are allowed")
                continue
            values[fields[name].name] = int(text)
        settings = ServeSettings(**values)
        if not problems and settings.max_waiting_residues < settings.max_residues:
            problems.append(
                f"{PREFIX}MAX_WAITING_RESIDUES: got {settings.max_waiting_residues}; a single protein may "
                f"have {settings.max_residues} ({PREFIX}MAX_RESIDUES)"
            )
        if problems:
            raise ValueError("\n".join(problems))
        return settings


def settings_text() -> str:
    """List the environment variables with their defaults and meanings, for ``--help``."""
    lines, docs = ["environment variables and their defaults:"], field_docs(ServeSettings)
    for item in dataclasses.fields(ServeSettings):
        lines.append(f"  {PREFIX}{item.name.upper()}={item.default}")
        lines += textwrap.wrap(docs[item.name], 78, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines)


def check_folder(folder: Path) -> None:
    """Raise ValueError if the folder of the model is missing, incomplete or unreadable."""
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        raise ValueError(
            f"--model: there is no folder {folder} (looked in {Path.cwd()}); give the model folder of a run, "
            "such as runs/<name>/model"
        ) from None
    except OSError as error:
        raise ValueError(
            f"--model: user {os.geteuid()} cannot list {folder}: {error.strerror}; give the model folder of "
            "a run, readable for all (chmod a+rX)"
        ) from None
    if "config.json" not in names:
        raise ValueError(
            f"--model: {folder} holds no config.json, it has {', '.join(names[:10]) or 'nothing'}; give the "
            "model folder of a run, or put its files, not the folder, into the archive"
        )
    unreadable = [name for name in names if not os.access(folder / name, os.R_OK)]
    if unreadable:
        raise ValueError(
            f"--model: user {os.geteuid()} may not read {', '.join(unreadable)} in {folder}; pack the files "
            "readable for all (chmod a+r)"
        )
