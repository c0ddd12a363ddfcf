"""Limits of the server: defaults, and environment variables that change them."""

import dataclasses
import os
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from seqlm.runs.schema import field_docs
from seqlm.training.config import KernelMode

PREFIX = "ESM2_SERVE_"
"""Prefix of the environment variables: ``ESM2_SERVE_MAX_PROTEINS`` sets ``max_proteins``."""
MAX_DIGITS = 19
"""Largest number of digits of a value. Python refuses to convert very long ones."""
MAX_FILES_SHOWN = 10
"""Largest number of file names in a message."""
ALLOWED = "allowed"
"""Key of the allowed values in the metadata of a field."""
HELP_WIDTH = 78
HELP_INDENT = " " * 6


@dataclass(frozen=True)
class _Range:
    """Whole numbers that a setting may have."""

    least: int
    most: int

    def read(self, text: str) -> int:
        """Return the value of a setting.

        Raises:
            ValueError: saying which values are allowed.
        """
        is_number = text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS
        if not is_number or not self.least <= int(text) <= self.most:
            raise ValueError(f"whole numbers from {self.least} to {self.most} are allowed")
        return int(text)


@dataclass(frozen=True)
class _Choice:
    """Words that a setting may have."""

    words: tuple[str, ...]

    def read(self, text: str) -> str:
        """Return the value of a setting.

        Raises:
            ValueError: saying which values are allowed.
        """
        if text not in self.words:
            raise ValueError(f"allowed are {', '.join(self.words)}")
        return text


def _setting(default: int, least: int, most: int) -> Any:
    """Return a field with its default and the range of allowed values."""
    return dataclasses.field(default=default, metadata={ALLOWED: _Range(least, most)})


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    max_body_bytes: int = _setting(5 << 20, 1 << 10, 25 << 20)
    """Largest body of a request, in bytes. SageMaker passes on up to 25 MB (6 MB before 2025)."""
    max_proteins: int = _setting(256, 1, 100_000)
    """Largest number of proteins in a request."""
    max_residues: int = _setting(1022, 1, 100_000)
    """Largest number of residues of a protein. ESM-2 was trained on 1022. Longer proteins are refused."""
    tokens_per_pack: int = _setting(0, 0, 1 << 20)
    """Largest number of tokens, with CLS and EOS, that the model computes at once. It bounds the memory. 0
    means the default of the device (``inference/engine.py``). A longer protein is computed alone."""
    kernels: KernelMode = dataclasses.field(
        default="auto", metadata={ALLOWED: _Choice(get_args(KernelMode))}
    )
    """Kernels of this project on a GPU, as ``inference.kernels`` in run files."""
    max_waiting_residues: int = _setting(1_000_000, 1, 1 << 40)
    """Largest number of waiting residues. Requests beyond it are answered with 503."""
    timeout_seconds: int = _setting(55, 1, 3600)
    """Seconds until a request without an answer gets 503. SageMaker waits 60 s for a container."""
    allow_nucleotides: int = _setting(0, 0, 1)
    """1 accepts sequences that look like DNA or RNA as proteins; 0 refuses them with 422."""
    drain_seconds: int = _setting(5, 0, 300)
    """Seconds that the server still answers after SIGTERM, so that load balancers notice that it stops."""

    @staticmethod
    def of(environment: Mapping[str, str]) -> "ServeSettings":
        """Read the settings.

        Raises:
            ValueError: listing all mistakes in the settings.
        """
        fields = {PREFIX + field.name.upper(): field for field in dataclasses.fields(ServeSettings)}
        given = {name: value for name, value in environment.items() if name.startswith(PREFIX)}
        problems: list[str] = []
        values: dict[str, Any] = {}
        for name, text in sorted(given.items()):
            if name not in fields:
                problems.append(
                    f"{name}: there is no such setting; allowed are {', '.join(fields)}"
                )
                continue
            setting = fields[name]
            try:
                values[setting.name] = setting.metadata[ALLOWED].read(text)
            except ValueError as error:
                problems.append(f"{name}: got {text!r}; {error}")
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
    docs = field_docs(ServeSettings)
    lines = ["environment variables and their defaults:"]
    for item in dataclasses.fields(ServeSettings):
        lines.append(f"  {PREFIX}{item.name.upper()}={item.default}")
        lines += textwrap.wrap(
            docs[item.name], HELP_WIDTH, initial_indent=HELP_INDENT, subsequent_indent=HELP_INDENT
        )
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
        listed = ", ".join(names[:MAX_FILES_SHOWN]) or "nothing"
        raise ValueError(
            f"--model: {folder} holds no config.json, it has {listed}; give the model folder of a run, or "
            "put its files, not the folder, into the archive"
        )
    unreadable = [name for name in names if not os.access(folder / name, os.R_OK)]
    if unreadable:
        raise ValueError(
            f"--model: user {os.geteuid()} may not read {', '.join(unreadable)} in {folder}; pack the files "
            "readable for all (chmod a+r)"
        )
