"""Tests of the prose rules, and of the proof that a change of language changes no code."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.tools.documents.same_code import same
from tools.documents import prose

RULES = tomllib.loads(Path(prose.__file__).with_suffix(".toml").read_text())


def found(path: Path, text: str) -> list[str]:
    path.write_text(text)
    return [f"{line}: {message}" for line, message in sorted(prose.findings(path, RULES))]


def test_each_kind_of_text_in_python_is_checked(tmp_path: Path) -> None:
    source = '''"""Whose file this is."""
# Nobody reads this comment.
class A:
    field: int = 1
    """By default 1, which is allowed."""
def test_what_is_told() -> None:
    raise ValueError(f"the job {1} goes on without an end")
'''
    lines = found(tmp_path / "module.py", source)
    assert [line.partition(":")[0] for line in lines] == ["1", "2", "6", "7"]
    assert (
        "'Whose'" in lines[0] and "'Nobody'" in lines[1] and "'told'" in lines[2] and "'goes on'" in lines[3]
    )


def test_documents_are_checked_for_length_and_sentences(tmp_path: Path) -> None:
    words = " ".join(["word"] * 31)
    text = (
        f"# Title\n\nShort: one colon.\n\n{words}.\n\nOne: two; three.\n\n```\n{words} told\n```\n"
        + "line\n" * 300
    )
    lines = found(tmp_path / "page.md", text)
    assert "1: 311 lines; at most 300" in lines
    assert next(line for line in lines if "31 words" in line).startswith("5:")
    assert next(line for line in lines if "colon" in line).startswith("7:")
    assert not any("told" in line for line in lines)


def test_comments_of_yaml_and_shell_are_checked(tmp_path: Path) -> None:
    assert found(tmp_path / "a.yaml", "a: told  # nobody\n")[0].startswith("1: 'nobody'")
    assert found(tmp_path / "Makefile", "a: ## it goes on\n")[0].startswith("1: 'goes on'")


@pytest.mark.parametrize(
    ("name", "old", "new", "equal"),
    [
        ("a.py", '"""Of a."""\nx = f"told {1}"  # a\n', '"""A."""\nx = f"{1} reported"\n', True),
        ("a.py", 'x = f"{1} {2}"', 'x = f"{2} {3}"', False),
        ("a.py", "x = 1", "x = 2", False),
        ("a.py", "def test_a(): pass", "def test_b(): pass", True),
        ("a.yaml", "a: 1  # told\n", "# A value.\na: 1\n", True),
        ("a.yaml", "a: 1", "a: 2", False),
        ("a.sh", "ls  # told", "ls", True),
        ("a.sh", "ls", "ls -l", False),
    ],
)
def test_changed_code_is_distinguished_from_changed_language(
    name: str, old: str, new: str, equal: bool
) -> None:
    assert same(name, old, new) is equal
