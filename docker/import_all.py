"""Import every module of a package, to see that nothing it needs is missing: ``import_all.py PACKAGE``."""

from __future__ import annotations

import importlib
import pkgutil
import sys


def main(name: str) -> None:
    package = importlib.import_module(name)
    modules = [module.name for module in pkgutil.walk_packages(package.__path__, f"{name}.")]
    for module in modules:
        if not module.endswith("__main__"):
            importlib.import_module(module)
    print(f"{name}: imported {len(modules)} modules")


if __name__ == "__main__":
    main(sys.argv[1])
