"""Layers: who may import whom, and the size of folders and files (docs/architecture.md).

An import counts wherever it stands, also in a function. Only imports under ``TYPE_CHECKING`` do not count. A
module that is named in a string counts as imported, because such a string is loaded or started later.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
LAYERS: tuple[tuple[str, ...], ...] = (
    ("seqlm.training",),
    # Records of the models: what run files, plans and nodes read of them, without torch.
    (
        "seqlm.bionemo.config",
        "seqlm.language.config",
        "seqlm.proteins.config",
        "seqlm.proteins.families.*.facts",
        "seqlm.proteins.families.family",
        "seqlm.proteins.families.table",
        "seqlm.proteins.finetune.task_kinds",
        "seqlm.proteins.finetune.variants.kinds",
        "seqlm.proteins.inference.poolings",
        "seqlm.proteins.inference.variant_scores",
        "seqlm.proteins.model.shape",
        "seqlm.proteins.reading.chain_modes",
    ),
    ("seqlm.runs",),
    ("seqlm.launch",),
    ("seqlm.proteins", "seqlm.language", "seqlm.bionemo"),
    ("seqlm.commands",),
    ("seqlm.api", "seqlm.__main__", "seqlm"),
)
"""Layers of the package, lowest first. A module imports its own layer and lower ones. Packages of one layer
do not import each other; modules of the records do."""
RECORDS = 1
"""Place of the layer of records."""
LAUNCH = "seqlm.launch"
"""Package of the launchers, which read no records of models either."""
STRICT_YAML = "seqlm.training.strict_yaml"
"""Reader of run files, and of cluster files."""
FOLDERS: dict[str, tuple[str, ...]] = {
    "app": ("config", "stacks", "tools"),
    "benchmarks": ("config", "seqlm", "tests", "tools"),
    "config": (STRICT_YAML,),
    "constructs": ("config", "manifests", "monitoring"),
    "docker": (),
    "functions": (),
    "lifecycle": (),
    "manifests": ("config",),
    "monitoring": ("config",),
    "seqlm": (),
    "stacks": ("config", "constructs", "manifests", "monitoring"),
    "tools": ("config", "manifests", "seqlm", "stacks"),
    "workloads": (),
}
"""Folders of the repository, and what their modules import beside their own folder."""
DOORS = {
    "seqlm.runs.stages": "the command line and the launchers start what it names",
    "seqlm.runs.inference_commands": "the command line starts what it names",
    "seqlm.proteins.families.*.facts": "the model classes of a family, which bring torch",
}
"""Tables that name modules of upper layers as text, and why."""
RESOLVERS = {"seqlm.commands.functions", "seqlm.proteins.families.family"}
"""Modules that import what the tables name."""
OF_OTHERS = {
    "seqlm.bionemo.installed",
    "seqlm.bionemo.recorder",
    "seqlm.training.tracking.training_metrics",
}
"""Modules that import optional packages of others by name."""
MAX_LINES = 600
MAX_MODULES = 26


def module_of(file: str) -> str:
    """Return the name under which a file is imported."""
    name = file.removesuffix(".py").removesuffix("/__init__")
    return re.sub(r"^workloads/(?=seqlm)", "", name).replace("/", ".")


LISTED = subprocess.run(
    ["git", "ls-files", "*.py"], cwd=REPOSITORY, capture_output=True, text=True, check=True
)
FILES = {
    file: module_of(file)
    for file in LISTED.stdout.split()
    if not file.startswith("tests/") and (REPOSITORY / file).exists()
}
MODULES = frozenset(FILES.values())
_NAMED = re.compile(r"(?:seqlm\.)?([a-z_0-9]+(?:\.[a-z_0-9]+)+)(?::\w+)?")


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk a module without what only type checkers read."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield other
                yield from _nodes(other)
            continue
        yield node
        yield from _nodes(node)


def imported(file: str, source: str) -> Iterator[str]:
    """Yield the full names of imported modules, and of what is taken from them."""
    package = (
        module_of(file).split(".")
        if file.endswith("__init__.py")
        else module_of(file).split(".")[:-1]
    )
    for node in _nodes(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from (module, *(f"{module}.{name.name}" for name in node.names))
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def named(source: str) -> Iterator[str]:
    """Yield the modules of the package that strings name, with ``seqlm.`` or as ``module:function``."""
    for node in _nodes(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = _NAMED.fullmatch(node.value)
            if found and (module := f"seqlm.{found[1]}") in MODULES:
                yield module


def layer_of(module: str) -> tuple[int, str]:
    """Return the place of a module's layer, and its package or pattern there."""
    matches = [
        (len(pattern), place, pattern)
        for place, patterns in enumerate(LAYERS)
        for pattern in patterns
        if fnmatch(module, pattern) or module.startswith(f"{pattern}.")
    ]
    assert matches, f"{module} belongs to no layer; give its package one"
    _, place, pattern = max(matches)
    return place, pattern


def is_allowed(module: str, other: str) -> bool:
    """Return whether one module may import another."""
    folder = module.partition(".")[0]
    other_folder = other.partition(".")[0]
    if folder != other_folder:
        return any(other == name or other.startswith(f"{name}.") for name in FOLDERS[folder])
    if folder != "seqlm":
        return True
    place, package = layer_of(module)
    other_place, other_package = layer_of(other)
    if package == LAUNCH and other_place == RECORDS:
        return False
    if place == other_place:
        return package == other_package or place in (RECORDS, len(LAYERS) - 1)
    return place > other_place


def owner_of(name: str) -> str:
    """Return the module that a name belongs to; the name itself if no module is known."""
    parts = name.split(".")
    prefixes = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in MODULES and prefix != "seqlm"), name)


def violations(file: str, source: str) -> list[str]:
    """List the modules of the repository that a file may not import, or not name in a string."""
    module = module_of(file)
    tops = {name.partition(".")[0] for name in MODULES} | {"tests"}
    found = [owner_of(name) for name in imported(file, source) if name.partition(".")[0] in tops]
    if not any(fnmatch(module, door) for door in DOORS):
        found += named(source)
    return sorted({name for name in found if not is_allowed(module, name)})


def test_every_folder_has_a_rule() -> None:
    assert {module.partition(".")[0] for module in MODULES} == {*FOLDERS}


@pytest.mark.parametrize("folder", FOLDERS)
def test_modules_import_only_what_their_layer_allows(folder: str) -> None:
    wrong = {
        file: found
        for file, module in FILES.items()
        if module.partition(".")[0] == folder
        if (found := violations(file, (REPOSITORY / file).read_text()))
    }
    assert not wrong


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("workloads/seqlm/training/hashing.py", "import seqlm.proteins.families.esmc.model"),
        (
            "workloads/seqlm/training/hashing.py",
            "def f():\n    from seqlm.proteins.explore import projection",
        ),
        ("workloads/seqlm/training/hashing.py", "from ..runs import stages"),
        ("workloads/seqlm/training/hashing.py", "NAME = 'seqlm.proteins.finetune.tasks'"),
        ("workloads/seqlm/launch/pod_job.py", "from seqlm.bionemo.files import export_files"),
        (
            "workloads/seqlm/launch/pod_job.py",
            "from seqlm.proteins.families.table import MODEL_FAMILIES",
        ),
        ("workloads/seqlm/launch/pod_job.py", "START = 'proteins.explore.command:explore'"),
        ("workloads/seqlm/runs/run_file.py", "from seqlm.proteins.data import prepare"),
        ("workloads/seqlm/language/table.py", "from seqlm.proteins.alphabet import encode"),
        ("workloads/seqlm/proteins/config.py", "from seqlm.runs.run_file import RunFile"),
        ("workloads/seqlm/proteins/alphabet.py", "from seqlm import api"),
        ("workloads/seqlm/api.py", "import config.cluster"),
        ("constructs/storage/log_group.py", "from tools.names import x"),
        ("config/cluster.py", "from seqlm.training.config import RunConfig"),
        ("monitoring/alerts.py", "import constructs.vpc.network"),
        ("lifecycle/slurm/bootstrap.py", "from config.cluster import Cluster"),
    ],
)
def test_an_import_of_an_upper_layer_is_found(file: str, source: str) -> None:
    assert violations(file, source)


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("workloads/seqlm/language/table.py", "from seqlm.runs.run_file import RunFile"),
        (
            "workloads/seqlm/proteins/config.py",
            "if TYPE_CHECKING:\n    from seqlm.runs.run_file import RunFile",
        ),
        ("config/cluster.py", "from seqlm.training.strict_yaml import read_yaml"),
    ],
)
def test_an_import_of_a_lower_layer_is_allowed(file: str, source: str) -> None:
    assert not violations(file, source)


def test_only_the_command_line_and_the_families_import_by_name() -> None:
    using = {
        module
        for file, module in FILES.items()
        if module.partition(".")[0] == "seqlm"
        if re.search(r"\bimport_module\(|__import__\(", (REPOSITORY / file).read_text())
    }
    assert using == RESOLVERS | OF_OTHERS


def test_modules_do_not_import_each_other_in_circles() -> None:
    graph = {
        module: set(imported(file, (REPOSITORY / file).read_text())) & MODULES - {module, "seqlm"}
        for file, module in FILES.items()
    }
    TopologicalSorter(graph).prepare()


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
