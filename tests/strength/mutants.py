"""Mutants of a source file: one small change each, on one line."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "+",
    ast.Pow: "*",
    ast.LShift: ">>",
    ast.RShift: "<<",
}


@dataclass(frozen=True)
class Mutant:
    """Replacement of ``before``, which begins at a line and a column of a file, by ``after``."""

    path: Path
    line: int
    column: int
    before: str
    after: str
    measured_line: int
    """First line of the statement, under which coverage counts all of its lines."""
    text: str
    """The whole line without its indentation, by which the mutant is found again in a later version."""

    def applied(self, source: str) -> str:
        lines = source.splitlines(keepends=True)
        text = lines[self.line - 1]
        end = self.column + len(self.before)
        if text[self.column : end] != self.before:
            raise ValueError(
                f"{self.path}:{self.line}: expected {self.before!r} at column {self.column}"
            )
        lines[self.line - 1] = text[: self.column] + self.after + text[end:]
        return "".join(lines)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"path": str(self.path)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Mutant:
        names = ("line", "column", "before", "after", "measured_line", "text")
        return cls(Path(fields["path"]), **{name: fields[name] for name in names})

    def found_again(self, repository: Path, files: list[Path]) -> Mutant | None:
        """Return this mutant in the present ``files``: at the nearest equal line, first in its own file."""
        own = [path for path in files if path == self.path]
        for path in own + [path for path in files if path != self.path]:
            lines = (repository / path).read_text().splitlines()
            numbers = [
                number for number, line in enumerate(lines, start=1) if line.strip() == self.text
            ]
            for number in sorted(numbers, key=lambda number: abs(number - self.line)):
                for mutant in mutants_of(repository / path, path, number):
                    if (mutant.before, mutant.after) == (self.before, self.after):
                        return mutant
        return None


def mutants_of(file: Path, name: Path, line: int) -> list[Mutant]:
    """Return the mutants of a line of ``file`` that still parse. ``name`` is the path in the repository."""
    source, changes = _read(file)
    found = []
    for statement, node, after in changes.get(line, ()):
        before = ast.get_source_segment(source, node) or ""
        text = source.splitlines()[line - 1].strip()
        mutant = Mutant(name, line, node.col_offset, before, after, statement.lineno, text)
        with suppress(SyntaxError):
            ast.parse(mutant.applied(source))
            found.append(mutant)
    return found


@cache
def _read(file: Path) -> tuple[str, dict[int, list[tuple[ast.stmt, Any, str]]]]:
    """Text of a file, and its changes by line."""
    source = file.read_text()
    lines = source.splitlines()
    by_line: dict[int, list[tuple[ast.stmt, Any, str]]] = defaultdict(list)
    for change in _changes(ast.parse(source)):
        node = change[1]
        if (
            node.lineno == node.end_lineno and lines[node.lineno - 1].isascii()
        ):  # columns of ast count bytes
            by_line[node.lineno].append(change)
    return source, by_line


def _changes(tree: ast.Module) -> Iterator[tuple[ast.stmt, Any, str]]:
    """Statement, node and the node's new text. Annotations and imports for type checkers stay as they are."""
    pending: list[tuple[ast.stmt | None, ast.AST]] = [(None, tree)]
    while pending:
        statement, node = pending.pop()
        if isinstance(node, ast.stmt):
            statement = node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if statement is not None:
            yield from ((statement, changed, after) for changed, after in _of_node(node))
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_params"):
                continue
            children = value if isinstance(value, list) else [value]
            pending += [(statement, child) for child in children if isinstance(child, ast.AST)]


def _of_node(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if (
            type(operator) in COMPARISONS
        ):
            yield node, f"{ast.unparse(left)} {COMPARISONS[type(operator)]} {ast.unparse(right)}"
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in ARITHMETIC:
            yield node, f"({ast.unparse(left)} {ARITHMETIC[type(operator)]} {ast.unparse(right)})"
        case ast.BoolOp(op=operator, values=values):
            word = " or " if isinstance(operator, ast.And) else " and "
            yield node, f"({word.join(ast.unparse(value) for value in values)})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, f"({ast.unparse(operand)})"
        case ast.Constant(value=bool() as value):
            yield node, str(not value)
        case ast.Constant(value=int() | float() as number):
            yield node, repr(number + 1)
        case ast.Return(value=ast.expr() as value) if not _is_none(value):
            yield node, "return None"
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            yield test, f"(not ({ast.unparse(test)}))"
        case ast.Raise() | ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield node, "pass"


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
