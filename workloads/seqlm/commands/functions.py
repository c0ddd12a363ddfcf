"""Lookup of the functions that the tables of stages and of commands name.

The tables are data that nodes read, so they name functions of upper layers as text. Only the command line
resolves these names.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from seqlm.training.command_line import importing


def function_named(name: str) -> Callable[..., Any]:
    """Return the function ``module:function`` below ``seqlm``.

    Its module is imported when it is called, because ``--help`` and mistakes in a run file need none of it.
    """
    module, _, function = name.partition(":")

    def call(*arguments: Any) -> Any:
        with importing():
            imported = import_module(f"seqlm.{module}")
        return getattr(imported, function)(*arguments)

    return call
