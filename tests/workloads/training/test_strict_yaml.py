"""The configuration of clusters uses the strict YAML loader, so it must need no package but PyYAML."""

import ast
import sys
from pathlib import Path
from types import ModuleType

import pytest

from seqlm.training import strict_yaml
from seqlm.training.data import small_file


@pytest.mark.parametrize(
    ("module", "others"),
    [(strict_yaml, {"yaml", "seqlm.training.data.small_file"}), (small_file, set())],
    ids=["strict_yaml", "small_file"],
)
def test_only_the_standard_library_and_pyyaml_are_imported(
    module: ModuleType, others: set[str]
) -> None:
    imported = set()
    for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import brings the rest of the package"
            imported.add(str(node.module))
    assert {
        name for name in imported if name.split(".")[0] not in sys.stdlib_module_names
    } == others
