"""Damaged cluster files are refused in lines that say what is wrong, or they are valid and harmless."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from config.reading.loader import load_cluster

CLUSTERS = sorted((Path(__file__).parents[2] / "clusters").glob("*.yaml"))
Place = tuple[Any, ...]
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        10**18,
        2.5,
        float("inf"),
        float("nan"),
        "",
        " ",
        "no",
        "010",
        "1:30",
    ),
    *(
        [],
        {},
        [[]],
        [None],
        {"": ""},
        {"a": {"b": {}}},
        "../..",
        "$(id)",
        "a\nb",
        "a\tb",
        "a" * 5000,
    ),
    *(
        "\a",
        "\x1b[2J",
        "\x7f",
        "\x85",
        "\x9b2J",
        "\u2028",
        "\u202e",
        "\ufeff",
        "\x00",
        "a@example.co\am",
    ),
    *(
        "https://idp.example|.com/",
        "ssh-ed25519 AAAA",
        "ssh-rsa AAAA a\x0cb",
        "ml.p5.48xlarge",
        "eks",
    ),
)
TEXTS = (
    *(
        "&a ",
        "*a",
        "<<: *a\n",
        "!!python/object:os.system ",
        "[" * 1000,
        "{a: " * 1000,
        "- " * 1000,
        "\x85",
    ),
    *(
        "\t",
        "\r",
        "\x00",
        "\ufeff",
        "\u2028",
        "# ",
        "'",
        '"',
        "|\n",
        ">\n",
        "? ",
        ": ",
        "---\n",
        "%YAML 1.1\n",
    ),
)
"""Pieces of YAML, and what is none."""


def places(value: Any, above: Place = ()) -> Iterator[Place]:
    """Return the paths of all keys and items."""
    for key in (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    ):
        yield (*above, key)
        yield from places(value[key], (*above, key))


def at(value: Any, place: Place) -> Any:
    for part in place:
        value = value[part]
    return value


def damaged(document: Any, chance: random.Random) -> Any:
    document = copy.deepcopy(document)
    for _ in range(chance.randint(1, 3)):
        found = list(places(document))
        if not found:
            break
        *above, key = chance.choice(found)
        holder = at(document, tuple(above))
        match chance.randrange(6):
            case 0 | 1:
                holder[key] = copy.deepcopy(chance.choice(VALUES))
            case 2:
                del holder[key]
            case 3 if isinstance(holder, dict):
                name = chance.choice((f"{key}s", str(key)[1:], "\x1b[2J", "\u2028", " ", "count"))
                holder[name] = holder.pop(key)
            case 4 if isinstance(holder, list):
                holder.append(holder[key])  # the same object, which is written as an alias
            case _:
                holder[key] = copy.deepcopy(at(document, chance.choice(found)))
    return document


def damaged_text(text: str, chance: random.Random) -> str:
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(len(text) + 1)
        text = text[:place] + chance.choice(TEXTS) + text[place + chance.choice((0, 1, 40, 4000)) :]
    return text


@pytest.mark.long
def test_damaged_cluster_files(
    rounds: Callable[[int], Iterator[random.Random]], tmp_path: Path
) -> None:
    path = tmp_path / "cluster.yaml"
    sources = [source.read_text() for source in CLUSTERS]
    documents = [yaml.safe_load(source) for source in sources]
    for chance in rounds(400):
        if chance.random() < 0.3:
            text = damaged_text(chance.choice(sources), chance)
        else:
            is_raw = chance.random() < 0.5
            text = yaml.safe_dump(damaged(chance.choice(documents), chance), allow_unicode=is_raw)
        path.write_text(text)
        try:
            cluster = load_cluster(path)
        except ValueError as error:
            assert type(error) is ValueError
            first, *lines = str(error).split("\n")
            assert first.startswith(f"{path}: ") and first.isprintable()
            assert all(line.startswith("  ") and line.isprintable() for line in lines)
        else:
            dump = cluster.model_dump(mode="json")
            found = [part for place in places(dump) for part in (place[-1], at(dump, place))]
            assert all(text.isprintable() for text in found if isinstance(text, str))
            assert all(group["num_instances"] >= 0 for group in dump["instance_groups"])
