"""Import every module of a package, to see that nothing it needs is missing, and then run the package:
``import_all.py PACKAGE [ARGUMENT...]``.
"""

from __future__ import annotations

import importlib
import pkgutil
import runpy
import sys


def main(name: str, *arguments: str) -> None:
    package = importlib.import_module(name)
    modules = [module.name for module in pkgutil.walk_packages(package.__path__, f"{name}.")]
    for module in modules:
        if not module.endswith("__main__"):
            importlib.import_module(module)
    print(f"{name}: imported {len(modules)} modules")
    sys.argv = [name, *arguments]
    runpy.run_module(name, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
