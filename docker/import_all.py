"""Import every module of a package, and then run the package: ``import_all.py PACKAGE [ARGUMENT...]``.

The imports fail if a package that a module needs is missing. Folders need no ``__init__.py``.
"""

import importlib
import runpy
import sys
from pathlib import Path


def main(name: str, *arguments: str) -> None:
    """Import the modules of a package and run it.

    Args:
        name: package.
        arguments: command line of the package.
    """
    [folder] = importlib.import_module(name).__path__
    modules = []
    for file in sorted(Path(folder).rglob("*.py")):
        path = file.relative_to(folder).with_suffix("")
        if path.name not in ("__main__", "__init__"):
            modules.append(".".join((name, *path.parts)))
    for module in modules:
        importlib.import_module(module)
    print(f"{name}: imported {len(modules)} modules")
    sys.argv = [name, *arguments]
    runpy.run_module(name, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
