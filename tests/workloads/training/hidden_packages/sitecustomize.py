"""Hide packages from this interpreter and from all that it starts.

Python imports this module whenever it starts with this folder on PYTHONPATH.
VISIBLE_PACKAGES is JSON with the modules and distributions that stay visible; without it, all do.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, DistributionFinder
from types import ModuleType

INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")


class VisibleFinder:
    """Python's own finder without the hidden packages: importing them fails as if they were missing."""

    def __init__(self, modules: Iterable[str], distributions: Iterable[str]) -> None:
        self._modules = set(modules)
        self._distributions = set(distributions)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or name.partition(".")[0] in self._modules:
            return spec
        places = [spec.origin or "", *(spec.submodule_search_locations or [])]
        return None if any(INSTALLED.search(f"{place}/") for place in places) else spec

    def find_distributions(
        self, context: DistributionFinder.Context | None = None
    ) -> Iterable[Distribution]:
        for found in PathFinder.find_distributions(context or DistributionFinder.Context()):
            if re.sub(r"[-_.]+", "-", found.metadata["Name"]).lower() in self._distributions:
                yield found

    @staticmethod
    def invalidate_caches() -> None:
        PathFinder.invalidate_caches()


if names := os.environ.get("VISIBLE_PACKAGES"):
    visible = VisibleFinder(**json.loads(names))
    sys.meta_path[:] = [visible if finder is PathFinder else finder for finder in sys.meta_path]  # type: ignore[list-item]
