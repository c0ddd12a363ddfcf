"""Check the project's English against the rules in ``prose.toml``: ``python -m tools.documents.prose``.

First words are checked in docstrings. Turns of phrase and terms are checked in docstrings, messages,
comments, names of tests and documents. Documents are also checked for length and for long sentences.
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
COMMENTED = {".sh", ".yaml", ".yml", ".toml", ".sbatch", ".in", ".service", ""}
"""Suffixes of files whose comments begin with ``#``. Without a suffix: Makefile, Dockerfile and the like."""
LEFT_OUT = re.compile(
    r"^(LICENSE|tools/documents/prose\.toml|tests/tools/documents/test_prose\.py|tests/golden/)|\.lock$|\.schema\.json$"
)
MIN_MESSAGE_WORDS = 4
"""Shorter strings are keys and values, not sentences."""
Finding = tuple[int, str]
"""Line number and message."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the project's English.")
    parser.add_argument("paths", nargs="*", help="tracked files, folders or patterns; default all")
    paths = parser.parse_args().paths
    rules = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    listed = subprocess.run(["git", "ls-files", *paths], cwd=REPOSITORY, capture_output=True, check=True)
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
        yield from _python(path.read_text(), rules)
    elif path.suffix == ".md":
        yield from _document(path, rules)
    elif path.suffix in COMMENTED:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if comment := re.search(r"(?:^|\s)##? (.*)", line):
                yield from _phrases(comment[1], number, rules)


def _python(source: str, rules: dict[str, Any]) -> Iterator[Finding]:
    tree = ast.parse(source)
    documented = set()
    for node in ast.walk(tree):
        for item in getattr(node, "body", None) or [] if not isinstance(node, ast.Lambda | ast.IfExp) else []:
            if isinstance(item, ast.Expr) and isinstance(text := getattr(item.value, "value", None), str):
                documented.add(id(item.value))
                if first := re.match(rf"\s*({'|'.join(rules['first_words'])})\b", text):
                    yield (
                        item.lineno,
                        f"docstring begins with {first[1]!r}; name the thing, or begin with a verb",
                    )
                yield from _phrases(text, item.lineno, rules)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            if len(node.value.split()) >= MIN_MESSAGE_WORDS:
                yield from _phrases(node.value, node.lineno, rules)
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield from _phrases(node.name.replace("_", " "), node.lineno, rules)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from _phrases(token.string, token.start[0], rules)


def _document(path: Path, rules: dict[str, Any]) -> Iterator[Finding]:
    text = path.read_text()
    kind = "readme" if path.name == "README.md" else "document"
    for unit, count in (("lines", len(text.splitlines())), ("words", len(text.split()))):
        if count > (most := rules[f"max_{kind}_{unit}"]):
            yield 1, f"{count} {unit}; at most {most}"
    plain = re.sub(r"```.*?```|<!--.*?-->", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL)
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`\n]+`", "Code", plain))
    number = 1
    # A block ends at an empty line; list items, headings and table cells stand alone.
    for block in re.split(r"(\n\s*\n|\n(?=\s*(?:[-*#|]|\d+\.) ?)|(?<=\|)(?!\n))", plain):
        yield from _phrases(block, number, rules)
        for sentence in re.split(r"(?<=[.!?])\)?\s+(?=[A-Z`*\"(])", block.strip(" \n|#*-")):
            words = [word for word in sentence.split() if re.search(r"\w", word)]
            start = f": {' '.join(words[:6])} ..."
            if len(words) > (most := rules["max_sentence_words"]):
                yield number, f"sentence of {len(words)} words; at most {most}{start}"
            if len(re.findall(r"[:;]\s", sentence)) > 1:
                yield number, f"sentence with more than one colon or semicolon{start}"
        number += block.count("\n")


def _phrases(text: str, line: int, rules: dict[str, Any]) -> Iterator[Finding]:
    for pattern, better in (rules["phrases"] | rules["terms"]).items():
        for found in re.finditer(pattern, re.sub(r"\s+", " ", text), re.IGNORECASE):
            yield line, f"{found[0]!r}: {better}"


if __name__ == "__main__":
    sys.exit(main())
