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
    findings = sorted(prose.findings(path, RULES))
    return [f"{line}: {message}" for line, message in findings]


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
        "'Whose'" in lines[0]
        and "'Nobody'" in lines[1]
        and "'told'" in lines[2]
        and "'goes on'" in lines[3]
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


def fragments(path: Path, text: str) -> list[str]:
    return found(path / "module.py", text)


@pytest.mark.parametrize(
    ("entry", "word"),
    [
        ("config: of the run", "of"),
        ("cluster: has the nodes", "has"),
        ("archive: where that goes meanwhile, an empty file", "where"),
        ("uid: by which a dashboard is found again", "by"),
        ("wanted: to the file", "to"),
        ("model: that is read", "that"),
        ("rows: likewise", "likewise"),
        ("nodes: those of the job", "those"),
        ("batch: returns the records", "returns"),
        ("is_wanted: decides by a product's family", "decides"),
        ("opener: opens a URL", "opens"),
        ("request: sends it", "sends"),
        ("was_bought: looks whether it is there", "looks"),
        ("q, k: of all heads", "of"),
        ("path (Path): in which it lies", "in"),
    ],
)
def test_entries_that_begin_in_the_middle_of_a_sentence(
    tmp_path: Path, entry: str, word: str
) -> None:
    source = f'''"""Module."""
class Reader:
    def read(self) -> None:
        """Read.

        Args:
            first: folder of the run
            {entry}, and a second line
                of the run.
        """
'''
    (line,) = fragments(tmp_path, source)
    assert line.startswith(f"8: entry of Args begins with {word!r}")


def test_noun_phrases_and_conditions_are_entries(tmp_path: Path) -> None:
    source = '''"""Module."""
def read() -> None:
    """Read the file of a run.

    The reader says: of course not.

    Args:
        cluster: cluster file
        seed: by default 0
        here: this process; all of them call this
        q: (T, H, D) queries
        in_place: whether the file is changed
        up_to: on-demand nodes, up to this number
        accepted: accept sequences that look like DNA

    Returns:
        float32 array (N, C),
        of the names.

    Raises:
        ValueError: if the file is missing
        OSError, KeyError: from the parser
        Stopped: with the status of the job
    """
'''
    assert not fragments(tmp_path, source)


def test_sections_after_args_have_their_own_rules(tmp_path: Path) -> None:
    source = '''"""Module."""
def read() -> None:
    """Read.

    Returns:
        Of all runs, the names.

    Raises:
        ValueError: also if the file is missing
    """
'''
    returns, raises = fragments(tmp_path, source)
    assert returns.startswith("6: entry of Returns begins with 'Of'")
    assert raises.startswith("9: entry of Raises begins with 'also'")


def test_texts_for_users_are_whole_phrases(tmp_path: Path) -> None:
    source = """
parser.add_argument("--team", help="whose jobs, by their quota")
parser.add_argument("--node", help=f"of {1}")
parser.add_argument("--out", help="on EKS: folder for the results")
parser.add_argument("--keep", help="folder goes on")
alert("Silent", summary="of the nodes, one is silent", action="look it up")
"""
    lines = fragments(tmp_path, source)
    assert [line.partition("; ")[0] for line in lines] == [
        "2: help= begins with 'whose'",
        "3: help= begins with 'of'",
        "5: 'goes on': continue, resume",
        "6: summary= begins with 'of'",
    ]


def test_who_is_for_people(tmp_path: Path) -> None:
    assert fragments(tmp_path, "# The node, who is slow.\n")
    assert fragments(tmp_path, "# Say who is to blame.\n")
    assert fragments(tmp_path, "# In this folder there is none.\n")
    assert not fragments(
        tmp_path, "# Users who log in, and a file whose name is known; 0 if there is none.\n"
    )


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
