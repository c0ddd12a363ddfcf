"""Damaged run files and odd overrides are refused in a message or are a configuration that reads back."""

from __future__ import annotations

import dataclasses
import math
import random
from pathlib import Path
from typing import Any

import yaml

from seqlm.runs.run_file import RunFile, load_config
from tests.fuzz.mutation import ODD, mutated

CONFIG_FOLDER = Path(__file__).parents[2] / "workloads/seqlm/configs"
CONFIGS = sorted(path.read_bytes() for path in CONFIG_FOLDER.rglob("*.yaml"))
SEEDS = (
    *CONFIGS,
    b"data: {path: a}\ndata: {path: elsewhere}\n",
    b"train: {max_steps: 010, seed: 1_0, eval_packs: 1:30}\n",
    b"model: {init_from: a}\ntask: {kind: binary}\nlora: false\ntrain: []\n",
    b"x: &x [lol, lol]\ny: &y [*x, *x]\nname: [*y, *y]\n",
    b"optim: {weight_decay: .inf}\ndata: {source: {a: b}}\n",
)
FIELDS = [
    f"{section.name}.{field.name}" if dataclasses.is_dataclass(kind) else section.name
    for section in dataclasses.fields(RunFile)
    for kind in [getattr(RunFile(name="a"), section.name)]
    for field in (dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else [section])
]
VALUES = (
    *(piece.decode("utf-8", "replace") for piece in ODD),
    *(
        "[]",
        "{}",
        "''",
        "false",
        "1.5",
        "[a, b]",
        "{a: b}",
        "[[a]]",
        "[1, x]",
        "a: b",
        "null",
        "1e-3",
        "-5",
    ),
)


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, list) else [value]


def check(path: Path, overrides: list[str]) -> None:
    try:
        config = load_config(path, overrides)
    except ValueError as error:
        assert str(path) in str(error)
        assert all(len(line) < 1000 for line in str(error).split("\n")), str(error)
        return
    for leaf in leaves(config.to_dict()):
        assert not isinstance(leaf, float) or math.isfinite(leaf)
        assert not isinstance(leaf, str) or "\0" not in leaf
    path.write_text(yaml.safe_dump(config.to_dict(), sort_keys=False))
    assert load_config(path) == config


def test_damaged_files(rounds, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    for chance in rounds(250):
        path.write_bytes(mutated(chance.choice(SEEDS), chance))
        check(path, [])


def test_odd_overrides(rounds, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    for chance in rounds(400):
        path.write_text("train:\n")
        check(path, [odd_override(chance) for _ in range(chance.randint(1, 3))])


def odd_override(chance: random.Random) -> str:
    value = chance.choice(VALUES)
    if chance.random() < 0.2:
        value = mutated(value.encode(), chance).decode("utf-8", "replace")
    sign = "=" if chance.random() < 0.95 else chance.choice(("", "==", ".", ".x="))
    return f"{chance.choice(FIELDS)}{sign}{value}"
