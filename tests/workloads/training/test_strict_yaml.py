"""The configuration of clusters uses the strict YAML loader, so it must need no package but PyYAML."""

import ast
import sys
from pathlib import Path

from seqlm.training import strict_yaml


def test_the_loader_imports_only_the_standard_library_and_pyyaml() -> None:
    imported = set()
    for node in ast.walk(ast.parse(Path(strict_yaml.__file__).read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import brings the rest of the package"
            imported.add(str(node.module))
    roots = {name.split(".")[0] for name in imported}
    assert roots - sys.stdlib_module_names == {"yaml"}
