"""Check the project's English against the rules in ``prose.toml``: ``python -m tools.documents.prose``.

First words are checked in docstrings. Turns of phrase and terms are checked in docstrings, messages,
comments, names of tests and documents. Documents are also checked for length and for long sentences.
Entries of docstrings, help texts and texts of alerts must be whole phrases.
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).parents[2]
COMMENTED = {".sh", ".yaml", ".yml", ".toml", ".sbatch", ".in", ".service", ""}
"""Suffixes of files whose comments begin with ``#``. Without a suffix: Makefile, Dockerfile and the like."""
LEFT_OUT = re.compile(
    r"^(LICENSE|tools/documents/prose\.toml|tests/tools/documents/test_prose\.py|tests/golden/)|\.lock$|\.schema\.json$"
)
MIN_MESSAGE_WORDS = 4
"""Shorter strings are keys and values, not sentences."""
SECTION = re.compile(r"(Args|Returns|Yields|Raises):$")
"""Heading of a section of a docstring in Google style."""
ENTRY = re.compile(r"[\w.*, ]+(?: \([^)]*\))?: +(.*)")
"""First line of an entry of ``Args`` or ``Raises``: names, and the text after the colon."""
ENTRY_INDENT = 4


class Finding(NamedTuple):
    line: int
    message: str


class Entry(NamedTuple):
    """Beginning of an entry in a section of a docstring."""

    section: str
    line: int
    text: str


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the project's English.")
    parser.add_argument("paths", nargs="*", help="tracked files, folders or patterns; default all")
    arguments = parser.parse_args()
    rules = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    listed = subprocess.run(
        ["git", "ls-files", *arguments.paths], cwd=REPOSITORY, capture_output=True, check=True
    )
    count = 0
    for name in listed.stdout.decode().splitlines():
        path = REPOSITORY / name
        if LEFT_OUT.search(name) or not path.is_file():
            continue
        for line, message in sorted(findings(path, rules)):
            print(f"{name}:{line}: {message}")
            count += 1
    print(f"{count} findings of the prose rules" if count else "Prose rules: no findings")
    return int(bool(count))


def findings(path: Path, rules: dict[str, Any]) -> Iterator[Finding]:
    """Yield the findings of one file; files of other kinds have none."""
    if path.suffix == ".py":
        source = path.read_text()
        nodes = list(ast.walk(ast.parse(source)))
        yield from _python(source, nodes, rules)
        yield from _fragments(nodes, rules)
    elif path.suffix == ".md":
        yield from _document(path, rules)
    elif path.suffix in COMMENTED:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if comment := re.search(r"(?:^|\s)##? (.*)", line):
                yield from _phrases(comment[1], number, rules)


def _docstrings(nodes: Sequence[ast.AST]) -> Iterator[ast.Constant]:
    """Yield the strings that stand alone: docstrings, and strings below constants and fields."""
    for node in nodes:
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value


def _python(source: str, nodes: Sequence[ast.AST], rules: dict[str, Any]) -> Iterator[Finding]:
    first_word = re.compile(rf"\s*({'|'.join(rules['first_words'])})\b")
    documented = set()
    for docstring in _docstrings(nodes):
        documented.add(id(docstring))
        text = str(docstring.value)
        if first := first_word.match(text):
            message = f"docstring begins with {first[1]!r}; name the thing, or begin with a verb"
            yield Finding(docstring.lineno, message)
        yield from _phrases(text, docstring.lineno, rules)
    for node in nodes:
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in documented
        ):
            if len(node.value.split()) >= MIN_MESSAGE_WORDS:
                yield from _phrases(node.value, node.lineno, rules)
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield from _phrases(node.name.replace("_", " "), node.lineno, rules)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from _phrases(token.string, token.start[0], rules)


def _fragments(nodes: Sequence[ast.AST], rules: dict[str, Any]) -> Iterator[Finding]:
    """Yield entries of docstrings, and texts of help and alerts, that begin in the middle of a sentence."""
    fragments = rules["fragments"]
    in_phrase, in_condition = (
        re.compile(rf"(?:{'|'.join(fragments[key])})(?![\w-])", re.IGNORECASE)
        for key in ("first_words", "first_words_of_raises")
    )
    for docstring in _docstrings(nodes):
        for entry in _entries(docstring):
            first_word = in_condition if entry.section == "Raises" else in_phrase
            if first := first_word.match(entry.text):
                yield Finding(
                    entry.line, f"entry of {entry.section} begins with {first[0]!r}; name the thing"
                )
    for node in nodes:
        for keyword in node.keywords if isinstance(node, ast.Call) else []:
            if keyword.arg in fragments["keywords"]:
                text = _first_text(keyword.value)
                if first := in_phrase.match(text):
                    message = f"{keyword.arg}= begins with {first[0]!r}; name the thing, or begin with a verb"
                    yield Finding(keyword.value.lineno, message)
                if len(text.split()) < MIN_MESSAGE_WORDS:
                    yield from _phrases(text, keyword.value.lineno, rules)


def _entries(docstring: ast.Constant) -> Iterator[Entry]:
    section = ""
    section_indent = 0
    first_of_section = False
    for line, text in enumerate(str(docstring.value).splitlines(), docstring.lineno):
        stripped = text.strip()
        indent = len(text) - len(text.lstrip())
        if heading := SECTION.match(stripped):
            section = heading[1]
            section_indent = indent
            first_of_section = True
        elif stripped and indent <= section_indent:
            section = ""
        elif section and indent == section_indent + ENTRY_INDENT:
            if section in ("Returns", "Yields"):
                if first_of_section:
                    yield Entry(section, line, stripped)
            elif named := ENTRY.match(stripped):
                yield Entry(section, line, named[1])
            first_of_section = False


def _first_text(expression: ast.expr) -> str:
    """Return the text that an expression begins with; empty for other expressions than strings."""
    if isinstance(expression, ast.JoinedStr) and expression.values:
        expression = expression.values[0]
    if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
        return expression.value
    return ""


def _document(path: Path, rules: dict[str, Any]) -> Iterator[Finding]:
    text = path.read_text()
    kind = "readme" if path.name == "README.md" else "document"
    for unit, count in (("lines", len(text.splitlines())), ("words", len(text.split()))):
        if count > (most := rules[f"max_{kind}_{unit}"]):
            yield Finding(1, f"{count} {unit}; at most {most}")
    plain = re.sub(
        r"```.*?```|<!--.*?-->", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL
    )
    plain = re.sub(r"`[^`\n]+`", "Code", plain)
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", plain)
    number = 1
    # A block ends at an empty line; list items, headings and table cells stand alone.
    for block in re.split(r"(\n\s*\n|\n(?=\s*(?:[-*#|]|\d+\.) ?)|(?<=\|)(?!\n))", plain):
        yield from _phrases(block, number, rules)
        for sentence in re.split(r"(?<=[.!?])\)?\s+(?=[A-Z`*\"(])", block.strip(" \n|#*-")):
            words = [word for word in sentence.split() if re.search(r"\w", word)]
            start = f": {' '.join(words[:6])} ..."
            if len(words) > (most := rules["max_sentence_words"]):
                yield Finding(number, f"sentence of {len(words)} words; at most {most}{start}")
            if len(re.findall(r"[:;]\s", sentence)) > 1:
                yield Finding(number, f"sentence with more than one colon or semicolon{start}")
        number += block.count("\n")


def _phrases(text: str, line: int, rules: dict[str, Any]) -> Iterator[Finding]:
    one_line = re.sub(r"\s+", " ", text)
    for pattern, better in (rules["phrases"] | rules["terms"]).items():
        for found in re.finditer(pattern, one_line, re.IGNORECASE):
            yield Finding(line, f"{found[0]!r}: {better}")


if __name__ == "__main__":
    sys.exit(main())
