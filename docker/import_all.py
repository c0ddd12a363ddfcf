"""Import every module of a package, and then run the package: ``import_all.py PACKAGE [ARGUMENT...]``.

The imports fail if a package that a module needs is missing. With ``--without NAME`` first, that package is
expected to be missing, and modules that need it are left out. Folders need no ``__init__.py``.
"""

import importlib
import runpy
import sys
from pathlib import Path

WITHOUT = "--without"


def main(*arguments: str) -> None:
    """Import the modules of a package and run it.

    Args:
        arguments: ``--without`` and a package that is missing, if there is one; the package to import; its
            command line.
    """
    missing = None
    remaining = list(arguments)
    if remaining[0] == WITHOUT:
        missing = remaining[1]
        remaining = remaining[2:]
    name, *command_line = remaining
    [folder] = importlib.import_module(name).__path__
    modules = []
    for file in sorted(Path(folder).rglob("*.py")):
        path = file.relative_to(folder).with_suffix("")
        if path.name not in ("__main__", "__init__"):
            modules.append(".".join((name, *path.parts)))
    left_out = []
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if missing is None or error.name != missing:
                raise
            left_out.append(module)
    print(f"{name}: imported {len(modules) - len(left_out)} modules")
    if left_out:
        print(f"{name}: left out without {missing}: {', '.join(left_out)}")
    sys.argv = [name, *command_line]
    runpy.run_module(name, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
