"""Files that are not cluster files are rejected with a line number."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from config.reading.loader import load_cluster
from config.reading.yaml_document import read_document

REPOSITORY = Path(__file__).parents[3]
FILES = {
    "": "the file is empty; start from clusters/slurm.yaml",
    "# only a comment\n": "the file is empty; start from clusters/slurm.yaml",
    "- slurm\n": "got a list; a cluster file is a mapping; start from clusters/slurm.yaml",
    "slurm\n": "got a single value; a cluster file is a mapping; start from clusters/slurm.yaml",
    "name: a\nregion: b\nname: c\n": "line 3: got 'name' again after line 1; remove one of them",
    "storage:\n  lustre: {efa: true, efa: false}\n": (
        "line 2: got 'efa' again after line 2; remove one of them"
    ),
    "name: [a\nregion: b\n": (
        "not YAML: line 2, column 7: while parsing a flow sequence, expected ',' or ']', but got ':'"
    ),
    "\tname: a\n": (
        "not YAML: line 1, column 1: while scanning for the next token, found character '\\t' that cannot"
        " start any token"
    ),
    "name: !!python/object:os.system a\n": (
        "line 1: got the tag 'tag:yaml.org,2002:python/object:os.system'; remove it, and put text in quotes"
    ),
    "name: a\ntags: !!set {a, b}\n": (
        "line 2: got the tag 'tag:yaml.org,2002:set'; remove it, and put text in quotes"
    ),
    "name: !my a\n": "line 1: got the tag '!my'; remove it, and put text in quotes",
    "name: a\n? [b]\n: c\n": "line 2: got a list or mapping as a key; expected text",
    "storage:\n  {a: b}: c\n": "line 2: got a list or mapping as a key; expected text",
    "name: &a b\nregion: *a\n": "line 2: got the alias *a; write the value itself",
    "a: &a [*a]\n": "line 1: got the alias *a; write the value itself",
    "name:\n  " + "[" * 3000: "line 2: more than 16 levels of nesting; remove some",
    "".join("  " * level + "a:\n" for level in range(900)): (
        "line 16: more than 16 levels of nesting; remove some"
    ),
    '"\\e[2J": a\n"\\e[2J": b\n': "line 2: got '\\x1b[2J' again after line 1; remove one of them",
    "name: a\n# \x85\n": "line 2: got the invisible character U+0085; remove it",
    "name: a\u2028b\n": "line 1: got the invisible character U+2028; remove it",
    "7: a\n'7': b\n": "line 2: got '7' again after line 1; remove one of them",
}


@pytest.mark.parametrize("text", FILES)
def test_rejects_text_that_is_not_a_cluster_file(text: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(ValueError) as caught:
        load_cluster(path)
    assert str(caught.value) == f"{path}: {FILES[text]}"


@pytest.mark.parametrize("escape", ["N", "L", "P", "a", "e", "x9b"])
def test_rejects_harmful_escaped_control_characters(escape: str, tmp_path: Path) -> None:
    text = (REPOSITORY / "clusters/slurm-p5.yaml").read_text()
    for mark in (
        "ada@example.com",
        "hpc-alerts@example.com",
        "https://idp.example.com/app",
        "hpc-admins",
    ):
        assert mark in text
        broken = re.sub(
            rf"([^\n]*- |: |\[)([^\n\[]*{mark}[^\n\]]*)", rf'\1"\2\\{escape}x"', text, count=1
        )
        path = tmp_path / "cluster.yaml"
        path.write_text(broken)
        with pytest.raises(ValueError, match=r"is allowed|are allowed|is one line") as caught:
            load_cluster(path)
        assert all(line.isprintable() for line in str(caught.value).split("\n"))


VALUES = {
    "12": 12,
    "-1": -1,
    "0": 0,
    "2.50": 2.5,
    "1e3": 1000.0,
    "true": True,
    "False": False,
    "null": None,
    "~": None,
    "": None,
    "010": "010",
    "0x10": "0x10",
    "0o7": "0o7",
    "1_000": "1_000",
    "1:30": "1:30",
    "on": "on",
    "no": "no",
    "y": "y",
    "2026-08-30": "2026-08-30",
    "=": "=",
    "'12'": "12",
    "9999999999999999999": "9999999999999999999",
}


@pytest.mark.parametrize("text", VALUES)
def test_reads_values_as_yaml_1_2(text: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(f"key: {text}\n")
    value = read_document(path)["key"]
    assert (value, type(value)) == (VALUES[text], type(VALUES[text]))


def test_keys_are_strings(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("{1: a, true: b, <<: {c: d}, '': e}\n")
    assert read_document(path) == {"1": "a", "true": "b", "<<": {"c": "d"}, "": "e"}


def test_reports_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"none\.yaml: no such file; set the path of a cluster file"
    ):
        load_cluster(tmp_path / "none.yaml")


def test_rejects_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r": not a file; set the path of a cluster file"):
        load_cluster(tmp_path)


def test_reports_an_unreadable_file() -> None:
    """Permissions do not restrict root, so the test uses a file that no one can read."""
    with pytest.raises(
        ValueError, match=r"mem cannot be read: Input/output error; name a YAML file"
    ):
        load_cluster(Path("/proc/self/mem"))


def test_rejects_bytes_that_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_bytes(b"name: \xff\n")
    with pytest.raises(ValueError, match=r"byte 6 is not UTF-8; save the file as UTF-8 text$"):
        load_cluster(path)


def test_rejects_a_control_character(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_bytes(b"name: \x01\n")
    with pytest.raises(ValueError, match=r"#x0001: special characters are not allowed"):
        load_cluster(path)
