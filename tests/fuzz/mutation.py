"""Small damages to texts and bytes, as disks, editors and attackers make them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

ODD = (
    *(
        b"\0",
        b"\x1b[31m",
        b"\x7f",
        b"\xc2\x85",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\xe2\x80\xae",
        b"\xed\xa0\x80",
    ),
    *(
        b"\n",
        b"\r",
        b"\r\n",
        b"\x0c",
        b"\xe2\x80\xa8",
        b" ",
        b"\t",
        b"",
        b"-1",
        b"0",
        b"010",
        b"1_0",
        b"1:30",
    ),
    *(
        b"9" * 30,
        b".inf",
        b"nan",
        b"1e999",
        b"no",
        b"null",
        b"~",
        b"'",
        b'"',
        b"[" * 40,
        b"{" * 40,
        b"&a *a",
    ),
    *(
        b"*",
        b">",
        b">>",
        b":",
        b"#",
        b"!!python/name:os.system",
        b"<<",
        b"../",
        b"A" * 5000,
        b"%s%n",
        b"$(id)",
    ),
)
"""Pieces that parsers are known to stumble over."""


def mutated(data: bytes, chance: random.Random, pieces: Sequence[bytes] = ODD) -> bytes:
    """Return the data after one to four damages."""
    for _ in range(chance.randint(1, 4)):
        data = chance.choice(DAMAGES)(data, chance, pieces)
    return data


def _place(data: bytes, chance: random.Random) -> tuple[int, int]:
    start = chance.randint(0, len(data))
    return start, min(len(data), start + chance.randint(0, 20))


def _flip(data: bytes, chance: random.Random, pieces: Sequence[bytes]) -> bytes:
    if not data:
        return data
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]


def _insert(data: bytes, chance: random.Random, pieces: Sequence[bytes]) -> bytes:
    at = chance.randint(0, len(data))
    return data[:at] + chance.choice(pieces) + data[at:]


def _replace(data: bytes, chance: random.Random, pieces: Sequence[bytes]) -> bytes:
    start, end = _place(data, chance)
    return data[:start] + chance.choice(pieces) + data[end:]


def _drop(data: bytes, chance: random.Random, pieces: Sequence[bytes]) -> bytes:
    start, end = _place(data, chance)
    return data[:start] + data[end:]


def _repeat(data: bytes, chance: random.Random, pieces: Sequence[bytes]) -> bytes:
    start, end = _place(data, chance)
    return data[:end] + data[start:end] * chance.choice((1, 2, 50)) + data[end:]


def _cut(data: bytes, chance: random.Random, pieces: Sequence[bytes]) -> bytes:
    return data[: chance.randint(0, len(data))]


def _swap_lines(data: bytes, chance: random.Random, pieces: Sequence[bytes]) -> bytes:
    lines = data.split(b"\n")
    one = chance.randrange(len(lines))
    two = chance.randrange(len(lines))
    lines[one], lines[two] = lines[two], lines[one]
    return b"\n".join(lines)


DAMAGES: tuple[Callable[[bytes, random.Random, Sequence[bytes]], bytes], ...] = (
    _flip,
    _insert,
    _replace,
    _drop,
    _repeat,
    _cut,
    _swap_lines,
)
