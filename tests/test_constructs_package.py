"""This repository's ``constructs`` folder and the package of that name on PyPI are one package.

jsii's package extends its own path over sys.path (``pkgutil.extend_path``), which takes in folders that have
no ``__init__.py``. With one, ours would hide theirs, and aws_cdk could not be imported at all.
"""

from __future__ import annotations

import importlib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_our_folder_has_no_init() -> None:
    assert not (ROOT / "constructs" / "__init__.py").exists(), __doc__


def test_both_halves_can_be_imported() -> None:
    theirs = importlib.import_module("constructs")
    ours = importlib.import_module("constructs.vpc.network")

    assert theirs.__file__ is not None and "site-packages" in theirs.__file__
    assert str(ROOT / "constructs") in list(theirs.__path__)
    assert ours.__file__ == str(ROOT / "constructs" / "vpc" / "network.py")
    assert issubclass(ours.Network, theirs.Construct)
