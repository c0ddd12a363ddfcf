"""Limits on imports between folders, and on the size of folders and files (docs/architecture.md)."""

from __future__ import annotations

import ast
import subprocess
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
FAMILIES = tuple(
    f"seqlm.{name}"
    for name in (
        "bionemo",
        "commands",
        "language",
        "proteins",
        "runs.families",
        "runs.kinds",
        "runs.run_file",
    )
)
TOP = ("seqlm.api", "seqlm.commands")
FORBIDDEN = {
    "workloads/seqlm/training": (*FAMILIES, "seqlm.launch", "seqlm.runs.stages"),
    "workloads/seqlm/launch": FAMILIES,
    "workloads/seqlm/proteins": ("seqlm.bionemo", "seqlm.language", "seqlm.api"),
    "workloads/seqlm/language": ("seqlm.bionemo", "seqlm.proteins", *TOP),
    "workloads/seqlm/bionemo": ("seqlm.language", "seqlm.proteins", *TOP),
    "workloads": ("config", "constructs", "functions", "manifests", "monitoring", "stacks", "tools", "tests"),
    "config": ("constructs", "functions", "manifests", "monitoring", "stacks", "tools", "seqlm"),
}
"""Folders, and what no module in them imports. Nodes and the image have ``seqlm`` alone."""
SHARED = "seqlm.training.strict_yaml"
"""Reader of run files, and of cluster files."""
MAX_LINES, MAX_MODULES = 400, 26
LISTED = subprocess.run(
    ["git", "ls-files", "*.py"], cwd=REPOSITORY, capture_output=True, text=True, check=True
)
FILES = {
    f: f.removesuffix(".py").removeprefix("workloads/").replace("/", ".")
    for f in LISTED.stdout.split()
    if not f.startswith("tests/")
}


def imported(file: str) -> Iterator[str]:
    """Modules by their full names, and what is taken from them."""
    package = file.split("/")[:-1]
    for node in ast.walk(ast.parse((REPOSITORY / file).read_text())):
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from (module, *(f"{module}.{name.name}" for name in node.names))
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def test_folders_do_not_import_upwards() -> None:
    wrong = [
        (file, name)
        for folder, names in FORBIDDEN.items()
        for file in FILES
        if file.startswith(f"{folder}/")
        for name in imported(file)
        if any(name == other or name.startswith(f"{other}.") for other in names)
        if not (folder == "config" and name.startswith(SHARED))
    ]
    assert not wrong


def test_modules_do_not_import_each_other_in_circles() -> None:
    modules = set(FILES.values())
    TopologicalSorter({module: modules & set(imported(file)) for file, module in FILES.items()}).prepare()


def test_folders_and_files_are_small() -> None:
    folders = Counter(str(Path(file).parent) for file in FILES if Path(file).name != "__init__.py")
    assert not {folder: count for folder, count in folders.items() if count > MAX_MODULES}
    lines = {file: (REPOSITORY / file).read_text().count("\n") for file in FILES}
    assert not {file: count for file, count in lines.items() if count > MAX_LINES}


def test_programs_start_on_their_last_line() -> None:
    """Code behind ``if __name__ == "__main__"`` is not defined when a program starts."""
    wrong = [
        file
        for file in FILES
        for node in ast.parse((REPOSITORY / file).read_text()).body[:-1]
        if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
    ]
    assert not wrong
