"""Import every module of a package, to see that nothing it needs is missing, and then run the package:
``import_all.py PACKAGE [ARGUMENT...]``. Folders below it need no ``__init__.py``.
"""

import importlib
import runpy
import sys
from pathlib import Path


def main(name: str, *arguments: str) -> None:
    [folder] = importlib.import_module(name).__path__
    files = sorted(file.relative_to(folder).with_suffix("") for file in Path(folder).rglob("*.py"))
    modules = [".".join((name, *file.parts)) for file in files if file.name not in ("__main__", "__init__")]
    for module in modules:
        importlib.import_module(module)
    print(f"{name}: imported {len(modules)} modules")
    sys.argv = [name, *arguments]
    runpy.run_module(name, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
